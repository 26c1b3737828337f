//! What meaning adds to a search: the nearest vectors, alone or with their evidence added to that of the words.
//!
//! A score depends on the chunk, the query and the corpus alone, never on which candidates came with it, so pages fit
//! together: the first ones are cut from the best of either side, deeper ones append what a deeper look finds.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use super::rank::{ByWords, rank};
use super::search::{SearchInput, WEAK_SHARE, milliseconds};
use crate::error::{Error, Result};
use crate::index::Index;
use crate::index::build::MAX_WEIGHT;
use crate::index::fuse::{FEWEST_WITHIN_FILTERS, Fit, MOST, blind, unseen};
use crate::index::lexical::{self, Accept, Query, Scored};
use crate::index::vector::LiveVectors;
use crate::index::vector::graph::BREADTH;
use crate::index::vector::scan::{GROUPS, Near, Neighbours, Question, cosines, index, nearest};
use crate::index::vector::segment::Group;
use crate::kb::{EmbedderState, Kb, View};
use crate::model::{Bits, Mode, Rows, ScoreKind, Weights};
use crate::wire::{NearestBy, Timing, TraceFit};

/// A chunk that answers, with all that is known of why.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    pub rows: Rows,
    pub score: f32,
    pub kind: ScoreKind,
    pub weak: bool,
    /// What fusion or the only side says; `score`, unless a reranker had the last word.
    pub fused: f32,
    pub lexical: Option<f32>,
    pub vector: Option<f32>,
    pub lexical_rank: Option<usize>,
    pub vector_rank: Option<usize>,
    /// Nats of the words and of the meaning.
    pub evidence: Option<(f32, f32)>,
}

/// Chunks, best first, and how they came about.
#[derive(Debug, Default)]
pub struct Findings {
    pub found: Vec<Found>,
    pub lexical: Vec<Scored>,
    pub vector: Vec<Near>,
    pub fit: Vec<TraceFit>,
    pub nearest_by: Option<NearestBy>,
    pub means: Means,
    pub timing: Timing,
}

/// A query's vector, and the vectors it may be compared with.
struct Meaning<'i> {
    question: Question,
    vectors: Vec<&'i LiveVectors>,
    model: String,
    embedding_ms: f64,
}

/// Why there is nothing to compare.
enum Missing {
    Off,
    NotEmbedded,
    OtherModel { own: String },
    Loading,
    Failed(Error),
}

/// How long a search waits for the model to be loaded.
const WAIT: Duration = Duration::from_secs(5);

/// Whether there is a model and anything to compare with, as far as is known without loading the model.
fn comparable(kb: &Kb, index: &Index) -> Result<(), Missing> {
    if kb.config.models.embedding.is_none() {
        return Err(Missing::Off);
    }
    match index.vectors.iter().all(|live| live.chunks == 0) {
        true => Err(Missing::NotEmbedded),
        false => Ok(()),
    }
}

fn ask<'i>(kb: &Kb, index: &'i Index, query: &str) -> Result<Meaning<'i>, Missing> {
    let started = Instant::now();
    let embedder = match kb.embedder(WAIT) {
        EmbedderState::Off => return Err(Missing::Off),
        EmbedderState::Loading => return Err(Missing::Loading),
        EmbedderState::Failed(error) => return Err(Missing::Failed(error)),
        EmbedderState::Ready(embedder) => embedder,
    };
    let (model, dimensions) = (embedder.id().to_owned(), embedder.dimensions());
    let own = |live: &&LiveVectors| live.segment.model() == model && live.segment.dimensions() == dimensions;
    let vectors: Vec<&LiveVectors> = index.vectors.iter().filter(own).collect();
    if vectors.iter().all(|live| live.chunks == 0) {
        return Err(Missing::OtherModel { own: model });
    }
    let vector = embedder.query(query).map_err(Missing::Failed)?;
    Ok(Meaning { question: Question::new(vector), vectors, model, embedding_ms: milliseconds(started) })
}

