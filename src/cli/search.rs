//! `search`, one query or many: asked of a running server of the same root, whose model is loaded already, or answered
//! in this process. Nobody can tell from the output which.

use std::io::{self, BufWriter, Write};

use kebab_lite::config::Config;
use kebab_lite::connect::Client;
use kebab_lite::error::{Error, Result};
use kebab_lite::kb::Kb;
use kebab_lite::tools::search::SearchInput;
use kebab_lite::{tools, wire};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::args::SearchArgs;
use super::{Exit, Outcome, Session, bulk, json_line, render, server, sync_first, tell};

pub fn one(session: &Session, args: SearchArgs, config: Config) -> Outcome {
    let (sync, alone) = (args.sync, args.no_server);
    let query = args.query.join(" ");
    let arguments = args.into_json();
    let input = SearchInput::from_json(Value::Object(arguments.clone()))?;
    let find = server::find(&config);
    let kb = Kb::open_to_the_end(config)?;
    if sync && let Some(exit) = sync_first(session, &kb)? {
        return Ok(exit);
    }
    let mut shared = if alone { None } else { Client::of(&find) };
    let told = match &mut shared {
        Some(client) => client.call("search", &json_line(&arguments)?),
        None => None,
    };
    if session.json
        && let Some(json) = &told
    {
        let mut out = io::stdout().lock();
        writeln!(out, "{json}").and_then(|()| out.flush())?;
        return Ok(Exit::Done);
    }
    let response = match told.and_then(shape) {
        Some(response) => response,
        None => tools::search::run(&kb, &input)?,
    };
    session.answer(&response, |out, response| {
        render::search(out, session.style, &query, response)?;
        response.trace.as_ref().map_or(Ok(()), |trace| render::trace(out, session.style, trace))
    })?;
    for note in render::notes(&response) {
        session.note(&note);
    }
    Ok(Exit::Done)
}

pub fn bulk(session: &Session, args: SearchArgs, configure: &dyn Fn() -> Result<Config>) -> Outcome {
    let (sync, alone) = (args.sync, args.no_server);
    if let Some(field) = args.into_json().keys().next() {
        let hint = "Write it into the lines: {\"query\": \"…\", \"k\": 5}.";
        return Err(Error::input_hint(field, "with --bulk every query brings its own fields", hint).into());
    }
    let queries = bulk::read(io::stdin().lock())?;
    let config = configure()?;
    let find = server::find(&config);
    let kb = Kb::open_to_the_end(config)?;
    if sync && let Some(exit) = sync_first(session, &kb)? {
        return Ok(exit);
    }
    let mut shared = if alone { None } else { Client::of(&find) };
    let mut counts = wire::BulkCounts::default();
    let mut out = BufWriter::new(io::stdout().lock());
    for query in queries {
        let told = shared.as_mut().and_then(|client| told(client, &query));
        counts.total += 1;
        let succeeded = if session.json {
            let (json, succeeded) = match told {
                Some(told) => told,
                None => {
                    let item = tools::bulk::item(&kb, query, tools::Tokens::default());
                    (json_line(&item)?, item.outcome.is_ok())
                }
            };
            writeln!(out, "{json}")?;
            succeeded
        } else {
            let item = match told.and_then(|(json, _)| shape::<Item>(json)).and_then(Item::outcome) {
                Some(outcome) => wire::BulkItem { query, outcome },
                None => tools::bulk::item(&kb, query, tools::Tokens::default()),
            };
            if counts.total > 1 {
                writeln!(out)?;
            }
            render::bulk_item(&mut out, session.style, &item)?;
            item.outcome.is_ok()
        };
        match succeeded {
            true => counts.succeeded += 1,
            false => counts.failed += 1,
        }
        out.flush()?;
    }
    if session.json {
        tell(&json_line(&wire::BulkSummary { schema_version: wire::BulkSearchSummaryV1, counts })?);
    } else {
        session.note(&format!("{} queries: {} answered, {} failed", counts.total, counts.succeeded, counts.failed));
    }
    Ok(Exit::Done)
}

/// What the server says to one query of many, and whether that is an answer: each is asked by itself, so that its line
/// is printed as soon as it is there.
fn told(client: &mut Client, query: &RawValue) -> Option<(String, bool)> {
    #[derive(Deserialize)]
    struct Results<'l> {
        #[serde(borrow)]
        results: Vec<&'l RawValue>,
    }
    let response = client.call("bulk_search", &format!("{{\"queries\":[{}]}}", query.get()))?;
    let results: Results = serde_json::from_str(&response).ok()?;
    let [item] = results.results[..] else { return None };
    #[derive(Deserialize)]
    struct Outcome<'l> {
        #[serde(borrow)]
        error: Option<&'l RawValue>,
    }
    let outcome: Outcome = serde_json::from_str(item.get()).ok()?;
    Some((item.get().to_owned(), outcome.error.is_none()))
}

/// An item as the server words it.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
struct Item {
    response: Option<wire::SearchResponse>,
    error: Option<wire::ErrorReport>,
}

impl Item {
    fn outcome(self) -> Option<Result<wire::SearchResponse, wire::ErrorReport>> {
        match (self.response, self.error) {
            (Some(response), None) => Some(Ok(response)),
            (None, Some(error)) => Some(Err(error)),
            _ => None,
        }
    }
}

/// None for what is not of this shape.
fn shape<T: Deserialize<'static>>(json: String) -> Option<T> {
    // Versions and codes are words of the program, which lives as long as its words; this one prints them and ends.
    serde_json::from_str(Box::leak(json.into_boxed_str())).ok()
}
