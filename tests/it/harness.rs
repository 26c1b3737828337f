//! A folder and a scrubbed environment for each test, and the real program run in them.
//!
//! A failed expectation prints the arguments, the folder, the status, stdout and stderr.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// An empty workspace, an empty data folder and an empty home, removed when dropped.
pub struct Dir {
    base: PathBuf,
}

impl Dir {
    pub fn new() -> Dir {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("kebab-it-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let base = std::env::temp_dir().join(name);
        for folder in ["root", "data", "home"] {
            std::fs::create_dir_all(base.join(folder)).expect("a folder for the test");
        }
        let base = base.canonicalize().expect("the folder just made");
        // Windows canonicalises to `\\?\C:\…`, which the program never prints.
        let base = base.to_str().and_then(|text| text.strip_prefix(r"\\?\")).map_or(base.clone(), PathBuf::from);
        Dir { base }
    }

    /// A workspace that holds these files and is indexed.
    pub fn indexed(files: &[(&str, &str)]) -> Dir {
        let dir = Dir::new();
        for (path, text) in files {
            dir.write(path, text);
        }
        dir.cmd(["ingest"]).ok();
        dir
    }

    pub fn root(&self) -> PathBuf {
        self.base.join("root")
    }

    pub fn data(&self) -> PathBuf {
        self.base.join("data")
    }

    pub fn home(&self) -> PathBuf {
        self.base.join("home")
    }

    /// Writes a file of the workspace, its folders included.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.root().join(path);
        write(&path, text);
        path
    }

    /// Writes the user's config file.
    pub fn config(&self, text: &str) -> PathBuf {
        let folder = if cfg!(windows) { "AppData/Roaming" } else { ".config" };
        let path = self.home().join(folder).join("kebab-lite").join("config.toml");
        write(&path, text);
        path
    }

    /// The program in the workspace, with its index in the data folder.
    pub fn cmd<A: Into<OsString>>(&self, args: impl IntoIterator<Item = A>) -> Cmd {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kebab-lite"));
        command.args(&args).current_dir(self.root()).env_clear();
        for kept in ["PATH", "SystemRoot", "TEMP", "TMP", "TMPDIR", "LLVM_PROFILE_FILE"] {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        command.env("HOME", self.home()).env("USERPROFILE", self.home());
        command
            .env("APPDATA", self.home().join("AppData/Roaming"))
            .env("LOCALAPPDATA", self.home().join("AppData/Local"));
        command.env("KEBAB_STORAGE_DATA_DIR", self.data());
        // A test that is about meaning says so: loading a model takes longer than most tests.
        command.env("KEBAB_MODELS_EMBEDDING_PROVIDER", "none");
        Cmd { command, args, stdin: Vec::new(), limit: Duration::from_secs(60), killed_after: None }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // The folder of a failed test stays for whoever looks into it.
        if !thread::panicking() {
            std::fs::remove_dir_all(&self.base).expect("the test's own folder");
        }
    }
}

/// xorshift64*: the same numbers in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }
}

fn write(path: &Path, text: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("folders for a file");
    std::fs::write(path, text).expect("a file of the test");
}

pub struct Cmd {
    command: Command,
    args: Vec<OsString>,
    stdin: Vec<u8>,
    limit: Duration,
    killed_after: Option<Duration>,
}

impl Cmd {
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Cmd {
        self.command.env(name, value);
        self
    }

    pub fn unset(mut self, name: &str) -> Cmd {
        self.command.env_remove(name);
        self
    }

    /// Starts the program through another one, such as `setpriv`.
    pub fn under(mut self, runner: &[&str]) -> Cmd {
        let mut command = Command::new(runner[0]);
        command.args(&runner[1..]).arg(self.command.get_program()).args(self.command.get_args()).env_clear();
        command.current_dir(self.command.get_current_dir().expect("set"));
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        self.command = command;
        self
    }

    pub fn cwd(mut self, folder: impl AsRef<Path>) -> Cmd {
        self.command.current_dir(folder);
        self
    }

    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Cmd {
        self.stdin = bytes.into();
        self
    }

    /// For commands that are slow by intention; others must end within a minute.
    #[allow(dead_code, reason = "for tests of larger workspaces")]
    pub fn limit(mut self, limit: Duration) -> Cmd {
        self.limit = limit;
        self
    }

    /// Runs until that moment at most, then ends as a power cut would end it. The status is None if it came to that.
    pub fn run_killed_after(mut self, moment: Duration) -> Output {
        self.killed_after = Some(moment);
        self.run()
    }

    /// Stdout goes elsewhere, and is empty in the result.
    pub fn run_into(mut self, stdout: impl Into<Stdio>) -> Output {
        self.command.stdout(stdout);
        self.run_piped(|_| {})
    }

    pub fn run(self) -> Output {
        self.run_while(|_| {})
    }

    /// Runs to a success.
    #[track_caller]
    pub fn ok(self) -> Output {
        self.run().code(0)
    }

    /// The bare command, for a process that is talked to while it runs.
    pub fn into_command(self) -> Command {
        self.command
    }

    /// Hands out the process as soon as it runs, to be signalled.
    pub fn run_while(mut self, meanwhile: impl FnOnce(&Child)) -> Output {
        self.command.stdout(Stdio::piped());
        self.run_piped(meanwhile)
    }

    fn run_piped(mut self, meanwhile: impl FnOnce(&Child)) -> Output {
        let started = Instant::now();
        let mut child = self.command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("piped");
        let input = std::mem::take(&mut self.stdin);
        // A program that does not read its input leaves this writer with a broken pipe, which is no failure.
        let feeder = thread::spawn(move || drop(stdin.write_all(&input)));
        let stdout = child.stdout.take().map(collect);
        let stderr = child.stderr.take().map(collect);
        meanwhile(&child);
        let status = loop {
            if let Some(status) = child.try_wait().expect("a process can be waited for") {
                break status;
            }
            if self.killed_after.is_some_and(|moment| started.elapsed() >= moment) {
                // It may have ended this instant.
                drop(child.kill());
                break child.wait().expect("a killed process ends");
            }
            if started.elapsed() > self.limit {
                child.kill().expect("a process can be killed");
                child.wait().expect("a killed process ends");
                panic!("{:?} did not end within {:?}", self.args, self.limit);
            }
            let left = self.killed_after.map_or(Duration::MAX, |moment| moment.saturating_sub(started.elapsed()));
            thread::sleep(left.min(Duration::from_millis(2)));
        };
        feeder.join().expect("the feeder");
        let text = |reader: Option<thread::JoinHandle<Vec<u8>>>| match reader {
            Some(reader) => String::from_utf8(reader.join().expect("a reader")).expect("output is UTF-8"),
            None => String::new(),
        };
        let folder = self.command.get_current_dir().expect("set").to_owned();
        Output { args: self.args, folder, status: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }
}

fn collect(mut stream: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("the program's output");
        bytes
    })
}

#[derive(Debug)]
pub struct Output {
    pub args: Vec<OsString>,
    pub folder: PathBuf,
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    #[track_caller]
    pub fn code(self, expected: i32) -> Output {
        if self.status != Some(expected) {
            self.fail(&format!("expected exit code {expected}"));
        }
        self
    }