/// What a search was made of besides query, filters and corpus: pages of one search agree in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Means {
    /// The retriever that was really used.
    pub method: Mode,
    pub model: Option<String>,
    pub reranker: Option<String>,
}

impl Default for Means {
    fn default() -> Self {
        Means { method: Mode::Lexical, model: None, reranker: None }
    }
}

/// The best chunks for a query, `want` of them at least where there are as many.
pub fn find(
    kb: &Kb,
    view: &View,
    input: &SearchInput,
    query: &Query,
    documents: Option<&Bits>,
    want: usize,
    hints: &mut Vec<String>,
) -> Result<Findings> {
    let mode = input.mode();
    let words = |limit: usize, hints: &mut Vec<String>| rank(view, input, query, documents, limit, hints);
    if mode == Mode::Lexical {
        let started = Instant::now();
        return Ok(by_words(words(want, hints)?, want, started));
    }
    let index: &Index = &view.index;
    if let Err(missing) = comparable(kb, index) {
        return without(missing, mode, want, hints, &words);
    }
    thread::scope(|scope| {
        // The model may have to be loaded first; the words are looked up meanwhile.
        let asked = scope.spawn(|| ask(kb, index, &input.query));
        let started = Instant::now();
        let first = match mode == Mode::Hybrid || query.only_phrases {
            true => Some(words(DEPTH, hints)?),
            false => None,
        };
        let lexical_ms = milliseconds(started);
        let panicked = |_| Err(Missing::Failed(Error::Internal { cause: "embedding the query panicked".into() }));
        let meaning = match asked.join().unwrap_or_else(panicked) {
            Ok(meaning) => meaning,
            Err(missing) => return without(missing, mode, want, hints, &words),
        };
        hints.extend(meaning.coverage_hint(index, mode));
        let search = Search { kb, view, query, documents, meaning: &meaning, words: &words };
        let findings = match (mode, first) {
            (Mode::Hybrid, Some(first)) => search.fused(first, want),
            (_, first) => search.by_meaning(first, want),
        };
        let mut findings = match findings {
            // Whoever may write has damage repaired and asks again.
            Err(error @ Error::IndexDamaged { .. }) if kb.config.readonly => {
                return without(Missing::Failed(error), mode, want, hints, &words);
            }
            findings => findings?,
        };
        findings.timing.lexical_ms += lexical_ms;
        findings.timing.embedding_ms = meaning.embedding_ms;
        findings.means = Means { method: mode, model: Some(meaning.model), reranker: None };
        Ok(findings)
    })
}

/// Answers by words, or says why not.
fn without(missing: Missing, mode: Mode, want: usize, hints: &mut Vec<String>, words: Words) -> Result<Findings> {
    if mode == Mode::Vector {
        hints.push(missing.hint_or_error()?);
        return Ok(Findings { means: Means { method: mode, ..Means::default() }, ..Findings::default() });
    }
    let started = Instant::now();
    // What the words have to say may have been said when they were asked before.
    let mut said = Vec::new();
    let found = by_words(words(want, &mut said)?, want, started);
    said.push(missing.hint());
    said.retain(|hint| !hints.contains(hint));
    hints.extend(said);
    Ok(found)
}

fn by_words(words: ByWords, want: usize, started: Instant) -> Findings {
    let lexical_ms = milliseconds(started);
    let mut found: Vec<Found> = (1..)
        .zip(words.best.iter().take(want))
        .map(|(rank, scored)| Found {
            rows: scored.rows,
            score: scored.score,
            kind: ScoreKind::Bm25,
            weak: false,
            fused: scored.score,
            lexical: Some(scored.score),
            vector: None,
            lexical_rank: Some(rank),
            vector_rank: None,
            evidence: None,
        })
        .collect();
    mark_weak(&mut found, |found| found.score);
    let timing = Timing { lexical_ms, ..Timing::default() };
    Findings { found, lexical: words.best, timing, ..Findings::default() }
}

