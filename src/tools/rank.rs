//! Which chunks answer a query, and in which order: terms, phrases, and texts that hold no term at all.

use std::borrow::Cow;

use super::search::SearchInput;
use crate::error::Result;
use crate::index::build::MAX_WEIGHT;
use crate::index::lexical::{self, Accept, Query, Scored};
use crate::index::tokenize::{fold, holds_phrase, phrase_form};
use crate::ingest::parse::{LOOK_BACK, readable, shown};
use crate::kb::View;
use crate::model::{Bits, Rows};
use crate::store::{Bodies, ChunkRow, DocumentRow};

/// The best `limit` chunks. A phrase is one more term of BM25 with its own idf, at full weight; if the query is nothing
/// but phrases, the hits are the passages that hold them all. A query without a single term (only punctuation, emoji or
/// function words) is looked for as it stands.
pub fn rank(
    view: &View,
    input: &SearchInput,
    query: &Query,
    documents: Option<&Bits>,
    limit: usize,
    hints: &mut Vec<String>,
) -> Result<ByWords> {
    let accept = Accept { documents, chunks: None };
    if query.terms.is_empty() {
        let best = literal(view, &input.query, &accept, limit, hints)?;
        let mut held = Bits::default();
        best.iter().for_each(|scored| held.insert(scored.rows.chunk as usize));
        return Ok(ByWords { best, held: query.only_phrases.then_some(held), phrase: None });
    }
    if query.phrases.is_empty() {
        return Ok(ByWords { best: lexical::top(&view.index, query, &accept, limit)?, held: None, phrase: None });
    }
    let Holders { chunks: holders, about, unread } = phrase_holders(view, query, &accept)?;
    let bonus = lexical::idf(&view.index, about) * MAX_WEIGHT * query.phrases.len() as f32;
    let mut ranked = lexical::top(&view.index, query, &Accept { documents, chunks: Some(&holders) }, limit)?;
    if unread > 0 && ranked.len() < limit {
        hints.push(format!(
            "The quoted words are so common that {unread} more passages hold them; only the best {MOST_READ} were read for \
             the phrase. Add a rarer word."
        ));
    } else if holders.is_empty() {
        let where_ = if documents.is_some() { "No passage within the filters holds" } else { "No passage holds" };
        hints.push(format!(
            "{where_} the quoted words next to each other; search without the quotes to find them apart."
        ));
    }
    ranked.iter_mut().for_each(|scored| scored.score += bonus);
    if !query.only_phrases {
        let others = lexical::top(&view.index, query, &accept, limit)?;
        ranked.extend(others.into_iter().filter(|scored| !holders.has(scored.rows.chunk as usize)));
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.rows.chunk.cmp(&b.rows.chunk)));
        ranked.truncate(limit);
    }
    let held = query.only_phrases.then(|| holders.clone());
    Ok(ByWords { best: ranked, held, phrase: Some((holders, bonus)) })
}

/// What a query's words find.
#[derive(Debug)]
pub struct ByWords {
    /// The best first.
    pub best: Vec<Scored>,
    /// The only chunks that may be hits, whoever finds them: those that hold all of a query that is quoted as a whole.
    pub held: Option<Bits>,
    /// The chunks that hold the phrases, and what that adds to their scores.
    phrase: Option<(Bits, f32)>,
}

impl ByWords {
    /// The scores of chunks that are not among the best; 0 for one that no word matches.
    pub fn scores_of(&self, view: &View, query: &Query, chunks: &[Rows]) -> Result<Vec<f32>> {
        let mut scores = lexical::scores_of(&view.index, query, chunks)?;
        if let Some((holders, bonus)) = &self.phrase {
            let holding = chunks.iter().zip(&mut scores).filter(|(rows, _)| holders.has(rows.chunk as usize));
            holding.for_each(|(_, score)| *score += bonus);
        }
        Ok(scores)
    }
}

/// What of a query without terms is looked for.
pub fn needle(query: &str) -> String {
    fold(query.trim()).replace('"', "").trim().to_owned()
}

/// The chunks that hold every phrase of a query.
struct Holders {
    /// By row.
    chunks: Bits,
    /// How many there are, as far as those that were read tell.
    about: usize,
    /// Passages that hold the words, but rank too low to have been read.
    unread: usize,
}

/// How many passages are read for a phrase at most: words as common as `in the` stand in most of them.
const MOST_READ: usize = 2048;

