//! What an agent's host wants to read in its settings, ready to paste. A token stands in none of it: hosts read its file,
//! or a variable that is set from its file.

use kebab_lite::error::{Error, Result};
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    ClaudeCode,
    ClaudeDesktop,
    Codex,
    Cursor,
    Gemini,
    VsCode,
    Zed,
}

pub const HOSTS: &[(&str, Host)] = &[
    ("claude-code", Host::ClaudeCode),
    ("claude-desktop", Host::ClaudeDesktop),
    ("codex", Host::Codex),
    ("cursor", Host::Cursor),
    ("gemini", Host::Gemini),
    ("vscode", Host::VsCode),
    ("zed", Host::Zed),
];

/// An entry, and what else is to be done.
#[derive(Debug)]
pub struct Entry {
    pub text: String,
    pub note: Option<String>,
}

pub fn parse(text: &str) -> Result<Host, String> {
    let names: Vec<&str> = HOSTS.iter().map(|(name, _)| *name).collect();
    // What its users call it, and its command.
    let text = if text == "claude" { "claude-code" } else { text };
    let found = HOSTS.iter().find(|(name, _)| *name == text).map(|(_, host)| *host);
    found.ok_or_else(|| format!("expected one of: {}", names.join(", ")))
}

/// For a host that starts the program.
pub fn of_process(host: Host, program: &str, root: Option<&str>, connect: bool) -> Entry {
    let args: Vec<&str> = ["mcp"]
        .into_iter()
        .chain(connect.then_some("--connect"))
        .chain(root.into_iter().flat_map(|root| ["--root", root]))
        .collect();
    let text = match host {
        Host::Codex => format!("[mcp_servers.kebab]\ncommand = {}\nargs = {}\n", json!(program), json!(args)),
        Host::VsCode => named("servers", json!({"type": "stdio", "command": program, "args": args})),
        Host::Zed => named("context_servers", json!({"source": "custom", "command": program, "args": args})),
        Host::ClaudeCode => named("mcpServers", json!({"type": "stdio", "command": program, "args": args})),
        Host::ClaudeDesktop | Host::Cursor | Host::Gemini => {
            named("mcpServers", json!({"command": program, "args": args}))
        }
    };
    let note = (root.is_none() && host == Host::ClaudeDesktop)
        .then(|| "this host starts servers in no folder of yours: add --root DIR to see it in the entry".into());
    Entry { text, note }
}

/// For a host that reaches a running server.
pub fn of_url(host: Host, url: &str, token_file: &str) -> Result<Entry> {
    let bearer = |variable: &str| json!({"Authorization": format!("Bearer {variable}")});
    let (text, reads_variable) = match host {
        Host::ClaudeCode => {
            let helper = format!(r#"printf '{{"Authorization":"Bearer %s"}}' "$(cat {})""#, quoted(token_file));
            (named("mcpServers", json!({"type": "http", "url": url, "headersHelper": helper})), false)
        }
        Host::Codex => {
            (format!("[mcp_servers.kebab]\nurl = {}\nbearer_token_env_var = \"{VARIABLE}\"\n", json!(url)), true)
        }
        Host::Cursor => {
            (named("mcpServers", json!({"url": url, "headers": bearer(&format!("${{env:{VARIABLE}}}"))})), true)
        }
        Host::Gemini => {
            (named("mcpServers", json!({"httpUrl": url, "headers": bearer(&format!("${VARIABLE}"))})), true)
        }
        Host::VsCode => {
            let entry = json!({"type": "http", "url": url, "headers": bearer(&format!("${{env:{VARIABLE}}}"))});
            (named("servers", entry), true)
        }
        Host::ClaudeDesktop | Host::Zed => {
            let hint = "Print its entry with --connect in place of --transport http: it shares the server as well.";
            return Err(Error::input_hint("print_config", "this host cannot keep a token out of its settings", hint));
        }
    };
    let note = reads_variable.then(|| format!("start the host with {VARIABLE}=\"$(cat {})\"", quoted(token_file)));
    Ok(Entry { text, note })
}

const VARIABLE: &str = "KEBAB_MCP_TOKEN";

fn named(table: &str, entry: Value) -> String {
    format!("{:#}\n", json!({table: {"kebab": entry}}))
}

/// As a shell takes it.
fn quoted(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_gets_an_entry_without_a_token() {
        for (name, host) in HOSTS {
            let entry = of_process(*host, "/bin/kebab \"lite\"", Some("/home/a b"), true).text;
            assert!(entry.contains("--connect") && entry.contains("/home/a b"), "{name}: {entry}");
            match host {
                Host::Codex => drop(toml_of(&entry)),
                _ => drop(serde_json::from_str::<Value>(&entry).unwrap()),
            }
            match of_url(*host, "http://127.0.0.1:3847/mcp", "/data/it's/mcp.token") {
                Ok(entry) => {
                    assert!(entry.text.contains("http://127.0.0.1:3847/mcp"), "{name}");
                    assert!(entry.text.contains("mcp.token") != entry.note.is_some(), "{name}: {entry:?}");
                }
                Err(error) => assert!(error.hint().unwrap().contains("--connect"), "{name}"),
            }
        }
        assert_eq!((parse("zed"), parse("claude")), (Ok(Host::Zed), Ok(Host::ClaudeCode)));
        assert!(parse("emacs").unwrap_err().contains("claude-code, claude-desktop, codex"));
    }

    fn toml_of(text: &str) -> toml::Table {
        text.parse().unwrap()
    }
}
