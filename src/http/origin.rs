//! Which hosts and origins are this machine's own. A page from anywhere else that reaches the port through a browser
//! names where it is from, and is refused before anything else is looked at.

/// `http://localhost:3000` and its like: a scheme of the web, one of our names, perhaps a port, nothing else.
pub fn allows(origin: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(is_local)
}

/// A host with an optional port, as the `Host` field has it. Names are compared as browsers write them, in lower case.
pub fn is_local(authority: &str) -> bool {
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|name| match authority.strip_prefix(name) {
        Some("") => true,
        Some(rest) => rest.strip_prefix(':').is_some_and(is_port),
        None => false,
    })
}

fn is_port(text: &str) -> bool {
    text.len() <= 5
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && text.parse::<u16>().is_ok_and(|port| port > 0 && !text.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_allowed() {
        for good in [
            "http://localhost",
            "http://localhost:3847",
            "https://localhost:1",
            "http://127.0.0.1:65535",
            "http://[::1]:3847",
            "https://[::1]",
        ] {
            assert!(allows(good), "{good}");
        }
        for forged in [
            "null",
            "",
            "localhost",
            "http://",
            "http://evil.example",
            "http://localhost.evil.example",
            "http://evil.localhost",
            "http://evillocalhost",
            "http://127.0.0.1.evil.example",
            "http://localhost@evil.example",
            "http://localhost:80@evil.example",
            "http://evil.example#localhost",
            "http://localhost:",
            "http://localhost:0",
            "http://localhost:080",
            "http://localhost:65536",
            "http://localhost:+80",
            "http://localhost:80/",
            "http://localhost/",
            "http://localhost.",
            "http://LOCALHOST",
            "HTTP://localhost",
            "http://Localhost:3847",
            "file://localhost",
            "chrome-extension://localhost",
            "http://[0:0:0:0:0:0:0:1]",
            "http://[::1%25lo]",
            "http://[::ffff:127.0.0.1]",
            "http://::1",
            "http://[::1",
            "http://127.1",
            "http://2130706433",
            "http://0.0.0.0",
            "http://localhost, http://evil.example",
            "http://localhost http://evil.example",
            " http://localhost",
            "http://localhost\u{0}",
        ] {
            assert!(!allows(forged), "{forged}");
            let host = forged.trim_start_matches("http://");
            assert!(!is_local(host) || host == "localhost", "{host}");
        }
    }
}
