//! The HTTP server's life: how it starts, who may hold it up, and how it ends.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{Http, Wire};
use crate::mcp::{PATIENCE, Server, modern, notes};

/// What an end may take where nothing is to be waited for, on a busy machine.
const SOON: Duration = Duration::from_secs(4);

fn search(http: &Http) -> String {
    let params = modern(json!({"name": "search", "arguments": {"query": "port"}}));
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    http.request(
        &[("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"), ("Mcp-Name", "search")],
        &message.to_string(),
    )
}

#[test]
fn the_ready_line_and_the_endpoint_file_say_where_it_is() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    let file = dir.data().join("server/endpoint.json");
    assert_eq!(serde_json::from_str::<Value>(&std::fs::read_to_string(&file).unwrap()).unwrap(), http.status);
    assert_eq!(http.status["schema_version"], "server_status.v1");
    assert_eq!(http.status["pid"], http.child.id());
    assert_eq!(http.status["root"], dir.root().to_str().unwrap());
    assert_eq!(http.token.len(), 43);
    assert!(!http.status.to_string().contains(&http.token));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &str| std::fs::metadata(dir.data().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("server"), mode("server/mcp.token"), mode("server/endpoint.json")), (0o700, 0o600, 0o600));
    }
    // Another server of the store shares the token and leaves the file alone.
    let other = Http::start(&dir, &[]);
    assert_eq!(other.token, http.token);
    other.works();
    assert_eq!(serde_json::from_str::<Value>(&std::fs::read_to_string(&file).unwrap()).unwrap(), http.status);
}

#[test]
#[cfg(unix)]
fn a_token_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = notes();
    drop(Http::start(&dir, &[]));
    for (path, wide, narrow) in [("server/mcp.token", 0o640, 0o600), ("server", 0o755, 0o700)] {
        let path = dir.data().join(path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(wide)).unwrap();
        let refused = dir.cmd(["mcp", "--transport", "http", "--http-port", "0", "--json"]).run().code(2);
        assert_eq!(refused.error()["code"], "config_invalid");
        assert!(refused.error()["hint"].as_str().unwrap().starts_with("Run `chmod "), "{}", refused.stderr);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(narrow)).unwrap();
    }
    std::fs::write(dir.data().join("server/mcp.token"), "short").unwrap();
    dir.cmd(["mcp", "--transport", "http", "--http-port", "0"]).run().code(2).stderr_has("it holds no token");
}

#[test]
fn a_taken_port_is_passed_over_and_eleven_end_it() {
    let dir = notes();
    // Somewhere in the range that clients' own ports are not taken from.
    let (first, taken) = (20_000..30_000)
        .step_by(20)
        .find_map(|port| {
            let listeners: Result<Vec<_>, _> =
                (port..=port + 10).map(|port| TcpListener::bind(("127.0.0.1", port))).collect();
            Some((port, listeners.ok()?))
        })
        .unwrap();
    let port = first.to_string();
    let args = ["mcp", "--transport", "http", "--no-sync", "--http-port", &port];
    dir.cmd(args).run().code(1).stderr_has(&format!("listen on 127.0.0.1:{port}"));
    let rest = taken.into_iter().take(3).collect::<Vec<_>>();
    let http = Http::run(dir.cmd(args).into_command());
    assert_eq!(http.port, first + 3);
    http.works();
    drop(rest);
}

