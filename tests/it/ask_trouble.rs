//! What servers of models do wrong, what interrupts an answer, and what must never be seen of it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ask::{ANSWER, QUESTION, corpus};
use crate::harness::Dir;
use crate::mcp::Server;
use crate::stub::{Act, Dialect, Stub, head, spoken};
use crate::wire::Schemas;

const DIALECTS: [Dialect; 2] = [Dialect::Ollama, Dialect::OpenAi];

/// The first words of an answer as its API has them, and nothing behind them.
pub fn begun(dialect: Dialect) -> Vec<u8> {
    let mut bytes = head(dialect).into_bytes();
    spoken(dialect, ANSWER).into_iter().take(4).for_each(|chunk| bytes.extend(chunk));
    bytes
}

fn json_error(status: &'static str, error: Value) -> Act {
    Act::Status(status, "application/json", error.to_string())
}

enum Expected {
    /// The code of an error, and what its message has.
    Error(&'static str, &'static str),
    Refusal(&'static str),
    Answer,
}

type Trouble = (&'static str, fn(Dialect) -> Act, Expected);

const TROUBLES: &[Trouble] = &[
    (
        "a page of HTML",
        |_| Act::Status("200 OK", "text/html", "<html></html>".into()),
        Expected::Error("model_unreachable", "HTML"),
    ),
    (
        "an empty body",
        |_| Act::Status("200 OK", "application/json", String::new()),
        Expected::Error("model_unreachable", "API"),
    ),
    (
        "JSON of something else",
        |_| Act::Status("200 OK", "application/json", "[1, 2]".into()),
        Expected::Error("model_unreachable", "API"),
    ),
    (
        "an error object",
        |_| json_error("200 OK", json!({"error": "out of memory"})),
        Expected::Error("model_unreachable", "out of memory"),
    ),
    (
        "an error with a message",
        |_| json_error("500 Oops", json!({"error": {"message": "out of memory"}})),
        Expected::Error("model_unreachable", "500: out of memory"),
    ),
    (
        "500 without words",
        |_| Act::Status("500 Oops", "text/plain", String::new()),
        Expected::Error("model_unreachable", "500"),
    ),
    (
        "401",
        |_| json_error("401 Unauthorized", json!({"error": {"message": "bad key sk-secret-1"}})),
        Expected::Error("model_unreachable", "401: bad key ***"),
    ),
    (
        "404 for the model",
        |_| json_error("404 Not Found", json!({"error": "model 'tiny' not found"})),
        Expected::Error("model_not_pulled", "not found"),
    ),
    (
        "404 for the path",
        |_| Act::Status("404 Not Found", "text/plain", "404 page not found".into()),
        Expected::Error("model_unreachable", "404"),
    ),
    (
        "429 for long",
        |_| Act::Raw(b"HTTP/1.1 429 Too Many\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n".to_vec()),
        Expected::Error("model_unreachable", "429"),
    ),
    ("another protocol", |_| Act::Raw(b"220 mail ESMTP\r\n".to_vec()), Expected::Error("model_unreachable", "HTTP")),
    ("a connection closed at once", |_| Act::Raw(Vec::new()), Expected::Error("model_unreachable", "HTTP")),
    ("silence", |_| Act::Hang(Vec::new()), Expected::Error("timeout", "in time")),
    ("a head, then silence", |dialect| Act::Hang(head(dialect).into_bytes()), Expected::Error("timeout", "in time")),
    ("words, then silence", |dialect| Act::Hang(begun(dialect)), Expected::Refusal("llm_stream_aborted")),
    (
        "an end within a word",
        |dialect| Act::Raw(begun(dialect)[..begun(dialect).len() - 9].to_vec()),
        Expected::Refusal("llm_stream_aborted"),
    ),
    (
        "an end without a mark",
        |dialect| Act::Raw([begun(dialect), b"0\r\n\r\n".to_vec()].concat()),
        Expected::Refusal("llm_stream_aborted"),
    ),
    ("an error amid the words", broken_amid, Expected::Refusal("llm_stream_aborted")),
    ("words without end", |_| Act::Say(endless(200_000)), Expected::Refusal("llm_stream_aborted")),
    ("one word without end", |_| Act::Say("night ".repeat(40_000)), Expected::Refusal("llm_self_judge")),
    ("characters in pieces", in_pieces, Expected::Answer),
    ("bytes that are no UTF-8", |dialect| Act::Raw(no_utf8(dialect)), Expected::Answer),
];

/// Words of which none comes twice.
pub fn endless(bytes: usize) -> String {
    let mut text = String::new();
    for number in 0.. {
        if text.len() > bytes {
            break;
        }
        text.push_str(&format!("word{number} "));
    }
    text
}

fn broken_amid(dialect: Dialect) -> Act {
    let error = match dialect {
        Dialect::Ollama => "{\"error\":\"llama runner exited\"}\n".to_owned(),
        Dialect::OpenAi => "data: {\"error\":{\"message\":\"llama runner exited\"}}\n\n".to_owned(),
    };
    Act::Raw([begun(dialect), format!("{:x}\r\n{error}\r\n0\r\n\r\n", error.len()).into_bytes()].concat())
}

/// Every byte in a chunk of its own.
fn in_pieces(dialect: Dialect) -> Act {
    let mut bytes = head(dialect).into_bytes();
    let words = format!("밤마다: {ANSWER}");
    let body: Vec<u8> = spoken(dialect, &words).into_iter().flat_map(unchunked).collect();
    body.into_iter().for_each(|byte| bytes.extend([b"1\r\n", &[byte][..], b"\r\n"].concat()));
    bytes.extend(b"0\r\n\r\n");
    Act::Raw(bytes)
}

fn unchunked(chunk: Vec<u8>) -> Vec<u8> {
    let from = chunk.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    chunk[from..chunk.len() - 2].to_vec()
}

fn no_utf8(dialect: Dialect) -> Vec<u8> {
    let mut bytes = head(dialect).replace("Transfer-Encoding: chunked\r\n", "").into_bytes();
    let body: Vec<u8> = spoken(dialect, &format!("@@ {ANSWER}")).into_iter().flat_map(unchunked).collect();
    let at = body.windows(2).position(|window| window == b"@@").expect("it is there");
    bytes.extend([&body[..at], b"\xFF\xFE", &body[at + 2..]].concat());
    bytes
}

#[test]
fn troubles_with_servers_have_names() {
    let schemas = Schemas::load();
    for dialect in DIALECTS {
        for (name, act, expected) in TROUBLES {
            let stub = Stub::start(dialect, move |_, _| act(dialect));
            let dir = corpus(&stub);
            // Over everything, so that a busy machine needs some of it before the first word.
            let seconds = if name.ends_with("silence") { 3 } else { 30 };
            dir.config(&format!("{}request_timeout_secs = {seconds}\n", stub.config()));
            let started = Instant::now();
            let output = dir
                .cmd(["ask", "--json", "--mode", "lexical", QUESTION])
                .env("KEBAB_MODELS_LLM_API_KEY", "sk-secret-1")
                .run();
            assert!(started.elapsed() < Duration::from_secs(20), "{dialect:?} {name}: {:?}", started.elapsed());
            assert!(!output.stderr.contains("sk-secret-1") && !output.stdout.contains("sk-secret-1"), "{name}");
            match expected {
                Expected::Error(code, words) => {
                    let error = output.error();
                    schemas.check(&error, "error.v1");
                    assert_eq!((output.status, &error["code"]), (Some(2), &json!(code)), "{dialect:?} {name}: {error}");
                    assert!(error["message"].as_str().unwrap().contains(words), "{dialect:?} {name}: {error}");
                    assert!(error["hint"].is_string(), "{dialect:?} {name}: {error}");
                    assert_eq!(error["details"]["model"], "tiny", "{dialect:?} {name}");
                }
                Expected::Refusal(reason) => {
                    let answer = output.json();
                    schemas.check(&answer, "answer.v1");
                    let found = (output.status, &answer["refusal_reason"]);
                    assert_eq!(found, (Some(1), &json!(reason)), "{dialect:?} {name}: {answer:#}");
                }
                Expected::Answer => {
                    let answer = output.json();
                    assert_eq!(
                        (output.status, &answer["grounded"]),
                        (Some(0), &json!(true)),
                        "{dialect:?} {name}: {answer:#}"
                    );
                    assert!(answer["answer"].as_str().unwrap().ends_with(ANSWER), "{dialect:?} {name}: {answer:#}");
                }
            }
            assert_eq!(stub.requests().len(), 1, "{dialect:?} {name}: what may have been worked on is not sent again");
        }
    }
}

#[test]
fn a_server_that_is_not_there() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let dir = Dir::indexed(&[("docs/backup.md", crate::ask::BACKUP)]);
    dir.config(&format!("[models.llm]\nmodel = \"tiny\"\nendpoint = \"http://127.0.0.1:{port}\"\n"));
    let error = dir.cmd(["ask", "--json", "--mode", "lexical", QUESTION]).run().code(2).error();
    assert_eq!(error["code"], "model_unreachable", "{error}");
    assert!(error["hint"].as_str().unwrap().contains("Start the model server"), "{error}");
    // Searching and quoting need none.
    dir.cmd(["ask", "--mode", "lexical", "--extractive", QUESTION]).ok().stdout_has("02:30");
}

#[test]
fn doctor_looks_for_the_server_and_the_model() {
    let schemas = Schemas::load();
    let check = |dir: &Dir, code: i32| {
        let doctor = dir.cmd(["doctor", "--json"]).env("KEBAB_MODELS_LLM_API_KEY", "sk-secret-1").run().code(code);
        assert!(!doctor.stdout.contains("sk-secret-1"));
        schemas.check(&doctor.json(), "doctor.v1");
        let checks = doctor.json()["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|check| check["name"] == "llm").expect("a check of the model")
    };
    for dialect in DIALECTS {
        let stub = Stub::saying(dialect, ANSWER);
        let dir = corpus(&stub);
        assert_eq!(check(&dir, 0)["ok"], true);
        dir.config(&stub.config().replace("tiny", "huge:70b"));
        let missing = check(&dir, 3);
        assert!(missing["detail"].as_str().unwrap().contains("not found"), "{missing}");
        let hint = missing["hint"].as_str().unwrap();
        assert!(dialect != Dialect::Ollama || hint == "Run `ollama pull huge:70b`.", "{hint}");
        assert!(stub.requests().is_empty(), "a check asks for no answer");
    }
    let dir = Dir::indexed(&[("a.md", "# A\n\nText.\n")]);
    assert_eq!(check(&dir, 0)["ok"], true);
    dir.config("[models.llm]\nmodel = \"tiny\"\nendpoint = \"http://127.0.0.1:1\"\n");
    assert_eq!(check(&dir, 3)["ok"], false);
}

#[test]
fn keys_travel_in_a_header_and_nowhere_else() {
    let stub = Stub::saying(Dialect::OpenAi, ANSWER);
    let dir = corpus(&stub);
    let output = dir
        .cmd(["ask", "--explain", "--stream", "--mode", "lexical", QUESTION])
        .env("KEBAB_MODELS_LLM_API_KEY", "sk-secret-1")
        .ok();
    assert!(!output.stdout.contains("sk-secret-1") && !output.stderr.contains("sk-secret-1"));
    let request = &stub.requests()[0];
    assert!(request.head.contains("\r\nAuthorization: Bearer sk-secret-1\r\n"), "{}", request.head);
    assert!(!request.body.to_string().contains("sk-secret-1"));
    dir.config(&format!("{}api_key = \"sk-secret-1\"\n", stub.config()));
    let error = dir.cmd(["ask", QUESTION]).run().code(2);
    assert!(
        !error.stderr.contains("sk-secret-1") && error.stderr.contains("KEBAB_MODELS_LLM_API_KEY"),
        "{}",
        error.stderr
    );
    dir.config(&stub.config());
    let odd = dir.cmd(["ask", QUESTION]).env("KEBAB_MODELS_LLM_API_KEY", "sk-secret-1\r\nX-Evil: 1").run().code(2);
    assert!(!odd.stderr.contains("sk-secret-1") && odd.stderr.contains("KEBAB_MODELS_LLM_API_KEY"), "{}", odd.stderr);
}

#[test]
fn tokens_are_shown_as_they_come() {
    let schemas = Schemas::load();
    for dialect in DIALECTS {
        let stub = Stub::start(dialect, |_, _| Act::SaySlowly(ANSWER.into(), Duration::from_millis(5)));
        let dir = corpus(&stub);
        let plain = dir.cmd(["ask", "--stream", "--mode", "lexical", QUESTION]).ok();
        plain.stdout_has(&format!("{ANSWER}\n\n[1] docs/backup.md:"));
        let output = dir.cmd(["ask", "--stream", "--json", "--mode", "lexical", QUESTION]).ok();
        let events = output.stderr_json();
        events.iter().for_each(|event| schemas.check(event, "answer_event.v1"));
        let kinds: Vec<&str> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
        assert_eq!((kinds[0], *kinds.last().unwrap()), ("retrieval_done", "final"));
        assert_eq!(kinds.iter().filter(|kind| **kind == "token").count(), ANSWER.split(' ').count());
        let text: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
        assert_eq!(text, ANSWER);
        assert_eq!(events.last().unwrap()["answer"], output.json());
    }
    // Marks of ours come when the whole is there, so it is printed again.
    let unmarked = ANSWER.replace(" [1]", "");
    let dir = corpus(&Stub::saying(Dialect::Ollama, &unmarked));
    let marked = dir.cmd(["ask", "--stream", "--mode", "lexical", QUESTION]).ok();
    marked.stdout_has(&format!("{unmarked}\n\n{ANSWER}\n\n[1] docs/backup.md:"));
    // What is taken back was shown before; what says that there is no answer is not.
    let dir = corpus(&Stub::saying(Dialect::Ollama, "Whales migrate each spring along the coast [1]."));
    let taken_back = dir.cmd(["ask", "--stream", "--mode", "lexical", QUESTION]).run().code(1);
    taken_back.stdout_has("Whales").stdout_has("do not answer the question. (llm_self_judge)");
    let dir = corpus(&Stub::saying(Dialect::Ollama, "NO_ANSWER"));
    let none = dir.cmd(["ask", "--stream", "--json", "--mode", "lexical", QUESTION]).run().code(1);
    let kinds: Vec<Value> = none.stderr_json().into_iter().map(|event| event["kind"].clone()).collect();
    assert_eq!(kinds, ["retrieval_done", "final"]);
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_the_answer_and_keeps_nothing() {
    let stub = Stub::start(Dialect::Ollama, |_, _| Act::SaySlowly(ANSWER.repeat(100), Duration::from_millis(20)));
    let dir = corpus(&stub);
    let started = Instant::now();
    let args = ["ask", "--json", "--stream", "--session", "a", "--mode", "lexical", QUESTION];
    let output = dir.cmd(args).run_while(|child| {
        while stub.requests().is_empty() {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(60));
        std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    });
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let answer = output.json();
    assert_eq!((output.status, &answer["refusal_reason"]), (Some(130), &json!("llm_stream_aborted")), "{answer:#}");
    let events = output.stderr_json();
    assert_eq!(events.iter().filter(|event| event["kind"] == "final").count(), 1);
    let kept = dir.cmd(["ask", "--json", "--list-sessions"]).ok().json();
    assert_eq!(kept["sessions"], json!([]));
    until(|| stub.hung_up() == 1);
}

pub fn until(mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(10), "it did not come to that");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn over_the_protocol_it_is_answered_with_progress_and_can_be_cancelled() {
    let stub = Stub::start(Dialect::OpenAi, |_, before| match before {
        0 => Act::SaySlowly(ANSWER.into(), Duration::from_millis(60)),
        _ => Act::SaySlowly(ANSWER.repeat(200), Duration::from_millis(20)),
    });
    let dir = corpus(&stub);
    let mut server = Server::start(&dir);
    server.shake_hands("2025-11-25");
    let call = |id: u32| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "ask", "_meta": {"progressToken": id},
            "arguments": {"question": QUESTION, "mode": "lexical", "session_id": "a"}}})
    };
    server.say(&call(1));
    let mut told = Vec::new();
    let answer = loop {
        let message = server.hear();
        match message["method"].as_str() {
            Some("notifications/progress") => told.push(message["params"]["progress"].as_u64().unwrap()),
            _ => break message,
        }
    };
    assert!(told.len() >= 2 && told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
    assert_eq!(answer["result"]["structuredContent"]["answer"], ANSWER, "{answer}");
    Schemas::load().check(&answer["result"]["structuredContent"], "answer.v1");

    server.say(&call(2));
    until(|| stub.requests().len() == 2);
    server.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}));
    until(|| stub.hung_up() == 1);
    // An end of input while a model answers ends the work, too.
    server.say(&call(3));
    until(|| stub.requests().len() == 3);
    let started = Instant::now();
    let (lines, code) = server.end();
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    assert_eq!(code, Some(0), "{lines:?}");
    until(|| stub.hung_up() == 2);
    let kept = dir.cmd(["ask", "--json", "--list-sessions"]).ok().json();
    assert_eq!(kept["sessions"][0]["turns"], 1, "{kept:#}");
}