    #[track_caller]
    pub fn stdout(self, expected: &str) -> Output {
        if self.stdout != expected {
            self.fail(&format!("expected stdout {expected:?}"));
        }
        self
    }

    #[track_caller]
    pub fn stderr(self, expected: &str) -> Output {
        if self.stderr != expected {
            self.fail(&format!("expected stderr {expected:?}"));
        }
        self
    }

    #[track_caller]
    pub fn stderr_has(self, expected: &str) -> Output {
        if !self.stderr.contains(expected) {
            self.fail(&format!("expected {expected:?} in stderr"));
        }
        self
    }

    #[track_caller]
    pub fn stdout_has(self, expected: &str) -> Output {
        if !self.stdout.contains(expected) {
            self.fail(&format!("expected {expected:?} in stdout"));
        }
        self
    }

    /// The one line of JSON on stdout.
    #[track_caller]
    pub fn json(&self) -> Value {
        match &self.json_lines()[..] {
            [value] => value.clone(),
            lines => self.fail(&format!("expected one line of JSON, found {}", lines.len())),
        }
    }

    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.parse_lines(&self.stdout)
    }

    /// The one error.v1 line on stderr.
    #[track_caller]
    pub fn error(&self) -> Value {
        match &self.stderr_json()[..] {
            [error] if error["schema_version"] == "error.v1" => error.clone(),
            _ => self.fail("expected one error.v1 line on stderr"),
        }
    }

    #[track_caller]
    pub fn stderr_json(&self) -> Vec<Value> {
        self.parse_lines(&self.stderr)
    }

    #[track_caller]
    fn parse_lines(&self, text: &str) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| self.fail(&format!("{line:?}: {error}")));
        text.lines().map(parse).collect()
    }

    /// Paths of the hits of a search_response.v1.
    #[track_caller]
    pub fn paths(&self) -> Vec<String> {
        let response = self.json();
        let Some(hits) = response["hits"].as_array() else { self.fail("expected hits") };
        hits.iter().map(|hit| hit["doc_path"].as_str().unwrap_or("").to_owned()).collect()
    }

    #[track_caller]
    pub fn fail(&self, why: &str) -> ! {
        panic!(
            "{why}\nargs:   {:?}\nfolder: {}\nstatus: {:?}\nstdout:\n{}\nstderr:\n{}",
            self.args,
            self.folder.display(),
            self.status,
            self.stdout,
            self.stderr
        )
    }
}