/// Looks chunks up by words: how many at most, and what is to be told of it.
type Words<'s> = &'s dyn Fn(usize, &mut Vec<String>) -> Result<ByWords>;

impl Missing {
    /// Told beside an answer by words alone.
    fn hint(&self) -> String {
        match self {
            Missing::Off => "No embedding model is configured, so the answer is lexical.".into(),
            Missing::NotEmbedded => {
                "Nothing is embedded yet, so the answer is lexical; `kebab-lite ingest` embeds.".into()
            }
            Missing::OtherModel { own } => format!(
                "The index holds vectors of another model than {own}, so the answer is lexical; `kebab-lite ingest` embeds anew."
            ),
            Missing::Loading => {
                "The embedding model is still being loaded, so the answer is lexical; ask again in a few seconds."
                    .into()
            }
            Missing::Failed(error) => format!("The answer is lexical: {error}. `kebab-lite doctor` tells more."),
        }
    }

    /// Where nothing but meaning was asked for. Nothing embedded is an empty answer with this hint, not an error.
    fn hint_or_error(self) -> Result<String> {
        let unreachable = |cause: &str, hint: &str| Error::ModelUnreachable {
            endpoint: String::new(),
            model: "none".into(),
            cause: cause.into(),
            hint: hint.into(),
        };
        let words = "Search with mode \"lexical\", or \"hybrid\", which answers lexically here.";
        match self {
            Missing::Off if cfg!(feature = "onnx") => Err(unreachable("no embedding model is configured", words)),
            Missing::Off => Err(unreachable("this build has no embedding model, and none is configured", words)),
            Missing::Loading => Err(unreachable("it is still being loaded", "Ask again in a few seconds.")),
            Missing::Failed(error) => Err(error),
            Missing::NotEmbedded => Ok("Nothing is embedded yet: run `kebab-lite ingest`.".into()),
            Missing::OtherModel { own } => {
                Ok(format!("The index holds vectors of another model than {own}: run `kebab-lite ingest`."))
            }
        }
    }
}

impl Meaning<'_> {
    /// Chunks that have a vector.
    fn covered(&self) -> usize {
        self.vectors.iter().map(|live| live.chunks).sum()
    }

    /// What part of the corpus can be found by meaning, where that is not all of it.
    fn coverage_hint(&self, index: &Index, mode: Mode) -> Option<String> {
        let (covered, all) = (self.covered(), index.live_chunks());
        let rest = match mode {
            Mode::Vector => "cannot be found by meaning yet",
            Mode::Hybrid | Mode::Lexical => "is found by words alone",
        };
        // Rounded down: 100 % is all.
        let percent = (100 * covered).checked_div(all)?.min(99);
        (covered < all).then(|| {
            format!("{percent} % of the passages are embedded, the rest {rest}; `kebab-lite ingest` embeds it.")
        })
    }

    /// By group: the `want` nearest where there are as many, and as many more as tell chance.
    fn nearest(&self, kb: &Kb, accept: &Accept, want: usize) -> Result<([Neighbours; GROUPS], NearestBy)> {
        if accept.is_open()
            && want <= BREADTH
            && let Some(graph) = kb.graphs.graph(&self.vectors, kb.config.index.graph_above)
        {
            return Ok((graph.nearest(&self.vectors, &self.question, BREADTH)?, NearestBy::Graph));
        }
        Ok((nearest(&self.vectors, &self.question, accept, want.max(MOST))?, NearestBy::Scan))
    }
}

/// A search by meaning.
struct Search<'s> {
    kb: &'s Kb,
    view: &'s View<'s>,
    query: &'s Query,
    documents: Option<&'s Bits>,
    meaning: &'s Meaning<'s>,
    words: Words<'s>,
}

/// Candidates of either side on the first pages.
const DEPTH: usize = 100;

/// How much deeper each further look goes.
const DEEPER: usize = 10;

