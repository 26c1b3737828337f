//! A message in the body of a POST: which era it belongs to, whether its fields say the same as it does, and what is to
//! be done about it. What the message means is `rpc`'s matter.
//!
//! A request of 2026-07-28 stands for itself. Any other but `initialize` belongs to a session.

use std::sync::Arc;
use std::time::Instant;

use super::head::Head;
use super::response::{Refusal, Response, Status};
use super::session::{Session, Sessions};
use crate::log;
use crate::rendezvous::{STANDARD, base64};
use crate::rpc::answer::Era;
use crate::rpc::message::{Code, Fault, Id, Incoming, Message, Params, parse, string};
use crate::rpc::{self, Call, MODERN, REVISIONS, Server, Step};

/// What becomes of a message.
pub enum Reply {
    Now(Response),
    Later(Work),
}

/// Calls whose answers are the response.
pub struct Work {
    pub calls: Vec<Call>,
    /// Answers of a batch that are known.
    pub answers: Vec<String>,
    pub batch: bool,
    /// None in the era without sessions.
    pub session: Option<Arc<Session>>,
}

pub fn reply(server: &Server, sessions: &Sessions, head: &Head, body: &[u8]) -> Reply {
    let now = Instant::now();
    let named = head.session.as_deref().map(|name| sessions.find(name, now));
    let batches = matches!(&named, Some(Some(session)) if rpc::takes_batches(session.revision));
    let incoming = match parse(body, batches) {
        None => return refused(Era::Legacy, &Fault::new(None, Code::Parse, "the body is empty")),
        Some(Err(fault)) => return refused(Era::Legacy, &fault),
        Some(Ok(incoming)) => incoming,
    };
    let message = match incoming {
        Incoming::One(message) => message,
        Incoming::Batch(_) => {
            // Only a session takes batches, so there is one.
            let session = named.flatten();
            return batch(rpc::handle(server, body, batches), session);
        }
    };
    let era = match era(head, &message) {
        Ok(era) => era,
        Err(fault) => return refused(Era::Modern, &fault),
    };
    let welcomes = matches!(&message, Message::Request { method, .. } if method == "initialize");
    let session = match (era, named) {
        (Era::Modern, _) => None,
        (Era::Legacy, _) if welcomes => None,
        (Era::Legacy, Some(Some(session))) => Some(session),
        (Era::Legacy, Some(None)) => return session_is_over(),
        (Era::Legacy, None) => {
            let refusal = Refusal::new(Status::BadRequest, "missing Mcp-Session-Id header");
            return Reply::Now(refusal.into());
        }
    };
    match rpc::dispatch(server, message) {
        Step::Silence | Step::Batch(_) => Reply::Now(Response::empty(Status::Accepted)),
        Step::Answer(answer) => Reply::Now(Response::json(Status::Ok, answer)),
        Step::Refused(fault) => refused(era, &fault),
        Step::Welcome { answer, revision } => match sessions.mint(revision, now) {
            Ok(name) => Reply::Now(Response::json(Status::Ok, answer).with("Mcp-Session-Id", &name)),
            Err(error) => {
                log::warn(&error.to_string());
                Reply::Now(Refusal::new(Status::InternalError, error.to_string()).into())
            }
        },
        Step::Cancel(id) => {
            if let Some(session) = session {
                session.cancel(&id);
            }
            Reply::Now(Response::empty(Status::Accepted))
        }
        Step::Call(call) => {
            let call = if head.whole { call.whole() } else { call };
            Reply::Later(Work { calls: vec![call], answers: Vec::new(), batch: false, session })
        }
    }
}

pub fn session_is_over() -> Reply {
    Reply::Now(Refusal::new(Status::NotFound, "session expired or invalid").into())
}

fn batch(step: Step, session: Option<Arc<Session>>) -> Reply {
    let Step::Batch(steps) = step else { return Reply::Now(Response::empty(Status::Accepted)) };
    let mut work = Work { calls: Vec::new(), answers: Vec::new(), batch: true, session };
    for step in steps {
        match step {
            Step::Silence | Step::Welcome { .. } | Step::Batch(_) => {}
            Step::Answer(answer) => work.answers.push(answer),
            Step::Refused(fault) => work.answers.push(fault.line()),
            Step::Cancel(id) => work.session.iter().for_each(|session| session.cancel(&id)),
            Step::Call(call) => work.calls.push(call),
        }
    }
    match work.calls.is_empty() && work.answers.is_empty() {
        true => Reply::Now(Response::empty(Status::Accepted)),
        false => Reply::Later(work),
    }
}