#[test]
fn only_this_machine_may_reach_it() {
    let dir = notes();
    for ip in ["0.0.0.0", "192.0.2.1", "::"] {
        let refused = dir.cmd(["mcp", "--transport", "http", "--json", "--http-bind", ip]).run().code(2);
        assert_eq!(refused.error()["code"], "invalid_input", "{ip}");
    }
    if TcpListener::bind("[::1]:0").is_ok() {
        let http = Http::start(&dir, &["--http-bind", "::1"]);
        assert!(http.status["url"].as_str().unwrap().starts_with("http://[::1]:"));
        let mut stream = TcpStream::connect(("::1", http.port)).unwrap();
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: [::1]:{}\r\nConnection: close\r\n\r\n", http.port).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
}

#[test]
fn options_of_http_mean_nothing_on_stdio_and_are_said_to() {
    let dir = notes();
    let output = dir.cmd(["mcp", "--no-sync", "--http-port", "4000"]).stdin("").ok();
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    assert!(output.stderr.contains("mean nothing without --transport http"), "{}", output.stderr);
}

#[test]
fn a_folder_nobody_named_has_no_place_for_a_token() {
    let dir = notes();
    dir.cmd(["mcp", "--transport", "http"]).cwd(dir.home()).unset("KEBAB_STORAGE_DATA_DIR").run().code(2);
}

#[test]
fn both_serve_until_a_signal_and_the_end_of_stdin_ends_only_one() {
    let dir = notes();
    let mut command = dir.cmd(["mcp", "--transport", "both", "--http-port", "0", "--no-sync"]).into_command();
    command.stdin(Stdio::piped());
    let mut http = Http::run(command);
    let mut stdin = http.child.stdin.take().unwrap();
    stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").unwrap();
    let mut answer = [0; 36];
    http.child.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}");
    http.works();
    drop(stdin);
    thread::sleep(Duration::from_millis(200));
    http.works();
    assert_eq!(http.child.try_wait().unwrap(), None);
    drop(http.child.stdout.take());
    http.works();
    end_by_signal(&mut http, "-TERM");
    assert!(!dir.data().join("server/endpoint.json").exists());
}

#[cfg(unix)]
fn end_by_signal(http: &mut Http, signal: &str) {
    let pid = http.child.id().to_string();
    assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    assert_eq!(http.wait(SOON), Some(0), "{signal}");
}

#[cfg(not(unix))]
fn end_by_signal(http: &mut Http, _: &str) {
    let stop = format!("POST /stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n", http.token);
    assert_eq!(http.raw(stop).status, 202);
    assert_eq!(http.wait(SOON), Some(0));
}

#[test]
fn a_signal_ends_it_at_once_and_requests_under_way_are_answered() {
    let dir = notes();
    for signal in ["-TERM", "-INT"] {
        let mut http = Http::start(&dir, &[]);
        let session = http.session("2025-06-18");
        // Clients that idle and clients that dawdle hold nothing up.
        let _idle: Vec<Wire> = (0..5).map(|_| http.wire()).collect();
        let mut dawdler = http.wire();
        dawdler.send("POST /mcp HTTP/1.1\r\nHost:");
        let queries: Vec<Value> =
            (0..100).map(|place| json!({"query": format!("port store {place}"), "k": 50})).collect();
        let bulk = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "bulk_search", "arguments": {"queries": queries}}});
        let mut wire = http.wire();
        wire.send(http.request(&[("Mcp-Session-Id", &session)], &bulk.to_string()));
        thread::sleep(Duration::from_millis(30));
        end_by_signal(&mut http, signal);
        assert_eq!(wire.hear().json()["id"], 9);
    }
}

#[test]
fn a_server_nobody_uses_ends_itself_and_one_in_use_does_not() {
    let dir = notes();
    let mut http = Http::start(&dir, &["--idle-exit", "1"]);
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(2500) {
        http.works();
        thread::sleep(Duration::from_millis(200));
    }
    // Those without the token are nobody.
    let _stranger = http.wire();
    let idle = Instant::now();
    assert_eq!(http.wait(SOON), Some(0));
    assert!(idle.elapsed() > Duration::from_millis(500), "{:?}", idle.elapsed());
}

/// Connections that each drip a byte in a while, and such as stop in the middle of a body, for as long as this lives.
struct Attack {
    over: std::sync::Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<usize>>,
}