#[test]
fn a_follow_up_is_understood_by_what_was_said_before() {
    let stub = Stub::start(Dialect::Ollama, |request, _| {
        let system = request.body["messages"][0]["content"].as_str().unwrap_or_default();
        Act::Say(match system.starts_with("Rewrite") {
            true => "What does a restore of the nightly backup need?".into(),
            false if request.body.to_string().contains("restore of the nightly") => {
                "A restore needs the recovery key of twenty-four words [1].".into()
            }
            false => ANSWER.to_owned(),
        })
    });
    let dir = corpus(&stub);
    let ask = |session: &str, question: &str| {
        dir.cmd(["ask", "--json", "--explain", "--mode", "lexical", "--session", session, question])
    };
    let first = ask("ops-1", QUESTION).ok().json();
    assert_eq!(
        (&first["session_id"], stub.requests().len()),
        (&json!("ops-1"), 1),
        "the first question costs one call"
    );
    let second = ask("ops-1", "And what does it need to get back?").ok().json();
    assert_eq!(stub.requests().len(), 3);
    assert_eq!(second["explain"]["question"], "What does a restore of the nightly backup need?");
    assert_eq!(second["answer"], "A restore needs the recovery key of twenty-four words [1].");
    let told = stub.requests()[1].body["messages"][1]["content"].as_str().unwrap().to_owned();
    assert!(told.contains(QUESTION) && told.contains("And what does it need"), "{told}");
    // Another session knows nothing of it.
    ask("ops-2", QUESTION).ok();
    assert_eq!(stub.requests().len(), 4);

    let schemas = Schemas::load();
    let kept = dir.cmd(["ask", "--json", "--list-sessions"]).ok().json();
    schemas.check(&kept, "ask_sessions.v1");
    let turns: Vec<_> = kept["sessions"].as_array().unwrap().iter().map(|s| (&s["session_id"], &s["turns"])).collect();
    assert_eq!(turns, [(&json!("ops-2"), &json!(1)), (&json!("ops-1"), &json!(2))]);
    let forgotten = dir.cmd(["ask", "--json", "--forget", "ops-1"]).ok().json();
    schemas.check(&forgotten, "ask_sessions.v1");
    assert_eq!((&forgotten["forgotten"], forgotten["sessions"].as_array().unwrap().len()), (&json!(1), 1));
    dir.cmd(["ask", "--forget", "ops-1"]).run().code(2).stderr_has("no session");
    dir.cmd(["ask", "--list-sessions"]).ok().stdout_has("ops-2");
    for id in ["../x", "a/b", "", "a\\b", &"x".repeat(65), "C:x", "세션"] {
        let error = ask(id, QUESTION).run().code(2).error();
        assert_eq!(
            (&error["code"], &error["details"]["field"]),
            (&json!("invalid_input"), &json!("session_id")),
            "{id}"
        );
    }
    let error = dir.cmd(["--readonly", "ask", "--json", "--session", "a", QUESTION]).run().code(1).error();
    assert_eq!(error["code"], "readonly_mode");
    dir.cmd(["--readonly", "ask", "--mode", "lexical", QUESTION]).ok();
}

