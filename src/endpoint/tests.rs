use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::json;

use super::*;

/// A server that answers each connection with the next of these, then closes it. Bytes of the requests come back.
fn server(answers: Vec<Vec<u8>>) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (send, requests) = channel();
    thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            send.send(request(&mut stream)).ok();
            stream.write_all(&answer).ok();
        }
    });
    (address, requests)
}

/// The head and the body that its length announces.
fn request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap_or("0");
            if body.len() >= length.parse::<usize>().unwrap() {
                return text;
            }
        }
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "the request broke off");
        bytes.extend_from_slice(&buffer[..len]);
    }
}

fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len()).into_bytes()
}

fn endpoint(address: &str) -> Endpoint {
    let key = Secret::parse("sk-secret").unwrap();
    Endpoint::new(Api::Ollama, address, "llama", key, "models.llm")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn post(answers: Vec<Vec<u8>>) -> Result<Value> {
    let (address, _requests) = server(answers);
    endpoint(&address).post_json("/api/chat", &json!({}), soon(), &AtomicBool::new(false))
}

#[test]
fn a_request_and_its_answer() {
    let (address, requests) = server(vec![answer("200 OK", "", r#"{"a": "가"}"#)]);
    let body = json!({"model": "llama", "text": "나"});
    let value = endpoint(&address).post_json("/api/chat", &body, soon(), &AtomicBool::new(false)).unwrap();
    assert_eq!(value, json!({"a": "가"}));
    let request = requests.recv().unwrap();
    assert!(request.starts_with("POST /api/chat HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("Authorization: Bearer sk-secret\r\n"), "{request}");
    assert_eq!(serde_json::from_str::<Value>(request.split_once("\r\n\r\n").unwrap().1).unwrap(), body);
}

#[test]
fn failures_have_names() {
    let table: &[(&str, &str, &str, &str)] = &[
        ("401 Unauthorized", r#"{"error": "bad key sk-secret"}"#, "model_unreachable", "401: bad key ***"),
        ("404 Not Found", r#"{"error": "model 'llama' not found"}"#, "model_not_pulled", "model 'llama' not found"),
        ("404 Not Found", r#"{"error": {"message": "The model `x` does not exist."}}"#, "model_not_pulled", "exist"),
        ("404 Not Found", "<html>", "model_unreachable", "404, with a page of HTML"),
        ("500 Internal", r#"{"detail": "out of\nmemory"}"#, "model_unreachable", "500: out of memory"),
        ("302 Found", "", "model_unreachable", "redirects"),
        ("200 OK", "<!doctype html>", "model_unreachable", "HTML"),
        ("200 OK", "", "model_unreachable", "nothing"),
        ("200 OK", "{\"a\": ", "model_unreachable", "broke off"),
        ("200 OK", "{\"a\": \u{1}", "model_unreachable", "not JSON"),
    ];
    for (status, body, code, cause) in table {
        let error = post(vec![answer(status, "Location: http://127.0.0.1:1/\r\n", body)]).unwrap_err();
        assert_eq!(error.code(), *code, "{status} {body}");
        assert!(error.to_string().contains(cause), "{status} {body}: {error}");
        assert!(error.hint().is_some_and(|hint| !hint.contains("sk-secret")), "{error}");
    }
}

#[test]
fn connections_that_come_to_nothing() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let down = endpoint(&format!("http://127.0.0.1:{port}"));
    let error = down.post_json("/api/chat", &json!({}), soon(), &AtomicBool::new(false)).unwrap_err();
    assert_eq!((error.code(), error.hint().unwrap().contains("Start")), ("model_unreachable", true));
    for (bytes, cause) in [
        (&b"SSH-2.0-OpenSSH_9.6\r\n"[..], "does not speak HTTP"),
        (b"", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"a\": 1", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}", "invalid digit"),
    ] {
        let error = post(vec![bytes.to_vec()]).unwrap_err();
        assert_eq!(error.code(), "model_unreachable", "{error}");
        assert!(error.to_string().contains(cause), "{error}");
    }
}

#[test]
fn a_request_turned_away_unworked_is_sent_again() {
    let busy =
        |wait: &str| answer("429 Too Many Requests", &format!("Retry-After: {wait}\r\n"), r#"{"error": "slow"}"#);
    let fine = answer("200 OK", "", "{}");
    assert_eq!(post(vec![busy("0"), busy("0"), fine.clone()]).unwrap(), json!({}));
    let error = post(vec![busy("0"), busy("0"), busy("0"), fine.clone()]).unwrap_err();
    assert_eq!(error.code(), "model_unreachable");
    let error = post(vec![busy("3600"), fine.clone()]).unwrap_err();
    assert_eq!(error.hint().unwrap(), "Try again in 3600 seconds.");
    // It may have been worked on: once only.
    assert_eq!(post(vec![answer("500 Oops", "", ""), fine]).unwrap_err().code(), "model_unreachable");
}

#[test]
fn a_deadline_holds_to_the_fraction_of_a_second() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = endpoint(&format!("http://{}", listener.local_addr().unwrap()));
    let started = Instant::now();
    let deadline = started + Duration::from_millis(150);
    let error = silent.post_json("/api/chat", &json!({}), deadline, &AtomicBool::new(false)).unwrap_err();
    assert_eq!(error.code(), "timeout");
    assert!((150..900).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
}

#[test]
fn a_stop_ends_the_wait_and_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        // It streams until its client is gone.
        let began = Instant::now();
        while stream.write_all(b"{\"token\": 1}\n").is_ok() {
            thread::sleep(Duration::from_millis(10));
            assert!(began.elapsed() < Duration::from_secs(8), "nobody hung up");
        }
    });
    let mut lines = 0;
    let outcome = endpoint(&address).post_lines("/api/chat", &json!({}), soon(), &stop, &mut |_| {
        lines += 1;
        flag.store(lines == 3, Ordering::Relaxed);
        Ok(true)
    });
    assert!(matches!(outcome, Err(Error::Cancelled)), "{outcome:?}");
    assert!(lines <= 12, "{lines}");
    server.join().unwrap();
}

/// A model reads its prompt before it says anything; llama.cpp and Ollama stop reading when their client is gone.
#[test]
fn a_server_that_says_nothing_yet_is_left_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (told, heard) = channel();
    let server = thread::spawn(move || {
        for begun in [&b""[..], b"HTTP/1.1 200 OK\r\n\r\n{\"token\": 1}\n"] {
            let (mut stream, _) = listener.accept().unwrap();
            request(&mut stream);
            stream.write_all(begun).unwrap();
            told.send(()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
            // An end or a reset, not a time-out.
            match stream.read(&mut [0; 16]) {
                Ok(len) => assert_eq!(len, 0),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
            }
        }
    });
    let endpoint = endpoint(&address);
    for _ in 0..2 {
        let stop = AtomicBool::new(false);
        let ask = || endpoint.post_lines("/api/chat", &json!({}), soon(), &stop, &mut |_| Ok(true));
        thread::scope(|scope| {
            let waiting = scope.spawn(ask);
            heard.recv_timeout(Duration::from_secs(8)).unwrap();
            stop.store(true, Ordering::Relaxed);
            assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled)));
        });
    }
    server.join().unwrap();
}

#[test]
fn places_of_requests_come_back() {
    let before = TAKEN.load(Ordering::Relaxed);
    let (address, _requests) = server((0..2 * MAX_THREADS).map(|_| answer("200 OK", "", "{}")).collect());
    for _ in 0..2 * MAX_THREADS {
        endpoint(&address).post_json("/api/chat", &json!({}), soon(), &AtomicBool::new(false)).unwrap();
    }
    let until = soon();
    while TAKEN.load(Ordering::Relaxed) > before + MAX_THREADS / 2 {
        assert!(Instant::now() < until, "{} requests hang", TAKEN.load(Ordering::Relaxed));
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn hosts_and_ports() {
    for (address, host, port) in [
        ("http://127.0.0.1:11434", "127.0.0.1", 11434),
        ("http://example.com/v1", "example.com", 80),
        ("https://api.example.com/v1", "api.example.com", 443),
        ("https://api.example.com:8443", "api.example.com", 8443),
    ] {
        assert_eq!(endpoint(address).host(), (host.to_owned(), port));
    }
}

#[test]
fn lines_are_whole_however_they_arrive() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        // A character in three packets, a line of no UTF-8, and no line end at the end.
        for bytes in [&b"\xEA"[..], b"\xB0", b"\x80 one\r\n\xFFtwo\n", b"three"] {
            stream.write_all(bytes).unwrap();
            stream.flush().unwrap();
            thread::sleep(Duration::from_millis(10));
        }
    });
    let mut lines = Vec::new();
    let take = &mut |line: &str| {
        lines.push(line.to_owned());
        Ok(true)
    };
    endpoint(&address).post_lines("/api/chat", &json!({}), soon(), &AtomicBool::new(false), take).unwrap();
    assert_eq!(lines, ["가 one", "\u{FFFD}two", "three"]);
}

#[test]
fn endless_answers_are_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            request(&mut stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            while stream.write_all(&[b'x'; 65536]).is_ok() {}
        }
    });
    let (endpoint, never) = (endpoint(&address), AtomicBool::new(false));
    let line = endpoint.post_lines("/api/chat", &json!({}), soon(), &never, &mut |_| Ok(true)).unwrap_err();
    let body = endpoint.post_json("/api/chat", &json!({}), soon(), &never).unwrap_err();
    for error in [line, body] {
        assert!(error.to_string().contains("does not end"), "{error}");
    }
}