fn refused(era: Era, fault: &Fault) -> Reply {
    Reply::Now(Response::json(status(era, fault.code), fault.line()))
}

/// The handshake revisions answer what is a request at all with 200; the one after them has a status for each code.
fn status(era: Era, code: Code) -> Status {
    match (era, code) {
        (_, Code::Parse | Code::InvalidRequest | Code::UnsupportedVersion | Code::HeaderMismatch) => Status::BadRequest,
        (Era::Modern, Code::InvalidParams) => Status::BadRequest,
        (Era::Modern, Code::MethodNotFound) => Status::NotFound,
        (_, Code::MethodNotFound | Code::InvalidParams | Code::ResourceNotFound | Code::Internal) => Status::Ok,
    }
}

/// The era of a message, if the fields of the head say the same as it does.
fn era(head: &Head, message: &Message) -> Result<Era, Fault> {
    let said = head.protocol_version.as_deref();
    let (id, method, params) = match message {
        Message::Request { id, method, params } => (id, method, params),
        Message::Notification { .. } | Message::Response => {
            let modern = said == Some(MODERN);
            return match said.is_none_or(|said| REVISIONS.contains(&said)) {
                true => Ok(if modern { Era::Modern } else { Era::Legacy }),
                false => Err(rpc::unsupported(None, said.unwrap_or_default())),
            };
        }
    };
    // What cannot be read is refused by `rpc`, in the words it has for that.
    let Ok(meta) = params.meta() else { return Ok(Era::Modern) };
    let Some(version) = meta.version.and_then(string) else {
        return match said {
            Some(MODERN) if meta.version.is_none() => {
                let why = "params._meta must name io.modelcontextprotocol/protocolVersion";
                Err(Fault::new(Some(id), Code::InvalidParams, why))
            }
            Some(said) if !REVISIONS.contains(&said) => Err(rpc::unsupported(Some(id), said)),
            _ if meta.version.is_some() || meta.capabilities.is_some() || method == "server/discover" => {
                Ok(Era::Modern)
            }
            _ => Ok(Era::Legacy),
        };
    };
    let legacy = REVISIONS.contains(&version.as_ref()) && version != MODERN;
    if !legacy && !meta.capabilities.is_some_and(|raw| raw.get().starts_with('{')) {
        return Ok(Era::Modern);
    }
    match said {
        Some(said) if said == version => {}
        None if legacy => {}
        _ => return Err(mismatch(id, "MCP-Protocol-Version", said.unwrap_or_default(), &version)),
    }
    if legacy {
        return Ok(Era::Legacy);
    }
    if version == MODERN {
        same(id, "Mcp-Method", head.mcp_method.as_deref(), method)?;
        if let Some(name) = name_of(method, params) {
            same(id, "Mcp-Name", head.mcp_name.as_deref(), &name)?;
        }
    }
    Ok(Era::Modern)
}

/// What `Mcp-Name` repeats, where the message has it.
fn name_of<'l>(method: &str, params: &Params<'l>) -> Option<std::borrow::Cow<'l, str>> {
    match method {
        "tools/call" => params.name.and_then(string),
        "resources/read" => params.uri.and_then(string),
        _ => None,
    }
}

/// A value that a field cannot hold comes as base64 between marks.
fn same(id: &Id, field: &str, said: Option<&str>, meant: &str) -> Result<(), Fault> {
    let said = said.unwrap_or_default();
    let encoded = said.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let equal = match encoded {
        Some(encoded) => encoded.trim_end_matches('=') == base64(meant.as_bytes(), STANDARD),
        None => said == meant,
    };
    if equal { Ok(()) } else { Err(mismatch(id, field, said, meant)) }
}

fn mismatch(id: &Id, field: &str, said: &str, meant: &str) -> Fault {
    let shown = |text: &str| text.chars().take(100).collect::<String>();
    let message = match said {
        "" => format!("the header {field} is missing; the body says {:?}", shown(meant)),
        _ => format!("the header {field} says {:?}, the body {:?}", shown(said), shown(meant)),
    };
    Fault::new(Some(id), Code::HeaderMismatch, message)
}
