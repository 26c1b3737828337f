//! The command line: flags in any order, usage errors, streams, bulk input, exit codes and the layers of the
//! configuration.

use serde_json::{Value, json};

use crate::harness::{Dir, Output};

const BACKUP: (&str, &str) = ("guide/backup.md", "# Backups\n\nCopy the store every night.\n");
const NOTES: (&str, &str) = ("notes.txt", "The daemon listens on port 4711.\n");

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

fn summary(output: &Output) -> Value {
    output.stderr_json().pop().unwrap_or_else(|| output.fail("expected a summary"))
}

#[test]
fn global_flags_stand_before_and_after_the_subcommand() {
    let dir = Dir::indexed(&[BACKUP, NOTES]);
    let lines = [
        "--json search backups",
        "search --json backups",
        "search backups --json",
        "search backups -q --json --k 3",
        "--quiet search --k=3 --mode=lexical backups --json",
        "search --mode lexical --json -- backups",
    ];
    for line in lines {
        assert_eq!(dir.cmd(words(line)).ok().paths(), ["guide/backup.md"], "{line}");
    }
}

#[test]
fn root_and_data_folder_take_both_forms() {
    let dir = Dir::indexed(&[BACKUP]);
    let (root, data) = (dir.root(), dir.data());
    let (root, data) = (root.to_str().unwrap(), data.to_str().unwrap());
    let forms = [
        vec!["--root".into(), root.into(), "search".into(), "backups".into(), format!("--data-dir={data}")],
        vec!["search".into(), format!("--root={root}"), "--data-dir".into(), data.into(), "backups".into()],
    ];
    for mut form in forms {
        form.push("--json".into());
        let output = dir.cmd(form).cwd(dir.home()).unset("KEBAB_STORAGE_DATA_DIR").ok();
        assert_eq!(output.paths(), ["guide/backup.md"]);
    }
}

#[test]
fn words_behind_two_dashes_belong_to_the_query() {
    let dir = Dir::indexed(&[("flags.md", "# Flags\n\nUse --force to overwrite.\n")]);
    assert_eq!(dir.cmd(words("search --json -- --force --json")).ok().paths(), ["flags.md"]);
    dir.cmd(words("search --force")).run().code(2).stderr(
        "kebab-lite: --force: there is no such flag\n  hint: It is a flag of `ingest` and stands behind that word.\n",
    );
}

#[test]
fn usage_errors_are_exit_code_2_and_suggest() {
    let cases = [
        ("serach x", "subcommand: there is no \"serach\"", "Did you mean `search`?"),
        ("search --mdoe lexical x", "--mdoe: there is no such flag", "Did you mean `--mode`?"),
        ("search x --jsno", "--jsno: there is no such flag", "Did you mean `--json`?"),
        (
            "ingest --wait",
            "--wait: it needs a value",
            "Write --wait <secs>, or --wait=<secs> if it starts with a dash.",
        ),
        ("ingest --force=yes", "--force: it takes no value", ""),
        (
            "ingest --wait soon",
            "arguments: Error parsing option '--wait' with value 'soon': expected a whole number of seconds",
            "Run `kebab-lite ingest --help`.",
        ),
        ("schema more", "arguments: Unrecognized argument: more", "Run `kebab-lite schema --help`."),
    ];
    let dir = Dir::new();
    for (line, message, hint) in cases {
        let hint_line = if hint.is_empty() { String::new() } else { format!("  hint: {hint}\n") };
        dir.cmd(words(line)).run().code(2).stdout("").stderr(&format!("kebab-lite: {message}\n{hint_line}"));
        let error = dir.cmd(words(line).into_iter().chain(["--json"])).run().code(2).stdout("").error();
        if line != "ingest --wait" {
            assert_eq!(error["message"], message, "{line}");
        }
        assert_eq!(error["code"], "invalid_input", "{line}");
        assert!(error["details"].is_object(), "{line}");
    }
    dir.cmd([""; 0]).run().code(2).stdout("").stderr(
        "kebab-lite: subcommand: none given; expected one of ingest, search, ask, fetch, ingest-file, ingest-stdin, schema, doctor, mcp, server\n  hint: Run `kebab-lite --help`.\n",
    );
}