impl Search<'_> {
    /// The nearest first; `want` of them, if there are as many.
    fn by_meaning(&self, words: Option<ByWords>, want: usize) -> Result<Findings> {
        let held = words.and_then(|words| words.held);
        let started = Instant::now();
        let accept = Accept { documents: self.documents, chunks: held.as_ref() };
        let (groups, nearest_by) = self.meaning.nearest(self.kb, &accept, want)?;
        let odds = Odds::new(self, &accept, &groups)?;
        let vector = merged(&groups);
        let timing = Timing { vector_ms: milliseconds(started), ..Timing::default() };
        let mut found: Vec<Found> = (1..)
            .zip(vector.iter().take(want))
            .map(|(rank, near)| Found {
                rows: near.rows,
                score: near.cosine,
                kind: ScoreKind::Cosine,
                weak: false,
                fused: near.cosine,
                lexical: None,
                vector: Some(near.cosine),
                lexical_rank: None,
                vector_rank: Some(rank),
                evidence: Some((0.0, odds.of(near, Some(rank)))),
            })
            .collect();
        // Cosines of a model lie in a narrow band, so a share of one says nothing; a share of their evidence does.
        mark_weak(&mut found, |found| found.evidence.map_or(0.0, |(_, meaning)| meaning));
        let fit = odds.trace([false; GROUPS]);
        Ok(Findings { found, fit, vector, nearest_by: Some(nearest_by), timing, ..Findings::default() })
    }

    /// By the sum of both evidences; `want` of them, if there are as many.
    fn fused(&self, first: ByWords, want: usize) -> Result<Findings> {
        let mut depth = DEPTH;
        let (mut findings, mut ended) = self.to_depth(depth, first)?;
        while findings.found.len() < want && !ended {
            depth = depth.saturating_mul(DEEPER);
            let (deeper, end) = self.to_depth(depth, (self.words)(depth, &mut Vec::new())?)?;
            ended = end;
            let known: BTreeSet<u32> = findings.found.iter().map(|found| found.rows.chunk).collect();
            let floor = findings.found.last().map_or(f32::INFINITY, |last| last.score);
            let more = deeper.found.into_iter().filter(|found| !known.contains(&found.rows.chunk));
            // What a deeper look finds follows what was shown, so it is not shown as better.
            findings.found.extend(more.map(|found| Found { score: found.score.min(floor), ..found }));
            (findings.lexical, findings.vector) = (deeper.lexical, deeper.vector);
        }
        mark_weak(&mut findings.found, |found| found.score);
        Ok(findings)
    }

    /// All candidates that either side has up to a depth, and whether that is all there is.
    fn to_depth(&self, depth: usize, words: ByWords) -> Result<(Findings, bool)> {
        let weights = self.kb.config.search.fusion;
        let started = Instant::now();
        let accept = Accept { documents: self.documents, chunks: words.held.as_ref() };
        let (groups, nearest_by) = self.meaning.nearest(self.kb, &accept, depth)?;
        let odds = Odds::new(self, &accept, &groups)?;
        let vector = merged(&groups);
        let ended = words.best.len() < depth && groups.iter().all(|group| group.best.len() == group.scored);
        let candidates = self.candidates(&words, &vector, &groups, depth)?;
        let vector_ms = milliseconds(started);

        let started = Instant::now();
        let blind = blind(lexical::mass(&self.view.index, self.query)?);
        // A chunk in a script that the words could not match has what one of little note on the list has.
        let place = unseen(groups.iter().map(|group| group.scored).sum());
        let floor = words.best.get(place - 1).map_or(0.0, |scored| scored.score);
        let mut found: Vec<Found> = candidates
            .into_values()
            .map(|Candidate { rows, score, near, ranks }| {
                let floor = near.filter(|near| blind[index(near.group)]).map_or(0.0, |_| floor);
                let of_words = weights.of_words(score.max(floor) / MAX_WEIGHT);
                let of_meaning = near.map_or(0.0, |near| odds.of(&near, ranks.1));
                let sum = of_words + of_meaning;
                Found {
                    rows,
                    score: sum,
                    kind: ScoreKind::Evidence,
                    weak: false,
                    fused: sum,
                    lexical: (score > 0.0).then_some(score),
                    vector: near.map(|near| near.cosine),
                    lexical_rank: ranks.0,
                    vector_rank: ranks.1,
                    evidence: Some((of_words, of_meaning)),
                }
            })
            .collect();
        found.sort_by(|a, b| {
            let by_words = b.lexical.unwrap_or(0.0).total_cmp(&a.lexical.unwrap_or(0.0));
            b.score.total_cmp(&a.score).then(by_words).then(a.rows.chunk.cmp(&b.rows.chunk))
        });
        let timing = Timing { vector_ms, fusion_ms: milliseconds(started), ..Timing::default() };
        let (fit, lexical) = (odds.trace(blind), words.best);
        let means = Means::default();
        Ok((Findings { found, lexical, vector, fit, nearest_by: Some(nearest_by), means, timing }, ended))
    }

    /// The best of both sides and the nearest of each group, each looked up on the side that did not bring it.
    fn candidates(
        &self,
        words: &ByWords,
        vector: &[Near],
        groups: &[Neighbours; GROUPS],
        depth: usize,
    ) -> Result<BTreeMap<u32, Candidate>> {
        let mut candidates: BTreeMap<u32, Candidate> = BTreeMap::new();
        let new = |rows| Candidate { rows, score: 0.0, near: None, ranks: (None, None) };
        for (rank, scored) in (1..).zip(&words.best) {
            let candidate = candidates.entry(scored.rows.chunk).or_insert_with(|| new(scored.rows));
            (candidate.score, candidate.ranks.0) = (scored.score, Some(rank));
        }
        let of_groups = groups.iter().flat_map(|group| group.best.iter().take(depth / 2));
        for near in vector.iter().take(depth).chain(of_groups) {
            candidates.entry(near.rows.chunk).or_insert_with(|| new(near.rows));
        }
        for (rank, near) in (1..).zip(vector) {
            if let Some(candidate) = candidates.get_mut(&near.rows.chunk) {
                candidate.near = Some(*near);
                candidate.ranks.1 = (rank <= depth).then_some(rank);
            }
        }
        let missing: Vec<Rows> = candidates.values().filter(|one| one.ranks.0.is_none()).map(|one| one.rows).collect();
        for (rows, score) in missing.iter().zip(words.scores_of(self.view, self.query, &missing)?) {
            candidates.entry(rows.chunk).and_modify(|candidate| candidate.score = score);
        }
        let missing: Vec<Rows> = candidates.values().filter(|one| one.near.is_none()).map(|one| one.rows).collect();
        for (rows, near) in missing.iter().zip(cosines(&self.meaning.vectors, &self.meaning.question, &missing)?) {
            candidates.entry(rows.chunk).and_modify(|candidate| candidate.near = near);
        }
        Ok(candidates)
    }
}

