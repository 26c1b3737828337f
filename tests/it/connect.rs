//! One server for many hosts: how it is found and started, what happens when it dies, and who else asks it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ask::{ANSWER, QUESTION, corpus};
use crate::ask_trouble::begun;
use crate::harness::Dir;
use crate::http::Http;
use crate::http_stream::until;
use crate::mcp::{Server, notes};
use crate::stub::{Act, Dialect, Stub};

/// Ends the shared server of a folder, whatever became of the test.
struct Shared<'d>(&'d Dir);

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.0.cmd(["server", "stop"]).run();
    }
}

fn host(dir: &Dir) -> Server {
    Server::run(dir.cmd(["mcp", "--connect", "--no-sync"]).into_command())
}

fn status(dir: &Dir) -> Value {
    dir.cmd(["server", "status", "--json"]).run().json()
}

#[track_caller]
fn finds(server: &mut Server) {
    let told = server.told("search", json!({"query": "backups"}));
    assert_eq!(told["hits"][0]["doc_path"], "guide/backup.md", "{told}");
}

/// Processes that serve this folder over HTTP.
#[cfg(target_os = "linux")]
fn servers(dir: &Dir) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let words = std::fs::read(path.join("cmdline")).ok()?;
        let serves = String::from_utf8_lossy(&words).contains("--transport\0http");
        (serves && std::fs::read_link(path.join("cwd")).ok()? == dir.root()).then_some(())
    });
    processes.count()
}

#[test]
fn hosts_that_start_at_once_share_one_server() {
    for _ in 0..2 {
        let dir = notes();
        let _shared = Shared(&dir);
        let mut hosts: Vec<Server> = (0..10).map(|_| host(&dir)).collect();
        thread::scope(|scope| {
            for host in &mut hosts {
                scope.spawn(move || {
                    host.shake_hands("2025-06-18");
                    finds(host);
                });
            }
        });
        #[cfg(target_os = "linux")]
        assert_eq!(servers(&dir), 1);
        for host in hosts {
            assert_eq!(host.end(), (vec![], Some(0)));
        }
    }
}

#[test]
fn a_host_sees_what_it_would_see_of_a_server_of_its_own() {
    let dir = notes();
    let _shared = Shared(&dir);
    let mut host = host(&dir);
    finds(&mut host);
    assert_eq!(status(&dir)["running"], true);
    host.send("\n{\n[]\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}");
    assert_eq!(host.hear()["error"]["code"], -32700);
    assert_eq!(host.hear()["error"]["code"], -32600);
    host.send("\n");
    assert_eq!(host.line(), "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}");
    let queries: Vec<Value> = (0..30).map(|place| json!({"query": format!("port {place}")})).collect();
    host.say(&json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "bulk_search", "arguments": {"queries": queries}, "_meta": {"progressToken": "p"}}}));
    let mut steps = Vec::new();
    loop {
        let message = host.hear();
        if message["id"] == 5 {
            break;
        }
        steps.push(message["params"]["progress"].as_u64().unwrap());
    }
    assert!(!steps.is_empty() && steps.is_sorted_by(|one, next| one < next), "{steps:?}");
    let long = format!("{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\",\"params\":\"{}\"}}\n", "x".repeat(5 << 20));
    host.send(long);
    assert_eq!(host.hear()["error"]["code"], -32600);
    host.shake_hands("2025-03-26");
    host.send(
        "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"},{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}]\n",
    );
    assert_eq!(host.hear().as_array().unwrap().len(), 2);
    // What is under way at the end is answered.
    for id in 0..50 {
        host.say(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "port"}}}));
    }
    let (lines, code) = host.end();
    assert_eq!((lines.len(), code), (50, Some(0)));
}