#[test]
fn search_values_are_judged_by_the_library() {
    let dir = Dir::indexed(&[BACKUP]);
    for (line, field) in [
        ("search x --k 0", "k"),
        ("search x --k ten", "k"),
        ("search x --mode fuzzy", "mode"),
        ("search x --trust-min high", "trust_min"),
        ("search x --ingested-after yesterday", "ingested_after"),
        ("search", "query"),
    ] {
        let error = dir.cmd(words(line).into_iter().chain(["--json"])).run().code(2).stdout("").error();
        assert_eq!((&error["code"], &error["details"]["field"]), (&json!("invalid_input"), &json!(field)), "{line}");
    }
    assert_eq!(dir.cmd(words("search backups --json --k 5")).ok().paths(), ["guide/backup.md"]);
}

#[test]
fn repeated_filters_widen_and_excluding_ones_narrow() {
    let file = |tag: &str| format!("---\ntags: [{tag}]\n---\n\n# Apples\n\nAbout apples.\n");
    let (red, green, blue) = (file("red"), file("green"), file("blue"));
    let dir = Dir::indexed(&[("a.md", &red), ("b.md", &green), ("c.md", &blue)]);
    let found = |flags: &str| {
        let mut paths = dir.cmd(words(&format!("search apples --json {flags}"))).ok().paths();
        paths.sort();
        paths
    };
    assert_eq!(found("--tag red --tag=blue"), ["a.md", "c.md"]);
    assert_eq!(found("--exclude-tag red"), ["b.md", "c.md"]);
    assert_eq!(found("--path-glob [ab].md --exclude-path-glob a*"), ["b.md"]);
}

#[test]
fn help_names_every_subcommand_flag_default_and_choice() {
    let dir = Dir::new();
    for line in ["--help", "-h", "help", "--json --help"] {
        let output = dir.cmd(words(line)).ok().stderr("");
        for expected in
            ["ingest", "search", "schema", "doctor", "--root", "--data-dir", "--config", "--json", "-q, --quiet"]
        {
            assert!(output.stdout.contains(expected), "{line}: {expected}\n{}", output.stdout);
        }
    }
    for line in ["search --help", "help search", "--help search", "search some words -h --k 3"] {
        dir.cmd(words(line))
            .ok()
            .stdout_has("lexical, vector or hybrid (default: hybrid)")
            .stdout_has("1 to 100 (default: 10")
            .stdout_has("at least so far: generated, secondary")
            .stdout_has("Also --root, --data-dir, --config, --json, --quiet, --readonly, --onnxruntime: see");
    }
    dir.cmd(words("ingest --help")).ok().stdout_has("(default: 30)");
}

#[test]
fn version_needs_no_subcommand_and_no_config() {
    let dir = Dir::new();
    dir.config("broken = [");
    for line in ["--version", "-V", "search -V"] {
        dir.cmd(words(line)).ok().stdout("kebab-lite 0.1.0\n").stderr("");
    }
}

#[test]
fn a_closed_stdout_is_success_and_silence() {
    let dir = Dir::indexed(&[BACKUP]);
    for line in ["search backups", "search backups --json", "schema", "--help", "ingest --force --list"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        dir.cmd(words(line)).env("KEBAB_PROGRESS", "plain").run_into(writer).code(0).fail_if_broken();
    }
}