#[test]
fn a_server_without_tls_is_told_from_one_that_is_down() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let hello = stream.read(&mut [0; 512]).unwrap();
        assert!(hello > 100, "{hello} bytes of a client hello");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error = endpoint(&address).get_json("/api/tags", soon(), &AtomicBool::new(false)).unwrap_err();
    assert_eq!(error.code(), "model_unreachable");
    assert!(error.to_string().contains("corrupt message"), "{error}");
}

#[test]
fn paths_follow_the_address() {
    for (api, address, path, url) in [
        (Api::Ollama, "http://h:11434", "/api/chat", "http://h:11434/api/chat"),
        (Api::Ollama, "http://h/api/", "/api/chat", "http://h/api/chat"),
        (Api::Ollama, "http://h/ollama", "/api/chat", "http://h/ollama/api/chat"),
        (Api::OpenAi, "http://h:8080", "/v1/chat/completions", "http://h:8080/v1/chat/completions"),
        (Api::OpenAi, "https://h/v1", "/v1/chat/completions", "https://h/v1/chat/completions"),
        (Api::OpenAi, "https://h/v1beta/openai", "/v1/models", "https://h/v1beta/openai/models"),
    ] {
        assert_eq!(Endpoint::new(api, address, "m", None, "models.llm").url(path), url);
    }
}

#[test]
fn keys_stay_out_of_what_is_printed() {
    assert!(!format!("{:?}", endpoint("http://127.0.0.1:1")).contains("sk-secret"));
}