#[test]
#[cfg(unix)]
fn a_server_that_is_killed_under_load_is_replaced_and_nobody_waits_for_ever() {
    let dir = notes();
    let _shared = Shared(&dir);
    let mut hosts: Vec<Server> = (0..3).map(|_| host(&dir)).collect();
    hosts.iter_mut().for_each(finds);
    let before = status(&dir)["pid"].clone();
    thread::scope(|scope| {
        for host in &mut hosts {
            scope.spawn(move || {
                for id in 0..200 {
                    host.say(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "port"}}}));
                }
                let mut seen = [0; 200];
                for _ in 0..200 {
                    let answer = host.hear();
                    assert!(answer.get("result").is_some() || answer.get("error").is_some(), "{answer}");
                    seen[answer["id"].as_u64().unwrap() as usize] += 1;
                }
                assert_eq!(seen, [1; 200]);
                finds(host);
            });
        }
        thread::sleep(Duration::from_millis(20));
        assert!(Command::new("kill").args(["-9", &before.to_string()]).status().unwrap().success());
    });
    let after = status(&dir);
    assert!(after["running"] == true && after["pid"] != before, "{after}");
}

/// Kills the server of this folder as a power cut would, and waits until it is gone.
#[cfg(unix)]
fn kill(dir: &Dir) {
    let pid = status(dir)["pid"].clone();
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    let started = Instant::now();
    // An adapter may have started another one by now.
    while status(dir)["pid"] == pid {
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}

#[test]
#[cfg(unix)]
fn what_a_client_has_agreed_on_outlives_the_server() {
    let dir = notes();
    let _shared = Shared(&dir);
    let mut host = host(&dir);
    let call = |id: u32| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "port"}}});
    let batch = |ids: [u32; 2]| Value::from(ids.map(call).to_vec());
    // Nobody has agreed on batches yet.
    host.say(&batch([1, 2]));
    assert_eq!(host.hear()["error"]["code"], -32600);
    host.shake_hands("2025-03-26");
    for round in 0..2 {
        host.say(&batch([3, 4]));
        let answers = host.hear();
        let mut ids: Vec<u64> =
            answers.as_array().expect("an array").iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [3, 4], "{round}");
        kill(&dir);
    }
    // What another revision has not, no server has either.
    host.shake_hands("2025-06-18");
    kill(&dir);
    host.say(&batch([5, 6]));
    assert_eq!(host.hear()["error"]["code"], -32600);
    finds(&mut host);
    // The process that serves by itself, once no other may be started, has agreed on the same.
    host.shake_hands("2025-03-26");
    kill(&dir);
    let folder = dir.data().join("server");
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "").unwrap();
    host.say(&batch([7, 8]));
    assert_eq!(host.hear().as_array().map(Vec::len), Some(2));
    std::fs::remove_file(&folder).unwrap();
}

#[test]
#[cfg(unix)]
fn progress_rises_over_the_end_of_a_server() {
    let stub = Stub::start(Dialect::OpenAi, |_, _| Act::SaySlowly(ANSWER.into(), Duration::from_millis(150)));
    let dir = corpus(&stub);
    let _shared = Shared(&dir);
    let mut host = host(&dir);
    let arguments = json!({"question": QUESTION, "mode": "lexical"});
    let params = json!({"name": "ask", "arguments": arguments, "_meta": {"progressToken": "p"}});
    host.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}));
    let (mut steps, mut killed) = (Vec::new(), false);
    let answer = loop {
        let message = host.hear();
        if message["id"] == 1 {
            break message;
        }
        assert_eq!(message["params"]["progressToken"], "p");
        steps.push(message["params"]["progress"].as_u64().unwrap());
        if steps.len() == 4 && !killed {
            killed = true;
            kill(&dir);
        }
    };
    assert!(killed && stub.requests().len() == 2, "{steps:?}");
    assert_eq!(answer["result"]["structuredContent"]["answer"], ANSWER, "{answer}");
    assert!(steps.len() > 4 && steps.is_sorted_by(|one, next| one < next), "{steps:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_line_keeps_little_of_the_program_in_memory() {
    let dir = notes();
    let _shared = Shared(&dir);
    let mut host = host(&dir);
    finds(&mut host);
    // Of the program's pages that are as its file has them.
    let resident = |pid: u32| {
        let mappings = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        let amount = |mapping: &str, name: &str| -> u64 {
            let line = mapping.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
        };
        let mappings: Vec<&str> = mappings.split_inclusive("VmFlags:").collect();
        let own = mappings.into_iter().filter(|mapping| mapping.contains(env!("CARGO_BIN_EXE_kebab-lite")));
        own.map(|mapping| amount(mapping, "Rss") - amount(mapping, "Anonymous")).sum::<u64>()
    };
    let pid = host.child.id();
    let started = Instant::now();
    // Half as much again before; a build for tests lies scattered, and how much of a file the system maps at once differs.
    while resident(pid) > 9 << 9 {
        assert!(started.elapsed() < Duration::from_secs(10), "{} kB of the program are resident", resident(pid));
        thread::sleep(Duration::from_millis(50));
    }
    // Whatever it needs comes back.
    finds(&mut host);
}

