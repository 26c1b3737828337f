//! `bulk_search`: many queries, one after another on one warm worker; each fails by itself.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use serde_json::Value;
use serde_json::value::RawValue;

use super::search::{self, SearchInput};
use super::{Context, Tokens};
use crate::error::{Error, Result};
use crate::kb::Kb;
use crate::wire::{BulkCounts, BulkItem, BulkResponse, BulkSearchResponseV1, ErrorReport};

pub const MAX_ITEMS: usize = 100;

/// The items of `{"queries": […]}`, each as it was written; a string that is a JSON array stands for that array.
pub fn queries(arguments: &RawValue) -> Result<Vec<Box<RawValue>>> {
    // Items are echoed, so whatever nests too deeply for a reader is refused here.
    let Value::Object(_) = super::value(arguments)? else {
        return Err(Error::input_hint("arguments", "a JSON object is needed", EXAMPLE));
    };
    let wrong = |error: serde_json::Error| Error::input_hint("queries", error.to_string(), EXAMPLE);
    let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(arguments.get()).map_err(wrong)?;
    let Some(list) = fields.remove("queries") else {
        return Err(Error::input_hint("queries", "it is missing", EXAMPLE));
    };
    if let Some(unknown) = fields.into_keys().next() {
        return Err(Error::input_hint(unknown, "no such argument", "Filters stand inside the items of `queries`."));
    }
    if let Ok(text) = serde_json::from_str::<String>(list.get()) {
        let nested: Value = serde_json::from_str(&text).map_err(wrong)?;
        return serde_json::from_value::<Vec<Value>>(nested)
            .and_then(|items| items.iter().map(serde_json::value::to_raw_value).collect())
            .map_err(wrong);
    }
    serde_json::from_str(list.get()).map_err(wrong)
}

const EXAMPLE: &str = "Pass {\"queries\": [{\"query\": \"…\"}, {\"query\": \"…\", \"k\": 5}]}.";

/// Nothing runs if there are more than `MAX_ITEMS`. The items share the budget of the call.
pub fn run(kb: &Kb, queries: Vec<Box<RawValue>>, context: &Context) -> Result<BulkResponse> {
    let total = queries.len();
    if total > MAX_ITEMS {
        let reason = format!("at most {MAX_ITEMS} are allowed, found {total}");
        return Err(Error::input_hint("queries", reason, "Split the call into smaller ones."));
    }
    let share = |tokens: Option<usize>| tokens.map(|tokens| (tokens / total.max(1)).max(1));
    let tokens = Tokens { default: share(context.tokens.default), most: share(context.tokens.most) };
    let mut results = Vec::with_capacity(total);
    for query in queries {
        if context.stop.load(Ordering::Relaxed) {
            break;
        }
        results.push(item(kb, query, tokens));
        (context.progress)(results.len() as u64, Some(total as u64), "searching");
    }
    let succeeded = results.iter().filter(|item| item.outcome.is_ok()).count();
    let summary = BulkCounts { total: results.len(), succeeded, failed: results.len() - succeeded };
    Ok(BulkResponse { schema_version: BulkSearchResponseV1, results, summary })
}

/// One query of a bulk call, with its answer or its error.
pub fn item(kb: &Kb, query: Box<RawValue>, tokens: Tokens) -> BulkItem {
    let parsed = serde_json::from_str(query.get()).map_err(|error| Error::input("queries", error.to_string()));
    let outcome = parsed.and_then(SearchInput::from_json).and_then(|mut input| {
        input.max_tokens = tokens.of(input.max_tokens);
        search::run(kb, &input)
    });
    BulkItem { query, outcome: outcome.map_err(|error| ErrorReport::from(&error)) }
}
