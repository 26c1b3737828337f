//! What a head asks for, once it is known that it may: Host and Origin first, then the token, then the rest. Pure.

use super::head::{Head, Method, bad, names};
use super::origin;
use super::response::{ALLOWED, Refusal, Response, Status};
use crate::rendezvous::Token;
use crate::rpc::REVISIONS;

#[derive(Debug, PartialEq)]
pub enum Route {
    /// Is anybody there? Needs no token and tells nothing else.
    Health,
    /// A browser asks what it may send.
    Preflight,
    /// A message in the body.
    Message,
    /// The session of this name is over.
    EndSession(String),
    /// The connection becomes one of lines, as stdin and stdout are.
    Lines,
    /// The server is to end.
    Stop,
}

/// The protocol that a connection of lines is upgraded to; both ends are the same version of this program.
pub const LINES: &str = concat!("kebab-lines/", env!("CARGO_PKG_VERSION"));

pub fn route(head: &Head, token: &Token) -> Result<Route, Refusal> {
    let refuse = |status, reason: &str| Err(Refusal::new(status, reason));
    match &head.host {
        None => return Err(bad("Host is missing")),
        Some(host) if !origin::is_local(host) => return refuse(Status::Forbidden, "host not allowed"),
        Some(_) => {}
    }
    if head.origin.as_ref().is_some_and(|origin| !origin::allows(origin)) {
        return refuse(Status::Forbidden, "origin not allowed");
    }
    match (head.path.as_str(), head.method) {
        ("/healthz", Method::Get | Method::Head) => return Ok(Route::Health),
        ("/mcp", Method::Options) => return Ok(Route::Preflight),
        ("/mcp" | "/lines" | "/stop", _) => {}
        ("/healthz", _) => return refuse(Status::MethodNotAllowed, "method not allowed"),
        _ => return refuse(Status::NotFound, "not found"),
    }
    if !head.authorization.as_deref().and_then(bearer).is_some_and(|given| token.matches(given)) {
        return refuse(Status::Unauthorized, "invalid or missing token");
    }
    match (head.path.as_str(), head.method) {
        ("/mcp", Method::Post) => {
            require_json(head)?;
            require_revision(head)?;
            Ok(Route::Message)
        }
        ("/mcp", Method::Delete) => match &head.session {
            Some(session) => Ok(Route::EndSession(session.clone())),
            None => Err(bad("missing Mcp-Session-Id header")),
        },
        ("/lines", Method::Get) if head.upgrade.as_deref() == Some(LINES) => Ok(Route::Lines),
        ("/lines", Method::Get) => Err(bad(&format!("this server upgrades to {LINES}"))),
        ("/stop", Method::Post) => Ok(Route::Stop),
        _ => refuse(Status::MethodNotAllowed, "method not allowed"),
    }
}

/// True if the client reads a stream of events.
pub fn takes_events(head: &Head) -> bool {
    head.accept.as_ref().is_none_or(|accept| {
        accept.split(',').any(|range| {
            let range = range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            matches!(range.as_str(), "text/event-stream" | "text/*" | "*/*")
        })
    })
}

/// What a browser may send, for as long as a day.
pub fn preflight() -> Response {
    Response::empty(Status::NoContent)
        .with("Access-Control-Allow-Methods", ALLOWED)
        .with(
            "Access-Control-Allow-Headers",
            "Authorization, Content-Type, Accept, Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name",
        )
        .with("Access-Control-Max-Age", "86400")
        .with("Allow", ALLOWED)
}

fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim_start())
}

fn require_json(head: &Head) -> Result<(), Refusal> {
    let kind = head.content_type.as_deref().and_then(|kind| kind.split(';').next()).unwrap_or_default();
    match names(kind, "application/json") {
        true => Ok(()),
        false => Err(Refusal::new(Status::UnsupportedMediaType, "expected application/json")),
    }
}

/// A revision that is no date at all is refused here; one that is not served gets an answer that names those that are.
fn require_revision(head: &Head) -> Result<(), Refusal> {
    match &head.protocol_version {
        Some(version) if !REVISIONS.contains(&version.as_str()) && version.len() > 64 => {
            Err(bad("bad MCP-Protocol-Version header"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(method: Method, path: &str) -> Head {
        Head { method, path: path.into(), host: Some("localhost:3847".into()), ..Head::default() }
    }

    fn status(head: &Head) -> Status {
        route(head, &Token::of("secret")).unwrap_err().status
    }

    #[test]
    fn each_check_comes_before_the_next() {
        let mut asked = head(Method::Post, "/mcp");
        asked.host = Some("evil.example".into());
        asked.origin = Some("http://evil.example".into());
        assert_eq!(status(&asked), Status::Forbidden);
        asked.host = Some("localhost".into());
        assert_eq!(route(&asked, &Token::of("secret")).unwrap_err().reason, "origin not allowed");
        asked.origin = Some("http://localhost".into());
        for wrong in [None, Some("secret"), Some("Basic secret"), Some("Bearer wrong"), Some("Bearer "), Some("Bearer")]
        {
            asked.authorization = wrong.map(Into::into);
            assert_eq!(status(&asked), Status::Unauthorized, "{wrong:?}");
        }
        asked.authorization = Some("bearer secret".into());
        for wrong in [None, Some("text/plain"), Some("application/jsonx"), Some("text/plain; application/json")] {
            asked.content_type = wrong.map(Into::into);
            assert_eq!(status(&asked), Status::UnsupportedMediaType, "{wrong:?}");
        }
        asked.content_type = Some("Application/JSON; charset=utf-8".into());
        assert_eq!(route(&asked, &Token::of("secret")), Ok(Route::Message));
    }

    #[test]
    fn what_needs_no_token_is_little() {
        let token = Token::of("secret");
        assert_eq!(route(&head(Method::Get, "/healthz"), &token), Ok(Route::Health));
        assert_eq!(route(&head(Method::Options, "/mcp"), &token), Ok(Route::Preflight));
        for (method, path) in
            [(Method::Get, "/mcp"), (Method::Get, "/lines"), (Method::Post, "/stop"), (Method::Delete, "/mcp")]
        {
            assert_eq!(status(&head(method, path)), Status::Unauthorized, "{path}");
        }
        assert_eq!(status(&head(Method::Get, "/.well-known/oauth-protected-resource")), Status::NotFound);
        assert_eq!(status(&head(Method::Post, "/healthz")), Status::MethodNotAllowed);
        let authorization = Some("Bearer secret".to_owned());
        for (method, path, expected) in [
            (Method::Get, "/mcp", Status::MethodNotAllowed),
            (Method::Head, "/mcp", Status::MethodNotAllowed),
            (Method::Other, "/mcp", Status::MethodNotAllowed),
            (Method::Delete, "/mcp", Status::BadRequest),
            (Method::Get, "/lines", Status::BadRequest),
            (Method::Get, "/stop", Status::MethodNotAllowed),
        ] {
            assert_eq!(
                status(&Head { authorization: authorization.clone(), ..head(method, path) }),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn events_are_sent_to_those_that_take_them() {
        for (accept, expected) in [
            (None, true),
            (Some("*/*"), true),
            (Some("application/json"), false),
            (Some("application/json, Text/Event-Stream;q=0.5"), true),
        ] {
            assert_eq!(
                takes_events(&Head { accept: accept.map(Into::into), ..Head::default() }),
                expected,
                "{accept:?}"
            );
        }
    }
}