#[test]
fn the_server_does_not_go_on_for_a_host_that_has_ended() {
    // It begins an answer that never ends.
    let stub = Stub::start(Dialect::OpenAi, |_, _| Act::Hang(begun(Dialect::OpenAi)));
    let dir = corpus(&stub);
    let _shared = Shared(&dir);
    let mut host = host(&dir);
    let params = json!({"name": "ask", "arguments": {"question": QUESTION, "mode": "lexical"}});
    host.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}));
    until(|| stub.requests().len() == 1);
    assert_eq!((stub.hung_up(), host.end()), (0, (vec![], Some(0))));
    until(|| stub.hung_up() == 1);
    assert_eq!(status(&dir)["running"], true);
}

#[test]
#[cfg(unix)]
fn a_client_that_reads_nothing_and_goes_is_not_waited_for() {
    let dir = Dir::indexed(&[("large.txt", &"Copies of the store are made every night.\n".repeat(10_000))]);
    let _shared = Shared(&dir);
    drop(host(&dir).end());
    for flags in [&[][..], &["--ensure-server=false"]] {
        // With a server, and by itself.
        if !flags.is_empty() {
            dir.cmd(["server", "stop"]).ok();
        }
        let fetch = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "fetch", "arguments": {"path": "large.txt", "max_tokens": 1_000_000}, "_meta": {"filled": "x".repeat(50_000)}}});
        let mut words = Command::new("yes").arg(fetch.to_string()).stdout(Stdio::piped()).spawn().unwrap();
        let mut command = dir.cmd(["mcp", "--connect", "--no-sync"].iter().chain(flags)).into_command();
        command.stdin(words.stdout.take().unwrap()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut host = command.spawn().unwrap();
        thread::sleep(Duration::from_secs(3));
        assert_eq!(host.try_wait().unwrap(), None);
        words.kill().unwrap();
        words.wait().unwrap();
        let started = Instant::now();
        while host.try_wait().unwrap().is_none() {
            if started.elapsed() > Duration::from_secs(10) {
                host.kill().unwrap();
                panic!("it waits for a client that has gone");
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(host.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn without_a_server_to_share_the_process_serves_by_itself() {
    let dir = notes();
    let run = |flags: &[&str], text: &str| {
        let mut args = vec!["mcp", "--connect", "--no-sync"];
        args.extend(flags);
        let mut command = dir.cmd(args).into_command();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "backups"}}});
        child.stdin.take().unwrap().write_all(format!("{call}\n").as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success() && stdout.contains("guide/backup.md"), "{stdout}\n{stderr}");
        assert!(stderr.contains("this process serves by itself") && stderr.contains(text), "{stderr}");
    };
    run(&["--ensure-server=false"], "there is none");
    assert_eq!(status(&dir)["running"], false);
    // A server with another configuration, or one that may not do what this host may.
    let readonly = Http::start(&dir, &["--readonly"]);
    run(&[], "it was started with --readonly");
    drop(readonly);
    let _http = Http::start(&dir, &[]);
    dir.config("[search]\ndefault_k = 3\n");
    run(&[], "it has another configuration");
}

#[test]
fn a_host_that_may_not_write_is_not_offered_to_by_a_server_that_may() {
    let dir = notes();
    let _http = Http::start(&dir, &[]);
    let mut host = Server::run(dir.cmd(["mcp", "--connect", "--readonly", "--ensure-server=false"]).into_command());
    let tools = host.ask("tools/list", json!({}))["result"]["tools"].clone();
    assert!(tools.as_array().unwrap().iter().all(|tool| !tool["name"].as_str().unwrap().starts_with("ingest")));
    assert_eq!(host.told("ingest_stdin", json!({"text": "a", "title": "b"}))["code"], "readonly_mode");
}