struct Candidate {
    rows: Rows,
    /// BM25; 0 if no word matches.
    score: f32,
    near: Option<Near>,
    /// In the lexical and in the vector list.
    ranks: (Option<usize>, Option<usize>),
}

/// What closeness to a query says, for each group.
struct Odds {
    weights: Weights,
    /// Chunks compared, by group.
    scored: [usize; GROUPS],
    /// Of chunks in one script.
    fits: [Option<Fit>; 2],
    /// Whether a script is judged by its own fit.
    own: [bool; 2],
    /// ln(chunks / chunks with a vector). Being the nearest of the few that are embedded so far says little.
    thin: f32,
}

impl Odds {
    fn new(search: &Search, accept: &Accept, groups: &[Neighbours; GROUPS]) -> Result<Odds> {
        let scored = groups.each_ref().map(|group| group.scored);
        let kept: usize = scored.iter().sum();
        // What a filter leaves is too little to tell chance by; what it took away tells.
        let unfiltered = match !accept.is_open() && kept < FEWEST_WITHIN_FILTERS {
            true => Some(search.meaning.nearest(search.kb, &Accept::default(), DEPTH)?.0),
            false => None,
        };
        let seen = unfiltered.as_ref().unwrap_or(groups);
        let all: usize = seen.iter().map(|group| group.scored).sum();
        let kept = (kept.max(1) as f32 / all.max(1) as f32).ln();
        let thin = (search.view.index.live_chunks() as f32 / search.meaning.covered().max(1) as f32).ln().max(0.0);
        let cosines = |best: &[Near]| best.iter().map(|near| near.cosine).take(MOST).collect::<Vec<f32>>();
        let whole = Fit::new(all, &cosines(&merged(seen)));
        let of_script = |group: Group| {
            let Neighbours { scored, best } = &seen[index(group)];
            Fit::new(*scored, &cosines(best)).map(|fit| fit.among(all))
        };
        let of_scripts = [Group::Hangul, Group::Other].map(of_script);
        let fits = of_scripts.map(|own| {
            let fit = match (own, whole) {
                (Some(own), Some(whole)) => Some(own.leaning(&whole)),
                (own, whole) => own.or(whole),
            };
            fit.map(|fit| fit.thinned(thin + kept))
        });
        let own = of_scripts.map(|fit| fit.is_some());
        Ok(Odds { weights: search.kb.config.search.fusion, scored, fits, own, thin })
    }