impl Output {
    /// Nothing about pipes or panics on stderr.
    #[track_caller]
    fn fail_if_broken(self) {
        let stderr = self.stderr.to_lowercase();
        if ["pipe", "panic", "error"].iter().any(|word| stderr.contains(word)) {
            self.fail("expected silence");
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_stdout_is_an_error() {
    let dir = Dir::indexed(&[BACKUP]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = dir.cmd(words("schema --json")).run_into(full).code(2);
    assert_eq!(output.error()["code"], "io_error");
}

#[test]
fn a_pipe_gets_no_colours_and_no_folding() {
    let dir = Dir::indexed(&[BACKUP, NOTES]);
    for name in ["NO_COLOR", "TERM"] {
        dir.cmd(words("search backups -q"))
            .env(name, "1")
            .ok()
            .stdout("guide/backup.md:1-3  Backups\n    # Backups\n\n    Copy the store every night.\n")
            .stderr("");
    }
}

#[test]
fn control_characters_of_documents_never_reach_people() {
    let text = "# Ev\u{1b}[31mil \u{202e}title\n\nbackup \u{1b}]0;owned\u{7}here \u{9b}2J and \u{8}there\n";
    let dir = Dir::indexed(&[("evil.md", text)]);
    let output = dir.cmd(words("search backup")).ok();
    let hostile = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202a}'..='\u{202e}');
    if output.stdout.contains(hostile) {
        output.fail("expected nothing that steers a terminal");
    }
    output.stdout_has("evil.md:1-3  ").stdout_has("    # Evil title\n\n    backup here  and there\n");
}

#[test]
fn no_hits_is_success() {
    let dir = Dir::indexed(&[BACKUP]);
    dir.cmd(words("search xylophone --mode lexical")).ok().stdout("").stderr("no hits\n");
    dir.cmd(words("search xylophone --mode lexical --quiet")).ok().stdout("").stderr("");
    assert_eq!(dir.cmd(words("search xylophone --json")).ok().stderr("").json()["hits"], json!([]));
}

#[test]
fn more_pages_are_announced_and_can_be_asked_for() {
    let dir = Dir::indexed(&[("a.md", "one apple\n"), ("b.md", "one apple\n"), ("c.md", "one apple\n")]);
    let output = dir.cmd(words("search apple --k 2 --mode lexical")).ok().stderr_has("more: --cursor ");
    let cursor = output.stderr.trim().rsplit(' ').next().unwrap().to_owned();
    let second = dir.cmd(words("search apple --k 2 --mode lexical --json --cursor")).run().code(2);
    assert_eq!(second.error()["details"]["field"], "--cursor");
    let mut rest = words("search apple --k 2 --mode lexical --json --cursor");
    rest.push(&cursor);
    assert_eq!(dir.cmd(rest).ok().paths(), ["c.md"]);
}

#[test]
fn a_trace_is_readable() {
    let dir = Dir::indexed(&[BACKUP]);
    let output =
        dir.cmd(words("search backups --trace")).ok().stdout_has("\ntrace: ").stdout_has("lexical: 1 candidates");
    assert!(output.stdout.trim_end().ends_with("lexical 1, vector -"), "{}", output.stdout);
}

#[test]
fn before_the_first_ingest_a_search_says_so() {
    let dir = Dir::new();
    let error = dir.cmd(words("search x --json")).run().code(2).stdout("").error();
    assert_eq!(error["code"], "not_indexed");
    dir.cmd(words("search x")).run().code(2).stdout("").stderr_has("  hint: ");
    dir.cmd(words("schema")).ok().stdout_has("documents        0\n");
}

#[test]
fn ingest_reports_counts_skips_and_every_file_when_asked() {
    let dir = Dir::new();
    dir.write("a.md", "# A\n\ntext\n");
    dir.write("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0");
    let output =
        dir.cmd(["ingest"]).ok().stderr("").stdout_has("  new             1\n").stdout_has("  skipped         1\n");
    assert!(output.stdout.contains("picture.png"), "{}", output.stdout);
    dir.cmd(words("ingest --list")).ok().stdout_has("unchanged a.md\n").stdout_has("skipped   picture.png: ");
    let report = dir.cmd(words("ingest --json --quiet")).ok().stderr("").json();
    assert_eq!(report["schema_version"], "ingest_report.v1");
    assert_eq!((&report["unchanged"], &report["items"]), (&json!(1), &Value::Null));
}

#[test]
fn paths_of_an_ingest_are_relative_to_the_working_folder() {
    let dir = Dir::new();
    dir.write("sub/a.md", "one apple\n");
    dir.write("b.md", "one apple\n");
    let root = dir.root();
    dir.cmd(["--root", root.to_str().unwrap(), "ingest", "a.md"]).cwd(root.join("sub")).ok();
    assert_eq!(dir.cmd(words("search apple --json")).ok().paths(), ["sub/a.md"]);
}

#[test]
fn progress_under_json_is_one_event_a_line_and_one_end() {
    let dir = Dir::new();
    dir.write("a.md", "# A\n");
    let output = dir.cmd(words("ingest --json")).ok();
    let events = output.stderr_json();
    let kinds: Vec<&str> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"scan_started"), Some(&"completed")));
    assert_eq!(kinds.iter().filter(|kind| matches!(**kind, "completed" | "aborted")).count(), 1);
    for event in &events {
        let ts = event["ts"].as_str().unwrap();
        assert_eq!((&event["schema_version"], ts.len(), &ts[23..]), (&json!("ingest_progress.v1"), 24, "Z"));
    }
    dir.cmd(words("ingest --force -q")).ok().stderr("");
    dir.cmd(words("ingest --force")).env("KEBAB_PROGRESS", "plain").ok().stderr("");
    let error = dir.cmd(words("ingest")).env("KEBAB_PROGRESS", "plane").run().code(2);
    error.stderr("kebab-lite: config: KEBAB_PROGRESS: found \"plane\", expected plain\n");
}

