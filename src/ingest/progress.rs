//! The stream of events while an ingest runs.

use crate::wire::IngestEvent;

/// Passes each event on once, also when the ingest begins again over a rebuilt index.
pub struct Once<'o> {
    observe: &'o mut dyn FnMut(IngestEvent),
    /// How far the stream has come, by kind of event: the highest number passed on.
    passed: [u64; 5],
}

impl<'o> Once<'o> {
    pub fn new(observe: &'o mut dyn FnMut(IngestEvent)) -> Once<'o> {
        Once { observe, passed: [0; 5] }
    }

    pub fn pass(&mut self, event: IngestEvent) {
        let (kind, number) = match &event {
            IngestEvent::ScanStarted { .. } => (0, 1),
            IngestEvent::ScanCompleted { .. } => (1, 1),
            IngestEvent::AssetStarted { idx, .. } => (2, *idx),
            IngestEvent::AssetChunked { idx, .. } => (3, *idx),
            IngestEvent::AssetFinished { idx, .. } => (4, *idx),
            // Not of reading files, which is what begins again.
            IngestEvent::EmbedStarted { .. }
            | IngestEvent::EmbedBatchFinished { .. }
            | IngestEvent::Completed { .. }
            | IngestEvent::Aborted { .. } => return (self.observe)(event),
        };
        if number > self.passed[kind] {
            self.passed[kind] = number;
            (self.observe)(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Media;
    use crate::wire::{IngestCounts, IngestResult};

    #[test]
    fn a_second_beginning_goes_on_where_the_first_one_stopped() {
        let started = |idx| IngestEvent::AssetStarted { idx, total: 2, path: format!("{idx}.md"), media: Media::Text };
        let finished = |idx| IngestEvent::AssetFinished { idx, total: 2, result: IngestResult::New, chunks: 1 };
        let scan = || vec![IngestEvent::ScanStarted { root: "r".into() }, IngestEvent::ScanCompleted { total: 2 }];
        let first =
            [scan(), vec![started(1), IngestEvent::AssetChunked { idx: 1, chunks: 1 }, finished(1), started(2)]];
        let rest = vec![IngestEvent::AssetChunked { idx: 1, chunks: 1 }, finished(1), started(2), finished(2)];
        let end = vec![IngestEvent::Completed { counts: IngestCounts::default() }];
        let second = [scan(), vec![started(1)], rest, end];

        let mut passed = Vec::new();
        let mut observe = |event: IngestEvent| {
            let json = serde_json::to_value(event).unwrap();
            passed.push(format!("{} {}", json["kind"].as_str().unwrap(), json["idx"]));
        };
        let mut once = Once::new(&mut observe);
        first.into_iter().chain(second).flatten().for_each(|event| once.pass(event));
        let expected = [
            "scan_started null",
            "scan_completed null",
            "asset_started 1",
            "asset_chunked 1",
            "asset_finished 1",
            "asset_started 2",
            "asset_finished 2",
            "completed null",
        ];
        assert_eq!(passed, expected);
    }
}
