//! An embedding endpoint for tests: it answers at once or after a while, and keeps every text it was given.
//!
//! Vectors are made of the text's bytes: equal texts have equal ones, and that is all they mean. Those of the model
//! `MEANING` point to the concepts that a text's words are of.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Cmd, Random};

pub struct ModelServer {
    address: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    texts: Mutex<Vec<String>>,
    /// Milliseconds a request takes.
    delay: AtomicU64,
}

const DIMENSIONS: usize = 24;

pub const MEANING: &str = "meaning";

/// Words of one concept; a part of a word is enough.
const CONCEPTS: &[&[&str]] = &[
    &["stop", "halt", "shut", "end", "멈추", "종료"],
    &["server", "daemon", "서버", "데몬"],
    &["price", "cost", "요금"],
    &["bread", "oven", "flour", "빵"],
];

impl ModelServer {
    /// Listens until the test process ends.
    pub fn start() -> ModelServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = own.clone();
                // A client that was killed is no failure of the server.
                thread::spawn(move || drop(answer(stream, &shared)));
            }
        });
        ModelServer { address, shared }
    }

    /// The program with this endpoint's model of that name.
    pub fn for_model(&self, model: &str, cmd: Cmd) -> Cmd {
        cmd.env("KEBAB_MODELS_EMBEDDING_PROVIDER", "openai")
            .env("KEBAB_MODELS_EMBEDDING_ENDPOINT", &self.address)
            .env("KEBAB_MODELS_EMBEDDING_MODEL", model)
    }

    pub fn slow_down(&self, delay: Duration) {
        self.shared.delay.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// The texts it was given since it was last asked. A request of no matter that only asks how long vectors are is
    /// not among them.
    pub fn take_texts(&self) -> Vec<String> {
        let mut texts = std::mem::take(&mut *self.shared.texts.lock().expect("a sound lock"));
        texts.retain(|text| text != "dimensions");
        texts
    }
}

fn answer(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let request: Value = serde_json::from_slice(&body).expect("a request is JSON");
    let model = request["model"].as_str().expect("a model");
    let input: Vec<&str> = match &request["input"] {
        Value::Array(texts) => texts.iter().map(|text| text.as_str().expect("a text")).collect(),
        text => vec![text.as_str().expect("a text")],
    };
    thread::sleep(Duration::from_millis(shared.delay.load(Ordering::SeqCst)));
    shared.texts.lock().expect("a sound lock").extend(input.iter().map(|text| (*text).to_owned()));
    let data: Vec<Value> = input
        .iter()
        .enumerate()
        .map(|(index, text)| json!({"index": index, "embedding": vector(model, text)}))
        .collect();
    let answer = json!({"object": "list", "model": model, "data": data}).to_string();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
    write!(reader.get_mut(), "{head}\r\nContent-Length: {}\r\n\r\n{answer}", answer.len())
}

fn vector(model: &str, text: &str) -> Vec<f32> {
    let seed = model
        .bytes()
        .chain(text.bytes())
        .fold(17, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    let mut random = Random::new(seed);
    let mut vector: Vec<f32> = (0..DIMENSIONS).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect();
    if model == MEANING {
        // As an encoder's: in one cone, with some noise, and nearer to texts of the same script.
        let text = text.to_lowercase();
        vector.iter_mut().for_each(|x| *x *= 0.2);
        vector[0] += 3.0;
        vector[1] += if text.chars().any(|c| ('가'..='힣').contains(&c)) { 1.0 } else { -1.0 };
        for (concept, words) in CONCEPTS.iter().enumerate() {
            if words.iter().any(|word| text.contains(word)) {
                vector[2 + concept] += 1.5;
            }
        }
    }
    vector
}