#[test]
#[cfg(unix)]
fn a_stopped_ingest_ends_with_130_and_keeps_a_whole_index() {
    let dir = Dir::new();
    let paragraph = "Words about apples and pears, over and over again. ".repeat(40);
    let text: String = (0..60).map(|part| format!("# Part {part}\n\n{paragraph}\n\n")).collect();
    for file in 0..150 {
        dir.write(&format!("{file}.md"), &text);
    }
    let output = dir.cmd(words("ingest --json")).run_while(|child| {
        while std::fs::read_dir(dir.data()).unwrap().next().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    });
    let output = output.code(130);
    assert_eq!(output.stderr_json().last().unwrap()["kind"], "aborted");
    assert_eq!(output.json()["aborted"], true);
    dir.cmd(["doctor"]).ok();
}

#[test]
fn search_can_ingest_first() {
    let dir = Dir::indexed(&[BACKUP]);
    dir.write("late.md", "a late apple\n");
    assert_eq!(dir.cmd(words("search apple --json")).ok().paths(), [""; 0]);
    let output = dir.cmd(words("search apple --json --sync")).ok();
    assert_eq!(output.paths(), ["late.md"]);
    assert_eq!(output.stderr_json().last().unwrap()["kind"], "completed");
    let block = "late.md:1\n    a late apple\n";
    dir.cmd(words("search apple --sync --mode lexical")).ok().stdout(block).stderr("");
}

#[test]
fn readonly_blocks_writing_and_nothing_else() {
    let dir = Dir::indexed(&[BACKUP]);
    for line in ["--readonly ingest", "ingest --readonly", "search x --sync --readonly"] {
        dir.cmd(words(line)).run().code(1).stdout("").stderr_has("hint: Start without --readonly");
    }
    let error = dir.cmd(words("ingest --json")).env("KEBAB_READONLY", "1").run().code(1).error();
    assert_eq!(error["code"], "readonly_mode");
    assert_eq!(dir.cmd(words("search backups --json --readonly")).ok().paths(), ["guide/backup.md"]);
}

#[test]
fn doctor_tells_health_by_its_exit_code() {
    let dir = Dir::new();
    let unhealthy = dir.cmd(["doctor"]).run().code(3).stderr("").stdout_has("FAIL").stdout_has("hint: ");
    assert!(unhealthy.stdout.ends_with("\nunhealthy\n"), "{}", unhealthy.stdout);
    assert_eq!(dir.cmd(words("doctor --json")).run().code(3).json()["ok"], false);
    dir.write("a.md", "# A\n");
    dir.cmd(["ingest"]).ok();
    let healthy = dir.cmd(["doctor"]).ok();
    assert!(healthy.stdout.ends_with("\nhealthy\n"), "{}", healthy.stdout);
}

fn bulk(dir: &Dir, input: impl Into<Vec<u8>>) -> Output {
    dir.cmd(words("search --bulk --json")).stdin(input).run()
}