/// The chunks that hold every phrase of the query, in their text, their title or their headings. Where too many hold the
/// words, the best ones are read, in the order that they would be hits in.
fn phrase_holders(view: &View, query: &Query, accept: &Accept) -> Result<Holders> {
    let narrow = Query::of_phrases(&query.phrases);
    let best = |accept: &Accept, limit: usize| -> Result<Vec<Rows>> {
        Ok(lexical::top(&view.index, query, accept, limit)?.into_iter().map(|scored| scored.rows).collect())
    };
    let mut candidates = match narrow.terms.is_empty() {
        // Phrases of function words have no lists; what the rest of the query matches is looked through.
        true => best(accept, view.index.chunks())?,
        false => lexical::matching_all(&view.index, &narrow)?,
    };
    candidates.retain(|rows| accept.takes(*rows));
    let all = candidates.len();
    if all > MOST_READ && !narrow.terms.is_empty() {
        let mut holding = Bits::default();
        candidates.iter().for_each(|rows| holding.insert(rows.chunk as usize));
        candidates = best(&Accept { documents: None, chunks: Some(&holding) }, MOST_READ)?;
    }
    candidates.truncate(MOST_READ);
    let read = candidates.len();
    // Neighbours share a document, whose text is read once.
    candidates.sort_unstable_by_key(|rows| (rows.document, rows.chunk));
    let mut texts = Texts::new(view);
    let mut holders = Bits::default();
    for rows in candidates {
        let (document, chunk, body) = texts.readable(rows)?;
        let titles = [&document.title].into_iter().chain(&chunk.chunk.heading_path);
        let forms: Vec<String> =
            std::iter::once(body.as_str()).chain(titles.map(String::as_str)).map(phrase_form).collect();
        if query.phrases.iter().all(|phrase| forms.iter().any(|form| holds_phrase(form, phrase))) {
            holders.insert(rows.chunk as usize);
        }
    }
    let about = holders.len() * all / read.max(1);
    Ok(Holders { chunks: holders, about, unread: all - read })
}

/// How much text a search without terms reads at most.
const LITERAL_BYTES: usize = 256 << 20;

/// Reads the documents for a text as it stands, folded; more occurrences in a chunk rank first, by BM25's saturation of
/// one term.
fn literal(view: &View, text: &str, accept: &Accept, limit: usize, hints: &mut Vec<String>) -> Result<Vec<Scored>> {
    let needle = needle(text);
    let mut found = Vec::new();
    if needle.is_empty() {
        return Ok(found);
    }
    let mut read = 0;
    for document in view.store.documents()? {
        if accept.documents.is_some_and(|taken| !taken.has(document.row as usize)) {
            continue;
        }
        if read > LITERAL_BYTES {
            hints.push(
                "The query has no searchable word, and the corpus is too large to read all of it for one; add a word."
                    .into(),
            );
            break;
        }
        let text = view.store.text(document.row, 0..view.store.text_len(document.row)?)?;
        read += text.len();
        if !fold(&text).contains(&needle) {
            continue;
        }
        for chunk in view.store.chunks_of(document.row)? {
            let count = fold(&shown(document.media, &text[chunk.chunk.bytes])).matches(&needle).count() as f32;
            if count > 0.0 {
                let rows = Rows { chunk: chunk.row, document: document.row };
                found.push(Scored { score: count * MAX_WEIGHT / (count + MAX_WEIGHT - 1.0), rows });
            }
        }
    }
    found.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.rows.chunk.cmp(&b.rows.chunk)));
    found.truncate(limit);
    Ok(found)
}

/// Texts of chunks, with the documents that were read last kept at hand.
pub struct Texts<'v> {
    view: &'v View<'v>,
    bodies: Bodies<'v>,
    /// At most `KEPT`, in the order of reading.
    documents: Vec<DocumentRow>,
}

/// The hits of a page share documents.
const KEPT: usize = 16;

impl<'v> Texts<'v> {
    pub fn new(view: &'v View<'v>) -> Self {
        Texts { view, bodies: view.store.bodies(), documents: Vec::new() }
    }

    /// A chunk as it is shown.
    pub fn read(&mut self, rows: Rows) -> Result<(&DocumentRow, ChunkRow, String)> {
        let (chunk, source) = self.source(rows)?;
        let document = self.document(rows.document)?;
        let text = match shown(document.media, &source) {
            Cow::Owned(text) => text,
            Cow::Borrowed(_) => source,
        };
        Ok((document, chunk, text))
    }

    /// A chunk as it is found.
    fn readable(&mut self, rows: Rows) -> Result<(&DocumentRow, ChunkRow, String)> {
        let (chunk, source) = self.source(rows)?;
        let media = self.document(rows.document)?.media;
        let above = || self.bodies.text_above(rows.document, chunk.chunk.bytes.start, LOOK_BACK);
        let text = readable(media, &source, above)?.into_owned();
        Ok((self.document(rows.document)?, chunk, text))
    }

    fn source(&mut self, rows: Rows) -> Result<(ChunkRow, String)> {
        let chunk = self.view.store.chunk(rows.chunk)?;
        let source = self.bodies.text(rows.document, chunk.chunk.bytes.clone())?;
        Ok((chunk, source))
    }

    fn document(&mut self, row: u32) -> Result<&DocumentRow> {
        let place = match self.documents.iter().rposition(|document| document.row == row) {
            Some(place) => place,
            None => {
                if self.documents.len() == KEPT {
                    self.documents.remove(0);
                }
                self.documents.push(self.view.store.document(row)?);
                self.documents.len() - 1
            }
        };
        Ok(&self.documents[place])
    }
}
