//! The flags of servers: `mcp` and `server`.

use std::net::{IpAddr, Ipv4Addr};

use argh::{ArgsInfo, FromArgs};
use kebab_lite::http::Address;

use super::seconds;
use crate::cli::hosts;

/// Serve agents (Model Context Protocol) over stdin and stdout, over HTTP on this machine, or both.
#[derive(FromArgs, ArgsInfo)]
#[argh(
    subcommand,
    name = "mcp",
    help_triggers("--help", "-h"),
    note = "A host starts it: {{\"command\": \"kebab-lite\", \"args\": [\"mcp\", \"--root\", \"/path/to/notes\"]}}"
)]
pub struct McpArgs {
    /// do not bring the index up to date in the background at the start
    #[argh(switch)]
    pub no_sync: bool,
    /// stdio, http or both (default: stdio); stdio ends with its stdin
    #[argh(option, default = "Speak::Stdio", from_str_fn(speak))]
    pub transport: Speak,
    /// address to listen on, 127.0.0.1 or ::1 (default: 127.0.0.1)
    #[argh(option, arg_name = "ip", from_str_fn(ip))]
    pub http_bind: Option<IpAddr>,
    /// port to listen on, or one of the next ten if it is taken (default: 3847; 0: any)
    #[argh(option, arg_name = "port", from_str_fn(port))]
    pub http_port: Option<u16>,
    /// seconds without a client after which an HTTP server ends itself (default: 0, never; 900 for one that --connect starts)
    #[argh(option, arg_name = "secs", from_str_fn(seconds))]
    pub idle_exit: Option<u64>,
    /// be a thin line from stdio to the server that other hosts of this root share, which is started if there is none
    #[argh(switch)]
    pub connect: bool,
    /// with --connect, whether a server may be started: true or false (default: true)
    #[argh(option, arg_name = "bool", default = "true", from_str_fn(yes_or_no))]
    pub ensure_server: bool,
    /// print the entry for a host's settings and end: claude-code, claude-desktop, codex, cursor, gemini, vscode or zed
    #[argh(option, arg_name = "host", from_str_fn(hosts::parse))]
    pub print_config: Option<hosts::Host>,
}

/// Show or end the server that hosts of this root share; status exits with 3 if there is none.
#[derive(FromArgs, ArgsInfo)]
#[argh(subcommand, name = "server", help_triggers("--help", "-h"))]
pub struct ServerArgs {
    /// status or stop
    #[argh(positional, arg_name = "action", from_str_fn(action))]
    pub action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Status,
    Stop,
}

/// How a server is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speak {
    Stdio,
    Http,
    Both,
}

impl McpArgs {
    pub fn address(&self) -> Address {
        Address { ip: self.http_bind.unwrap_or(Ipv4Addr::LOCALHOST.into()), port: self.http_port.unwrap_or(PORT) }
    }
}

/// Where clients look first.
pub const PORT: u16 = 3847;

fn speak(text: &str) -> Result<Speak, String> {
    match text {
        "stdio" => Ok(Speak::Stdio),
        "http" => Ok(Speak::Http),
        "both" => Ok(Speak::Both),
        _ => Err("expected one of: stdio, http, both".to_owned()),
    }
}

fn action(text: &str) -> Result<Action, String> {
    match text {
        "status" => Ok(Action::Status),
        "stop" => Ok(Action::Stop),
        _ => Err("expected one of: status, stop".to_owned()),
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "expected true or false".to_owned())
}

fn ip(text: &str) -> Result<IpAddr, String> {
    text.trim_matches(['[', ']']).parse().map_err(|_| "expected an address such as 127.0.0.1".to_owned())
}

fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "expected a port from 0 to 65535".to_owned())
}