#[test]
fn bulk_answers_line_by_line_in_order() {
    let dir = Dir::indexed(&[BACKUP, NOTES]);
    let output =
        bulk(&dir, "{\"query\": \"daemon\"}\n{\"query\": \"backups\", \"k\": 0}\n{\"query\": \"backups\"}\n").code(0);
    let items = output.json_lines();
    assert_eq!(items.len(), 3);
    assert_eq!(items[0]["schema_version"], "bulk_search_item.v1");
    assert_eq!(items[0]["response"]["hits"][0]["doc_path"], "notes.txt");
    assert_eq!((&items[1]["response"], &items[1]["error"]["code"]), (&Value::Null, &json!("invalid_input")));
    assert_eq!(items[1]["query"], json!({"query": "backups", "k": 0}));
    assert_eq!(
        (&items[2]["error"], &items[2]["response"]["hits"][0]["doc_path"]),
        (&Value::Null, &json!("guide/backup.md"))
    );
    assert_eq!(
        summary(&output),
        json!({"schema_version": "bulk_search_summary.v1", "total": 3, "succeeded": 2, "failed": 1})
    );
}

#[test]
fn bulk_input_may_be_empty_blank_unended_and_marked() {
    let dir = Dir::indexed(&[BACKUP]);
    let one = "{\"query\": \"backups\"}";
    for (input, count) in [
        (String::new(), 0),
        ("\n\r\n  \n".to_owned(), 0),
        (one.to_owned(), 1),
        (format!("\u{feff}{one}\r\n\r\n{one}\r\n"), 2),
        (format!("{one}\n\n{one}"), 2),
    ] {
        let output = bulk(&dir, input.as_str()).code(0);
        assert_eq!(output.json_lines().len(), count, "{input:?}");
        assert!(output.json_lines().iter().all(|item| item["response"]["hits"][0]["doc_path"] == "guide/backup.md"));
        assert_eq!(summary(&output)["total"], count, "{input:?}");
    }
}

#[test]
fn bulk_takes_a_hundred_lines_and_not_one_more() {
    let dir = Dir::indexed(&[BACKUP]);
    let line = "{\"query\": \"backups\"}\n\n";
    assert_eq!(summary(&bulk(&dir, line.repeat(100)).code(0))["succeeded"], 100);
    let output = bulk(&dir, line.repeat(101)).code(2).stdout("");
    let error = output.error();
    assert_eq!(error["code"], "config_invalid");
    assert_eq!(error["message"], "config: --bulk takes at most 100 queries, and stdin has 101");
}

#[test]
fn a_bulk_line_that_is_no_object_stops_everything_before_it_starts() {
    let dir = Dir::indexed(&[BACKUP]);
    let good = "{\"query\": \"backups\"}\n";
    for (bad, line) in [(&b"{\"query\": "[..], 3), (b"[1]", 3), (b"{\"query\": \"\xff\"}", 3)] {
        let output = bulk(&dir, [good.as_bytes(), b"\n", bad, b"\n"].concat()).code(2).stdout("");
        let error = output.error();
        assert_eq!(error["code"], "config_invalid");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("config: line {line} of stdin is not ")), "{message}");
    }
    dir.cmd(words("search --bulk"))
        .stdin("nonsense")
        .run()
        .code(2)
        .stdout("")
        .stderr_has("line 1 of stdin is not JSON");
}

#[test]
fn a_bulk_line_of_ten_megabytes_is_one_query() {
    let dir = Dir::indexed(&[BACKUP]);
    let long = format!("{{\"query\": \"{}\"}}\n{{\"query\": \"backups\"}}\n", "backups ".repeat(1_250_000));
    let items = bulk(&dir, long).code(0).json_lines();
    assert_eq!(items.len(), 2);
    assert_eq!(items[0]["query"]["query"].as_str().unwrap().len(), 10_000_000);
    assert_eq!(items[1]["response"]["hits"][0]["doc_path"], "guide/backup.md");
}

#[test]
fn bulk_is_readable_without_json() {
    let dir = Dir::indexed(&[BACKUP]);
    let input = "{\"query\": \"backups\", \"mode\": \"lexical\"}\n{\"quary\": \"x\"}\n";
    let output = dir.cmd(words("search --bulk")).stdin(input).ok().stderr("2 queries: 1 answered, 1 failed\n");
    let first = "» backups\nguide/backup.md:1-3  Backups\n    # Backups\n\n    Copy the store every night.\n\n» {\"quary\": \"x\"}\nerror: ";
    assert!(output.stdout.starts_with(first), "{}", output.stdout);
}