#[test]
fn two_processes_share_a_session_and_lose_no_turn() {
    let stub = Stub::start(Dialect::Ollama, |request, _| {
        let system = request.body["messages"][0]["content"].as_str().unwrap_or_default();
        Act::Say(if system.starts_with("Rewrite") { QUESTION.into() } else { ANSWER.into() })
    });
    let dir = corpus(&stub);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..3 {
                    let answer =
                        dir.cmd(["ask", "--json", "--mode", "lexical", "--session", "shared", QUESTION]).ok().json();
                    assert_eq!(answer["answer"], ANSWER);
                }
            });
        }
    });
    let kept = dir.cmd(["ask", "--json", "--list-sessions"]).ok().json();
    assert_eq!(kept["sessions"][0]["turns"], 6, "{kept:#}");
}

#[test]
fn the_parts_of_a_question_are_looked_up_one_by_one() {
    let stub = Stub::start(Dialect::OpenAi, |request, _| {
        let system = request.body["messages"][0]["content"].as_str().unwrap_or_default();
        Act::Say(match system.starts_with("Split") {
            true => "1. When does the nightly backup run?\n2. Which port does the daemon listen on?\n".into(),
            false => {
                "The nightly backup runs every night at 02:30 [2]. The daemon listens on port 8787 [1].".to_owned()
            }
        })
    });
    let dir = corpus(&stub);
    let question = "Compare the backup time and the port of the daemon";
    let answer = dir.cmd(["ask", "--json", "--multi-hop", "--mode", "lexical", question]).ok().json();
    Schemas::load().check(&answer, "answer.v1");
    let hops: Vec<&Value> = answer["hops"].as_array().unwrap().iter().map(|hop| &hop["question"]).collect();
    assert_eq!(hops, [&json!("When does the nightly backup run?"), &json!("Which port does the daemon listen on?")]);
    assert_eq!(answer["citations"].as_array().unwrap().len(), 2, "{answer:#}");
    assert_eq!(stub.requests().len(), 2);

    let vague = Stub::saying(Dialect::OpenAi, "I would rather not.");
    let dir = corpus(&vague);
    let refused = dir.cmd(["ask", "--json", "--multi-hop", "--mode", "lexical", question]).run().code(1).json();
    assert_eq!((&refused["refusal_reason"], vague.requests().len()), (&json!("multi_hop_decompose_failed"), 1));
}

#[test]
fn a_question_of_100_kb_is_refused_and_one_of_8000_characters_is_not() {
    let stub = Stub::saying(Dialect::Ollama, ANSWER);
    let dir = corpus(&stub);
    let mut server = Server::start(&dir);
    let error = server.told("ask", json!({"question": "night ".repeat(17_000)}));
    assert_eq!((&error["code"], &error["details"]["field"]), (&json!("invalid_input"), &json!("question")));
    let long = format!("{QUESTION} {}", "backup ".repeat(1_100));
    assert_eq!(server.told("ask", json!({"question": long, "mode": "lexical"}))["answer"], ANSWER);
}
