//! The server's life: how it starts, what happens around it, and how it ends.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::Dir;
use crate::mcp::{PATIENCE, Server, notes};

/// What an end may take where nothing is to be waited for, on a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// Repeats until it holds.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what} did not come about within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn hits(server: &mut Server, query: &str) -> Vec<String> {
    let told = server.told("search", json!({"query": query}));
    let hits = told["hits"].as_array().unwrap_or_else(|| panic!("{told}"));
    hits.iter().map(|hit| hit["doc_path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_index_is_built_in_the_background_and_callers_are_told_so() {
    let dir = Dir::new();
    for place in 0..300 {
        dir.write(&format!("{place}.md"), format!("# Page {place}\n\nAbout apples, {}\n", "and pears ".repeat(300)));
    }
    let mut server = Server::run(dir.cmd(["mcp"]).into_command());
    server.shake_hands("2025-06-18");
    let first = server.told("search", json!({"query": "apples"}));
    if first["schema_version"] == "error.v1" {
        assert_eq!(first["code"], "not_indexed");
        let hint = first["hint"].as_str().unwrap();
        assert!(
            hint.starts_with("The index is being built, ") && hint.ends_with("try again in a few seconds."),
            "{hint}"
        );
    }
    until("an index", || server.told("search", json!({"query": "apples"}))["schema_version"] == "search_response.v1");
    assert_eq!(server.told("schema", json!({}))["stats"]["doc_count"], 300);
    assert_eq!(server.end().1, Some(0));
}

#[test]
fn an_outdated_index_is_brought_up_to_date_unless_nothing_may_be_written() {
    let dir = notes();
    dir.write("late.md", "# Late\n\nAbout zeppelins.\n");
    for flags in [vec!["mcp", "--no-sync"], vec!["mcp", "--readonly"]] {
        let mut server = Server::run(dir.cmd(flags).into_command());
        thread::sleep(Duration::from_millis(600));
        assert_eq!(hits(&mut server, "zeppelins"), [""; 0]);
        assert_eq!(server.end().1, Some(0));
    }
    let mut server = Server::run(dir.cmd(["mcp"]).into_command());
    until("the new file", || hits(&mut server, "zeppelins") == ["late.md"]);
}

#[test]
fn a_folder_nobody_named_is_not_indexed_and_every_call_says_what_to_write() {
    let dir = Dir::new();
    // What a host gives: no XDG variable, no configuration, the root as the working folder.
    for folder in [std::path::PathBuf::from("/"), dir.home()] {
        let mut command = dir.cmd(["mcp"]).cwd(&folder).unset("KEBAB_STORAGE_DATA_DIR").into_command();
        command.env("SHELL", "/bin/sh").env("TERM", "dumb").env("USER", "somebody").env("LOGNAME", "somebody");
        let mut server = Server::run(command);
        server.shake_hands("2025-06-18");
        let tools = server.ask("tools/list", json!({}))["result"]["tools"].clone();
        assert!(tools.as_array().unwrap().len() >= 4);
        for tool in tools.as_array().unwrap() {
            let told = server.told(tool["name"].as_str().unwrap(), json!({}));
            assert_eq!(told["code"], "config_invalid");
            assert!(told["hint"].as_str().unwrap().contains("root = \"/path/to/notes\""), "{told}");
        }
        let uri = "kebab://doc/00000000000000000000000000000000";
        assert_eq!(server.ask("resources/read", json!({"uri": uri}))["error"]["data"]["code"], "config_invalid");
        assert_eq!(server.end(), (vec![], Some(0)));
    }
    assert_eq!(std::fs::read_dir(dir.home()).unwrap().count(), 0);
}

#[test]
fn a_store_may_appear_vanish_and_be_rebuilt_under_a_running_server() {
    let dir = Dir::new();
    dir.write("a.md", "# A\n\nAbout apples.\n");
    let mut server = Server::start(&dir);
    assert_eq!(server.told("search", json!({"query": "apples"}))["code"], "not_indexed");
    dir.cmd(["ingest"]).ok();
    assert_eq!(hits(&mut server, "apples"), ["a.md"]);
    dir.write("b.md", "# B\n\nMore about apples.\n");
    dir.cmd(["ingest"]).ok();
    assert_eq!(hits(&mut server, "apples").len(), 2);
    std::fs::remove_dir_all(dir.data()).unwrap();
    assert_eq!(server.told("search", json!({"query": "apples"}))["code"], "not_indexed");
    std::fs::remove_file(dir.root().join("a.md")).unwrap();
    dir.cmd(["ingest"]).ok();
    assert_eq!(hits(&mut server, "apples"), ["b.md"]);
    assert_eq!(server.end().1, Some(0));
}

#[test]
fn a_store_that_another_process_is_only_just_making_is_none() {
    let dir = Dir::new();
    dir.write("a.md", "# A\n\nAbout apples.\n");
    std::fs::write(dir.data().join("kebab.sqlite"), "").unwrap();
    let mut server = Server::start(&dir);
    assert_eq!(server.told("search", json!({"query": "apples"}))["code"], "not_indexed");
    dir.cmd(["ingest"]).ok();
    assert_eq!(hits(&mut server, "apples"), ["a.md"]);
}

#[test]
fn four_servers_read_one_store_while_a_fifth_process_writes() {
    let dir = notes();
    let mut servers: Vec<Server> = (0..4).map(|_| Server::run(dir.cmd(["mcp"]).into_command())).collect();
    for round in 0..8 {
        dir.write(&format!("round{round}.md"), format!("# Round\n\nzeppelin number{round}\n"));
        thread::scope(|scope| {
            let writer = scope.spawn(|| dir.cmd(["ingest", "--wait", "20"]).ok());
            for server in &mut servers {
                scope.spawn(move || {
                    for _ in 0..20 {
                        let found = hits(server, "zeppelin").len();
                        assert!(found == round || found == round + 1, "{found} of {round}");
                        assert_eq!(hits(server, "backups"), ["guide/backup.md"]);
                    }
                });
            }
            drop(writer.join());
        });
        for server in &mut servers {
            assert_eq!(hits(server, &format!("number{round}")), [format!("round{round}.md")]);
        }
    }
    for server in servers {
        assert_eq!(server.end(), (vec![], Some(0)));
    }
}

#[test]
fn the_end_of_stdin_is_the_end() {
    let dir = notes();
    for flags in [vec!["mcp", "--no-sync"], vec!["mcp"]] {
        let mut server = Server::run(dir.cmd(flags).into_command());
        server.shake_hands("2025-06-18");
        server.close_stdin();
        assert_eq!(server.wait(SOON), Some(0));
    }
}

#[test]
fn a_client_that_never_reads_holds_up_neither_requests_nor_the_end() {
    let dir = notes();
    let mut command = dir.cmd(["mcp", "--no-sync"]).into_command();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let search = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "port"}}});
    // Far more answers than a pipe holds; none of these writes may block for ever.
    let lines = format!("{search}\n{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/list\"}}\n").repeat(300);
    stdin.write_all(lines.as_bytes()).unwrap();
    drop(stdin);
    let started = Instant::now();
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        assert!(started.elapsed() < SOON, "the server waits for a client that does not read");
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(code, Some(0));
}