#[test]
fn bulk_takes_its_fields_from_the_lines_alone() {
    let dir = Dir::indexed(&[BACKUP]);
    let error = dir.cmd(words("search --bulk --json --k 3")).run().code(2).stdout("").error();
    assert_eq!((&error["code"], &error["details"]["field"]), (&json!("invalid_input"), &json!("k")));
    let error = dir.cmd(words("search --bulk --json word")).run().code(2).error();
    assert_eq!(error["details"]["field"], "query");
}

#[test]
fn layers_of_the_configuration() {
    let dir = Dir::new();
    let text = "one apple\n";
    for name in ["a", "b", "c", "d"] {
        dir.write(&format!("{name}.md"), text);
    }
    dir.cmd(["ingest"]).ok();
    let hits = |output: Output| output.paths().len();
    dir.config("[search]\ndefault_k = 1\n");
    let other = dir.write("../other.toml", "[search]\ndefault_k = 2\n");
    let line = words("search apple --json");
    assert_eq!(hits(dir.cmd(line.clone()).ok()), 1);
    let named = |cmd: &str| dir.cmd(words(cmd).into_iter().chain(["--config", other.to_str().unwrap()]));
    assert_eq!(hits(named("search apple --json").ok()), 2);
    assert_eq!(hits(named("search apple --json").env("KEBAB_SEARCH_DEFAULT_K", "3").ok()), 3);
    assert_eq!(hits(named("search apple --json --k 4").env("KEBAB_SEARCH_DEFAULT_K", "3").ok()), 4);
}

#[test]
fn a_config_file_finds_its_root_and_warns_about_foreign_keys() {
    let dir = Dir::indexed(&[BACKUP]);
    let root = dir.root();
    let config = dir.config(&format!("[workspace]\nroot = '{}'\n[logging]\nlevel = 'x'\n", root.display()));
    let output = dir.cmd(words("search backups --mode lexical")).cwd(dir.home()).ok();
    let warning = format!("kebab-lite: {}: this build does not use: logging\n", config.display());
    output.stdout_has("guide/backup.md:1-3").stderr(&warning);
    dir.cmd(words("search backups --mode lexical -q")).cwd(dir.home()).ok().stderr("");
    dir.cmd(words("search backups --json")).cwd(dir.home()).ok().stderr("");
}

#[test]
fn broken_and_missing_config_files_are_errors() {
    let dir = Dir::new();
    let config = dir.config("[search]\ndefualt_k = 3\n");
    dir.cmd(["schema"]).run().code(2).stdout("").stderr(&format!(
        "kebab-lite: config {}: search.defualt_k: no such key\n  hint: Did you mean `search.default_k`?\n",
        config.display()
    ));
    assert_eq!(dir.cmd(words("schema --json")).run().code(2).error()["code"], "config_invalid");
    assert_eq!(dir.cmd(words("schema --json --config none.toml")).run().code(2).error()["code"], "config_not_found");
}

#[test]
fn the_home_folder_is_searched_only_when_named() {
    let dir = Dir::new();
    let output = dir.cmd(["ingest"]).cwd(dir.home()).run().code(2).stdout("");
    output.stderr_has("is your home folder: it is searched only when named").stderr_has("or run with `--root DIR`.");
    dir.cmd(words("ingest --root .")).cwd(dir.home()).ok();
    let error = dir.cmd(words("ingest --root nowhere --json")).run().code(2).error();
    assert_eq!((&error["code"], &error["details"]["field"]), (&json!("invalid_input"), &json!("root")));
}

#[test]
fn doctor_reports_a_configuration_that_cannot_be_used() {
    let dir = Dir::new();
    let file = dir.root().join("bad.toml");
    std::fs::write(&file, "[search]\ndefault_k = 0\n").unwrap();
    let doctor = dir.cmd(["doctor", "--json", "--config", file.to_str().unwrap()]).run().code(3).json();
    assert_eq!(doctor["ok"], false);
    assert_eq!(doctor["checks"][0]["name"], "config");
    assert!(doctor["checks"][0]["detail"].as_str().unwrap().contains("default_k"), "{doctor}");
}