#[test]
fn the_server_is_shown_and_ended_by_command() {
    let dir = notes();
    let _shared = Shared(&dir);
    let none = dir.cmd(["server", "status", "--json"]).run().code(3).json();
    assert_eq!((&none["running"], &none["url"]), (&json!(false), &Value::Null));
    dir.cmd(["server", "status"]).run().code(3).stdout_has("no server of ");
    dir.cmd(["server", "stop", "--json"]).ok();
    dir.cmd(["server", "begin"]).run().code(2);
    let mut host = host(&dir);
    finds(&mut host);
    let shown = dir.cmd(["server", "status", "--json"]).ok().json();
    assert_eq!((&shown["running"], &shown["root"]), (&json!(true), &json!(dir.root())));
    dir.cmd(["server", "status"]).ok().stdout_has(shown["url"].as_str().unwrap());
    let stopped = dir.cmd(["server", "stop", "--json"]).ok().json();
    assert_eq!(stopped["running"], false);
    // The host that was connected finds out when it asks next, and has another one started.
    finds(&mut host);
    assert_eq!(status(&dir)["running"], true);
    // The file of a server that died is told from that of one that lives.
    #[cfg(unix)]
    {
        assert_eq!(host.end().1, Some(0));
        let pid = status(&dir)["pid"].to_string();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        let started = Instant::now();
        while status(&dir)["running"] == true {
            assert!(started.elapsed() < Duration::from_secs(5));
        }
        assert!(dir.data().join("server/endpoint.json").exists());
    }
}

