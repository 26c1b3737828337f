use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use super::*;

/// A server that answers each request by what `answer` makes of its body and its number, and hands the bodies on.
fn server(answer: impl Fn(&Value, usize) -> Vec<u8> + Send + 'static) -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (send, bodies) = channel();
    thread::spawn(move || {
        for (count, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let body = body(&mut stream);
            stream.write_all(&answer(&body, count)).ok();
            if send.send(body).is_err() {
                return;
            }
        }
    });
    (address, bodies)
}

fn body(stream: &mut TcpStream) -> Value {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap_or("0");
            if body.len() >= length.parse::<usize>().unwrap() {
                return serde_json::from_str(body).unwrap();
            }
        }
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "the request broke off");
        bytes.extend_from_slice(&buffer[..len]);
    }
}

fn ok(body: &Value) -> Vec<u8> {
    status("200 OK", &body.to_string())
}

fn status(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Each text's vector tells its length in bytes.
fn vectors(body: &Value) -> Vec<Value> {
    let texts = body["input"].as_array().unwrap();
    texts.iter().map(|text| json!([text.as_str().unwrap().len(), 100.0])).collect()
}

fn ollama(body: &Value) -> Vec<u8> {
    ok(&json!({"embeddings": vectors(body)}))
}

fn open(api: EmbeddingApi, address: &str, wanted: Option<usize>) -> Result<Remote> {
    let key = Secret::parse("sk-secret").unwrap();
    Remote::open(api, address, "some-model", key, wanted, Duration::from_secs(10))
}

/// The length a vector tells of.
fn length(vector: &[f32]) -> usize {
    (vector[0] / vector[1] * 100.0).round() as usize
}

fn texts(lengths: &[usize]) -> Vec<String> {
    lengths.iter().map(|length| "x".repeat(*length)).collect()
}

#[test]
fn ollama_is_asked_in_batches_and_its_vectors_are_made_unit() {
    let (address, bodies) = server(|body, _| ollama(body));
    let remote = open(EmbeddingApi::Ollama, &address, None).unwrap();
    assert_eq!(remote.dimensions, 2);
    let asked = bodies.recv().unwrap();
    assert_eq!(asked, json!({"model": "some-model", "input": ["dimensions"], "truncate": false}));

    let lengths: Vec<usize> = (1..=40).collect();
    let found = remote.passages(&texts(&lengths), &AtomicBool::new(false)).unwrap();
    let told: Vec<usize> = found.iter().map(|windows| length(&windows[0])).collect();
    assert_eq!(told, lengths);
    let norm = found[7][0].iter().map(|x| x * x).sum::<f32>();
    assert!((norm - 1.0).abs() < 1e-6, "{norm}");
    let sizes: Vec<usize> = bodies.try_iter().map(|body| body["input"].as_array().unwrap().len()).collect();
    assert_eq!(sizes, [32, 8]);
}

#[test]
fn the_other_api_may_answer_in_any_order() {
    let (address, bodies) = server(|body, _| {
        let data: Vec<Value> =
            vectors(body).into_iter().enumerate().map(|(i, v)| json!({"index": i, "embedding": v})).collect();
        ok(&json!({"data": data.into_iter().rev().collect::<Vec<_>>()}))
    });
    let remote = open(EmbeddingApi::OpenAi, &address, Some(2)).unwrap();
    let found = remote.passages(&texts(&[3, 5, 8]), &AtomicBool::new(false)).unwrap();
    assert_eq!(found.iter().map(|windows| length(&windows[0])).collect::<Vec<_>>(), [3, 5, 8]);
    // Dimensions that are known are not asked for; they are sent along.
    let asked = bodies.recv().unwrap();
    assert_eq!((&asked["dimensions"], &asked["encoding_format"]), (&json!(2), &json!("float")));
    assert_eq!(asked["input"].as_array().unwrap().len(), 3);
}

#[test]
fn a_text_that_is_too_long_is_split_and_not_cut() {
    let (address, bodies) = server(|body, _| {
        let long = body["input"].as_array().unwrap().iter().any(|text| text.as_str().unwrap().len() > 1000);
        match long {
            true => status("400 Bad Request", r#"{"error": "the input length exceeds the context length"}"#),
            false => ollama(body),
        }
    });
    let remote = open(EmbeddingApi::Ollama, &address, Some(2)).unwrap();
    let found = remote.passages(&texts(&[10, 3000, 20]), &AtomicBool::new(false)).unwrap();
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [1, 4, 1]);
    let told: usize = found[1].iter().map(|window| length(window)).sum();
    assert_eq!(told, 3000);
    assert_eq!((length(&found[0][0]), length(&found[2][0])), (10, 20));
    drop(bodies);
}

#[test]
fn a_dropped_connection_is_tried_once_more() {
    let (address, bodies) =
        server(|body, count| if count == 0 { b"HTTP/1.1 200 OK\r\nContent-Le".to_vec() } else { ollama(body) });
    let remote = open(EmbeddingApi::Ollama, &address, Some(2)).unwrap();
    let found = remote.passages(&texts(&[4]), &AtomicBool::new(false)).unwrap();
    assert_eq!((length(&found[0][0]), bodies.try_iter().count()), (4, 2));
}

#[test]
fn what_is_no_answer_has_a_name() {
    type Case = (fn(&Value) -> Vec<u8>, &'static str, &'static str);
    let cases: [Case; 10] = [
        (|_| status("200 OK", "<html><body>Sign in</body></html>"), "model_unreachable", "a page of HTML"),
        (|_| ok(&json!({"embeddings": [[1, 2], [3, 4]]})), "model_unreachable", "2 vectors for 1 texts"),
        (|_| ok(&json!({"embeddings": []})), "model_unreachable", "0 vectors for 1 texts"),
        (|_| ok(&json!({"embeddings": [[1, 2, 3]]})), "model_unreachable", "3 dimensions, expected 2"),
        (|_| ok(&json!({"embeddings": [[]]})), "model_unreachable", "0 dimensions, expected 2"),
        (|_| ok(&json!({"embeddings": [[null, 1]]})), "model_unreachable", "what is no number"),
        (|_| ok(&json!({"embeddings": [[0, 0]]})), "model_unreachable", "vectors of zeros"),
        (|_| ok(&json!({"embeddings": [[1e300, 1]]})), "model_unreachable", "not numbers"),
        (|_| ok(&json!({"result": "fine"})), "model_unreachable", "no embeddings"),
        (|_| status("404 Not Found", r#"{"error": "model \"m\" not found"}"#), "model_not_pulled", "not found"),
    ];
    for (answer, code, said) in cases {
        let (address, _bodies) = server(move |body, _| answer(body));
        let remote = open(EmbeddingApi::Ollama, &address, Some(2)).unwrap();
        let error = remote.query("text").unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert!(!error.to_string().contains("sk-secret"), "{error}");
    }
    let (address, _bodies) = server(|_, _| ok(&json!({"data": [{"index": 9, "embedding": [1, 2]}]})));
    let error = open(EmbeddingApi::OpenAi, &address, Some(2)).unwrap().query("text").unwrap_err();
    assert!(error.to_string().contains("beyond the texts"), "{error}");
}

#[test]
fn a_stop_leaves_texts_unreached_and_loses_none_that_was() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let (address, bodies) = server(|body, count| {
        STOP.store(count == 1, Ordering::Relaxed);
        ollama(body)
    });
    let remote = open(EmbeddingApi::Ollama, &address, Some(2)).unwrap();
    let found = remote.passages(&texts(&[7; 100]), &STOP).unwrap();
    let reached = found.iter().filter(|windows| !windows.is_empty()).count();
    assert!(reached == 32 || reached == 64, "{reached}");
    assert_eq!(found.len(), 100);
    assert!(bodies.try_iter().count() <= 3);
}

#[test]
fn pieces_put_together_are_the_text() {
    for text in ["", "short", &"word ".repeat(100), &"한글 문장입니다. ".repeat(50), &"가".repeat(100)] {
        let cut: Vec<&str> = pieces(text, 64).collect();
        assert_eq!(cut.concat(), *text);
        assert!(!cut.is_empty() && cut.iter().all(|piece| piece.len() <= 64), "{cut:?}");
        if text.starts_with("word") {
            assert!(cut.iter().all(|piece| piece.ends_with(' ')), "{cut:?}");
        }
    }
    assert_eq!(pieces("가나", 1).collect::<Vec<_>>(), ["가", "나"]);
}
