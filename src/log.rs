//! What a running server says beside its answers: one line each on stderr. Nobody waits for a line to be written,
//! and when nobody reads stderr, lines are dropped.
//!
//! Refuses: answers, and anything from a document.

use std::io::Write;
use std::sync::OnceLock;
use std::thread;

use crossbeam_channel::Sender;

static LINES: OnceLock<Sender<String>> = OnceLock::new();

/// Lines that may wait.
const WAITING: usize = 256;

/// Starts the writer. Without it every line is dropped, which is what `--quiet` asks for.
pub fn start() {
    let (sender, lines) = crossbeam_channel::bounded::<String>(WAITING);
    if LINES.set(sender).is_err() {
        return;
    }
    let writer = thread::Builder::new().name("log".into()).stack_size(128 << 10).spawn(move || {
        for line in lines {
            if std::io::stderr().write_all(line.as_bytes()).is_err() {
                return;
            }
        }
    });
    // Without a thread to spare nothing is logged; the server itself will say why it cannot run.
    drop(writer);
}

/// The line that tells whoever started a server where it is; said even by one that logs nothing.
pub fn announce(line: &str) {
    // Nobody is left to be told if stderr itself is gone.
    writeln!(std::io::stderr().lock(), "{line}").ok();
}

/// One line; control characters are shown as spaces.
pub fn warn(message: &str) {
    let Some(lines) = LINES.get() else { return };
    let shown: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    // A full queue means that nobody reads.
    lines.try_send(format!("kebab-lite: {shown}\n")).ok();
}