#[test]
fn a_full_stderr_holds_up_nothing() {
    let dir = notes();
    // Every unknown key of the configuration's table for other programs is a warning; together they fill a pipe.
    let keys: String = (0..3000)
        .map(|place| format!("[[workspace.sources]]\nid = \"s{place}\"\nroot = \"/nowhere/{place}\"\n"))
        .collect();
    let root = dir.root();
    dir.config(&format!("[workspace]\nroot = {:?}\n{keys}", root.to_str().unwrap()));
    let mut command = dir.cmd(["mcp", "--no-sync"]).into_command();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    for id in 0..200 {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "port"}}});
        stdin.write_all(format!("{call}\n").as_bytes()).unwrap();
        line.clear();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["id"], id);
    }
    drop(stdin);
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < SOON, "the server waits for somebody to read stderr");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_broken_stdout_ends_the_server() {
    let dir = notes();
    let mut command = dir.cmd(["mcp", "--no-sync"]).into_command();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < SOON, "the server outlives its client");
        thread::sleep(Duration::from_millis(5));
    }
    drop(stdin);
}

#[test]
#[cfg(unix)]
fn a_signal_ends_it_at_once() {
    let dir = notes();
    for (signal, flags) in
        [("-TERM", vec!["mcp", "--no-sync"]), ("-INT", vec!["mcp", "--no-sync"]), ("-TERM", vec!["mcp"])]
    {
        let mut server = Server::run(dir.cmd(flags).into_command());
        server.shake_hands("2025-06-18");
        let pid = server.child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
        assert_eq!(server.wait(SOON), Some(0), "{signal}");
    }
}
