//! `bulk_search`: many queries, one after another on one warm worker; each fails by itself.

use serde_json::value::RawValue;

use super::search::{self, SearchInput};
use crate::error::{Error, Result};
use crate::kb::Kb;
use crate::wire::{BulkCounts, BulkItem, BulkResponse, BulkSearchResponseV1, ErrorReport};

pub const MAX_ITEMS: usize = 100;

/// Nothing runs if there are more than `MAX_ITEMS`.
pub fn run(kb: &Kb, queries: Vec<Box<RawValue>>) -> Result<BulkResponse> {
    check_count(queries.len())?;
    let results: Vec<BulkItem> = queries.into_iter().map(|query| item(kb, query)).collect();
    let succeeded = results.iter().filter(|item| item.outcome.is_ok()).count();
    let summary = BulkCounts { total: results.len(), succeeded, failed: results.len() - succeeded };
    Ok(BulkResponse { schema_version: BulkSearchResponseV1, results, summary })
}

/// One query of a bulk call, with its answer or its error.
pub fn item(kb: &Kb, query: Box<RawValue>) -> BulkItem {
    let parsed = serde_json::from_str(query.get()).map_err(|error| Error::input("queries", error.to_string()));
    let outcome = parsed.and_then(SearchInput::from_json).and_then(|input| search::run(kb, &input));
    BulkItem { query, outcome: outcome.map_err(|error| ErrorReport::from(&error)) }
}

fn check_count(count: usize) -> Result<()> {
    if count > MAX_ITEMS {
        let reason = format!("at most {MAX_ITEMS} are allowed, found {count}");
        return Err(Error::input_hint("queries", reason, "Split the call into smaller ones."));
    }
    Ok(())
}