impl Attack {
    fn start(http: &Http, drips: usize) -> Attack {
        let over = std::sync::Arc::new(AtomicBool::new(false));
        let (port, token, ended) = (http.port, http.token.clone(), over.clone());
        let half = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{\"jsonrpc\""
        );
        let connect = move || TcpStream::connect(("127.0.0.1", port));
        let thread = thread::spawn(move || {
            let mut halves: Vec<TcpStream> = Vec::new();
            let mut dripping: Vec<TcpStream> = Vec::new();
            let mut sent = 0;
            while !ended.load(Ordering::Relaxed) {
                while halves.len() < 64 {
                    let Ok(mut stream) = connect() else { break };
                    stream.write_all(half.as_bytes()).ok();
                    halves.push(stream);
                }
                while dripping.len() < drips {
                    let Ok(stream) = connect() else { break };
                    dripping.push(stream);
                }
                // Whoever has been thrown out comes back.
                dripping.retain_mut(|stream| {
                    sent += 1;
                    stream.write_all(b"P").is_ok()
                });
                halves.retain_mut(|stream| {
                    stream.set_nonblocking(true).is_ok() && !matches!(stream.read(&mut [0]), Ok(0))
                });
                thread::sleep(Duration::from_millis(1000));
            }
            sent
        });
        Attack { over, thread: Some(thread) }
    }

    fn end(mut self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

#[test]
#[cfg(unix)]
fn hundreds_of_slow_clients_hold_up_nobody() {
    let dir = notes();
    let mut http = Http::start(&dir, &[]);
    http.works();
    let attack = Attack::start(&http, 400);
    thread::sleep(Duration::from_millis(500));
    let request = search(&http);
    let mut kept = http.wire();
    let (mut times, mut refused) = (Vec::new(), 0);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(5) {
        let asked = Instant::now();
        assert!(kept.send(&request));
        assert_eq!(kept.hear().status, 200);
        times.push(asked.elapsed());
        let asked = Instant::now();
        match http.raw(&request).status {
            200 => times.push(asked.elapsed()),
            _ => refused += 1,
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert!(attack.end() > 400);
    times.sort();
    let p99 = times[times.len() * 99 / 100];
    // The bound that a quiet machine holds, under a thousand, is the bench's matter.
    assert!(p99 < Duration::from_millis(500), "{p99:?} of {}", times.len());
    assert!(refused * 20 < times.len(), "{refused} of {} refused", times.len());
    #[cfg(target_os = "linux")]
    assert!(http.peak_kilobytes() < 128 << 10, "{} kB", http.peak_kilobytes());
    http.works();
    end_by_signal(&mut http, "-TERM");
}

#[test]
fn more_clients_than_there_is_room_for_are_told_so() {
    let dir = notes();
    let http = Http::start(&dir, &[]);
    // Clients that have only just been answered may stay for a while.
    let request = search(&http);
    let mut wires: Vec<Wire> = (0..64).map(|_| http.wire()).collect();
    let answered: Vec<u16> = wires
        .iter_mut()
        .map(|wire| {
            wire.send(&request);
            wire.hear().status
        })
        .collect();
    assert_eq!(answered, [200; 64]);
    let mut turned_away = 0;
    for _ in 0..20 {
        let mut wire = http.wire();
        let answer = wire.hear();
        turned_away += usize::from(answer.status == 503);
    }
    // A busy machine may have let a second pass, after which idle clients give way.
    let started = Instant::now();
    while turned_away == 0 && started.elapsed() < PATIENCE {
        wires.iter_mut().for_each(|wire| drop((wire.send(&request), wire.hear())));
        let answer = http.wire().hear();
        turned_away += usize::from(answer.status == 503);
    }
    assert!(turned_away > 0);
    drop(wires);
    thread::sleep(Duration::from_millis(100));
    http.works();
}

#[test]
fn writing_tools_are_not_there_when_nothing_may_be_written() {
    let dir = notes();
    let http = Http::start(&dir, &["--readonly"]);
    let names = |list: &Value| -> Vec<String> {
        let tools = list["result"]["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let offered = names(&http.ask_modern("tools/list", json!({})).json());
    assert!(
        offered.contains(&"search".into()) && !offered.iter().any(|name| name.starts_with("ingest")),
        "{offered:?}"
    );
    let mut server = Server::start(&dir);
    assert!(names(&server.ask("tools/list", json!({}))).contains(&"ingest_stdin".into()));
}
