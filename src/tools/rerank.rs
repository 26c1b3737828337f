//! A cross-encoder's last word over the best of a hybrid search, where one is configured.

use std::time::{Duration, Instant};

use super::hybrid::{Findings, mark_weak};
use super::rank::Texts;
use super::search::{SearchInput, milliseconds};
use crate::error::Result;
use crate::ingest::embed::passage;
use crate::kb::{Kb, Slot, View};
use crate::model::{Rows, ScoreKind};

/// How many hits are read again.
const DEPTH: usize = 50;

/// How long a search waits for the model to be loaded.
const WAIT: Duration = Duration::from_secs(5);

/// Puts the best hits into the reranker's order; the rest follows in the order it has.
pub fn rerank(
    kb: &Kb,
    view: &View,
    input: &SearchInput,
    findings: &mut Findings,
    hints: &mut Vec<String>,
) -> Result<()> {
    let reranker = match kb.reranker(WAIT) {
        Slot::Off => return Ok(()),
        Slot::Loading => {
            hints.push("The reranker is still being loaded, so the hits are in the order they were found in.".into());
            return Ok(());
        }
        Slot::Failed(error) => {
            hints.push(format!("The hits are not reranked: {error}."));
            return Ok(());
        }
        Slot::Ready(reranker) => reranker,
    };
    let started = Instant::now();
    let mut texts = Texts::new(view);
    let depth = findings.found.len().min(DEPTH);
    let (best, rest) = findings.found.split_at_mut(depth);
    // It reads of a chunk what the embedding model was given.
    let mut read = |rows: Rows| -> Result<String> {
        let (document, chunk, body) = texts.read(rows)?;
        Ok(passage(&document.path, document.media, &document.title, &chunk.chunk, &body))
    };
    let passages = best.iter().map(|found| read(found.rows)).collect::<Result<Vec<String>>>()?;
    let passages: Vec<&str> = passages.iter().map(String::as_str).collect();
    let scores = match reranker.score(&input.query, &passages) {
        Ok(scores) => scores,
        Err(error) => {
            hints.push(format!("The hits are not reranked: {error}."));
            return Ok(());
        }
    };
    for (found, score) in best.iter_mut().zip(&scores) {
        (found.score, found.kind) = (*score, ScoreKind::Rerank);
    }
    // Equal scores stay in the order they were found in.
    best.sort_by(|a, b| b.score.total_cmp(&a.score));
    mark_weak(best, |found| found.score);
    // Those the reranker did not see are behind those it saw.
    rest.iter_mut().for_each(|found| found.weak |= best.last().is_some_and(|last| last.weak));
    findings.means.reranker = Some(reranker.name().to_owned());
    findings.timing.rerank_ms = milliseconds(started);
    Ok(())
}