    /// Nats of a chunk that stands at this place of the vector list.
    fn of(&self, near: &Near, rank: Option<usize>) -> f32 {
        let [hangul, other] = self.fits.map(|fit| fit.map(|fit| fit.chance(near.cosine)));
        let chance = match near.group {
            Group::Hangul => hangul,
            Group::Other => other,
            // Some of it is near for its script alone, whichever the query is in: the script to which its nearness is
            // less of a surprise tells how little it says.
            Group::Mixed => hangul.zip(other).map(|(hangul, other)| hangul.max(other)),
        };
        match chance {
            Some(chance) => self.weights.of_meaning(chance),
            None => self.weights.of_rank(rank.unwrap_or(self.scored.iter().sum()), self.thin),
        }
    }

    fn trace(&self, blind: [bool; GROUPS]) -> Vec<TraceFit> {
        let of_group = |(at, group): (usize, &'static str)| {
            let fit = self.fits.get(at).copied().flatten();
            TraceFit {
                group,
                chunks: self.scored[at],
                of: match (self.own.get(at), self.fits[0].or(self.fits[1])) {
                    (_, None) => "ranks",
                    (None, _) => "scripts",
                    (Some(true), _) => "group",
                    (Some(false), _) => "store",
                },
                k: fit.map(|fit| fit.k),
                theta: fit.map(|fit| fit.theta),
                beta: fit.map(|fit| fit.beta),
                blind: blind[at],
            }
        };
        let groups = ["hangul", "other", "mixed"].into_iter().enumerate();
        groups.map(of_group).filter(|fit| fit.chunks > 0).collect()
    }
}

/// One list of all groups, nearest first.
fn merged(groups: &[Neighbours; GROUPS]) -> Vec<Near> {
    let mut all: Vec<Near> = groups.iter().flat_map(|group| &group.best).copied().collect();
    all.sort_unstable_by(Near::order);
    // Beyond the shortest of the cut lists the order is not known.
    let certain = |group: &Neighbours| if group.best.len() < group.scored { group.best.last().copied() } else { None };
    let end = groups.iter().filter_map(certain).map(|last| all.partition_point(|near| near.order(&last).is_le())).min();
    all.truncate(end.unwrap_or(all.len()));
    all
}

/// `of`: what of the first hit a hit must have a share of.
pub fn mark_weak(found: &mut [Found], of: impl Fn(&Found) -> f32) {
    let Some(floor) = found.first().map(|first| WEAK_SHARE * of(first)) else { return };
    found.iter_mut().for_each(|one| one.weak = of(one) < floor);
}