#[test]
fn a_shared_server_ends_when_nobody_has_been_connected_for_a_while() {
    let dir = notes();
    let mut host = Server::run(dir.cmd(["mcp", "--connect", "--no-sync", "--idle-exit", "1"]).into_command());
    finds(&mut host);
    thread::sleep(Duration::from_millis(2000));
    assert_eq!(status(&dir)["running"], true);
    assert_eq!(host.end().1, Some(0));
    let started = Instant::now();
    while status(&dir)["running"] == true {
        assert!(started.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_search_of_the_command_line_says_the_same_with_a_server_and_without() {
    let dir = notes();
    let _http = Http::start(&dir, &[]);
    for args in [
        vec!["search", "backups"],
        vec!["search", "--json", "backups"],
        vec!["search", "--json", "--k", "1", "copy store port"],
        vec!["search", "--k", "1", "copy store port"],
        vec!["search", "--json", "nothing_of_this_kind"],
        vec!["search", "nothing_of_this_kind"],
        vec!["search", "--json", "--max-tokens", "1", "store"],
        vec!["search", "--json", "--k", "0", "store"],
        vec!["search", "--cursor", "x", "store"],
        vec!["search", "--snippet-chars", "30", "store"],
    ] {
        let with = dir.cmd(args.clone()).run();
        let mut alone = args.clone();
        alone.push("--no-server");
        let without = dir.cmd(alone).run();
        assert_eq!(
            (&with.stdout, &with.stderr, with.status),
            (&without.stdout, &without.stderr, without.status),
            "{args:?}"
        );
    }
    dir.cmd(["search", "--trace", "backups"]).ok().stdout_has("trace: ");
    let longest = format!("{{\"query\": \"{}\"}}", "x".repeat(5 << 20));
    let lines = [
        "{\"query\": \"backups\"}\n{ \"query\" : \"copy \\u0073tore\", \"k\": 1 }\n\n{\"query\": \"nothing_of_this_kind\"}\n",
        "{\"query\": \"x\", \"k\": 0}\n{}\n{\"query\": \"store\", \"nope\": 1}\n{\"query\": \"port\"}\n",
        "",
        "{\"query\": \"port\"}\n[]\n",
        &format!("{}{longest}\n{{\"query\": \"port\"}}\n", "{\"query\": \"port\"}\n"),
        &format!(
            "{{\"query\": \"port\", \"tag\": {}1{}}}\n{{\"query\": \"port\"}}\n",
            "[".repeat(100),
            "]".repeat(100)
        ),
    ];
    for input in lines {
        for args in [vec!["search", "--bulk"], vec!["search", "--bulk", "--json"]] {
            let with = dir.cmd(args.clone()).stdin(input).run();
            let mut alone = args.clone();
            alone.push("--no-server");
            let without = dir.cmd(alone).stdin(input).run();
            let shown = &input[..input.len().min(200)];
            assert_eq!((&with.stdout, with.status), (&without.stdout, without.status), "{args:?} {shown}");
            assert_eq!(with.stderr, without.stderr, "{args:?} {shown}");
        }
    }
}

/// Answers requests on one connection with these bodies, and returns what was asked.
fn stranger(listener: TcpListener, bodies: Vec<String>) -> thread::JoinHandle<Vec<String>> {
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        bodies
            .into_iter()
            .map(|body| {
                let mut request = Vec::new();
                let mut bytes = [0; 4096];
                while !request.ends_with(b"}}}") {
                    let count = stream.read(&mut bytes).unwrap();
                    assert!(count > 0, "{}", String::from_utf8_lossy(&request));
                    request.extend_from_slice(&bytes[..count]);
                }
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
                String::from_utf8_lossy(&request).into_owned()
            })
            .collect()
    })
}

#[test]
fn a_search_of_the_command_line_asks_the_server_there_is_and_no_stranger() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let (mut status, token) = (http.status.clone(), http.token.clone());
    drop(http);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    status["url"] = json!(format!("http://{}/mcp", listener.local_addr().unwrap()));
    let file = dir.data().join("server/endpoint.json");
    std::fs::write(&file, status.to_string()).unwrap();
    // Nobody holds the lock, so whoever listens there now is a stranger.
    assert_eq!(dir.cmd(["search", "--json", "backups"]).ok().paths(), ["guide/backup.md"]);
    let lock = File::open(dir.data().join("server/server.lock")).unwrap();
    lock.lock().unwrap();
    let found =
        |content: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"structuredContent\": {content} }} }}");
    let asked = stranger(listener.try_clone().unwrap(), vec![found("{\"told\": \"so\"}")]);
    assert_eq!(dir.cmd(["search", "--json", "--k", "2", "backups"]).ok().stdout, "{\"told\": \"so\"}\n");
    let request = asked.join().unwrap().remove(0);
    assert!(request.contains("Kebab-Whole: true\r\n") && request.contains(&token), "{request}");
    assert!(request.contains("\"arguments\":{\"k\":\"2\",\"query\":\"backups\"}"), "{request}");

    // Queries of one run are asked one after another; those that the server has no answer to are answered here.
    let item = |text: &str| found(&format!("{{\"results\":[{{\"told\": \"{text}\", \"error\": null}}]}}"));
    let bodies = vec![item("one"), "{}".into(), found("{\"results\":[{\"error\": {}}]}")];
    let asked = stranger(listener, bodies);
    let input = "{\"query\": \"a\"}\n{\"query\":  \"backups\"}\n{\"query\": \"c\"}\n{\"query\": \"port\"}\n";
    let output = dir.cmd(["search", "--bulk", "--json"]).stdin(input).ok();
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[2]), (4, "{\"told\": \"one\", \"error\": null}", "{\"error\": {}}"));
    assert!(lines[1].contains("guide/backup.md") && lines[3].contains("notes.txt"), "{lines:?}");
    assert!(output.stderr.contains("\"total\":4,\"succeeded\":3,\"failed\":1"), "{}", output.stderr);
    let asked = asked.join().unwrap();
    assert!(asked[1].contains("Mcp-Name: bulk_search\r\n"), "{}", asked[1]);
    assert!(asked[1].contains("\"arguments\":{\"queries\":[{\"query\":  \"backups\"}]}"), "{}", asked[1]);
}

#[test]
fn entries_for_hosts_hold_no_token() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    for host in ["claude-code", "codex", "cursor", "gemini", "vscode"] {
        let entry = dir.cmd(["mcp", "--transport", "http", "--print-config", host]).ok();
        assert!(entry.stdout.contains(http.status["url"].as_str().unwrap()), "{}", entry.stdout);
        assert!(!entry.stdout.contains(&http.token) && !entry.stderr.contains(&http.token));
    }
    dir.cmd(["mcp", "--connect", "--print-config", "zed"]).ok().stdout_has("\"--connect\"");
    dir.cmd(["mcp", "--print-config", "emacs"]).run().code(2).stderr_has("claude-desktop");
}
