//! Where a model server is and what opens it: the address is checked, the key is kept from every output.
//!
//! Refuses: which settings hold them, and talking to the server.

use std::fmt;

/// A key of a model server. It comes from the environment only, and nothing that prints shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// None for a blank text. Refuses what no header may hold.
    pub fn parse(text: &str) -> Result<Option<Secret>, String> {
        let text = text.trim();
        match text.chars().all(|c| c.is_ascii_graphic()) {
            _ if text.is_empty() => Ok(None),
            true => Ok(Some(Secret(text.to_owned()))),
            false => Err("a key is made of printable ASCII characters without spaces".into()),
        }
    }

    /// The key itself, for the header it is sent in.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// `http://host:port/path` without a slash at its end. Credentials within it would be printed wherever it is named, a
/// query or a fragment would be lost.
pub fn address(text: &str) -> Result<String, String> {
    let text = text.trim().trim_end_matches('/');
    let expected = "expected http://host:port or https://host/path";
    let Some((_, rest)) = text.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https")) else {
        return Err(format!("no http:// or https:// address; {expected}"));
    };
    let (authority, _) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') {
        return Err("an address must not hold credentials; keys come from the environment".into());
    }
    if text.len() > 2000 || !text.chars().all(|c| c.is_ascii_graphic()) || text.contains(['?', '#', '\\', '"']) {
        return Err(format!("no plain address; {expected}"));
    }
    let (host, port) = authority.split_once(':').unwrap_or((authority, "80"));
    if host.is_empty() || host.contains(['[', ']']) || !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(format!("the host or the port is not usable; {expected}"));
    }
    Ok(text.to_owned())
}

/// True if what is sent there stays on this machine.
pub fn is_local(address: &str) -> bool {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let host = rest.split(['/', ':']).next().unwrap_or("");
    host == "localhost" || host.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("http://127.0.0.1:11434", Some("http://127.0.0.1:11434")),
            (" https://api.example.com/v1/ ", Some("https://api.example.com/v1")),
            ("localhost:11434", None),
            ("ftp://host", None),
            ("http://", None),
            ("http://:80", None),
            ("http://host:0", None),
            ("http://host:port", None),
            ("http://host:99999", None),
            ("http://user:pass@host", None),
            ("http://host/?key=x", None),
            ("http://host/#x", None),
            ("http://host/\r\nX-Header: 1", None),
            ("http://[::1]:80", None),
        ] {
            assert_eq!(address(text).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn this_machine() {
        assert!(is_local("http://localhost:1") && is_local("http://127.0.0.2/v1"));
        assert!(!is_local("http://192.168.0.1:1") && !is_local("https://localhost.example.com"));
    }

    #[test]
    fn keys_are_not_shown() {
        let key = Secret::parse(" sk-12345 \n").unwrap().unwrap();
        assert_eq!((key.reveal(), format!("{key:?}")), ("sk-12345", "Secret".into()));
        assert_eq!(Secret::parse("  "), Ok(None));
        assert!(Secret::parse("a\r\nb").is_err() && Secret::parse("a b").is_err() && Secret::parse("키").is_err());
    }
}
