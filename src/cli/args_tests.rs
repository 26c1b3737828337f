//! argv in every order and form.

use super::*;

fn sorted(line: &str) -> Result<String> {
    let line = normalise(line.split(' ').map(str::to_owned).collect())?;
    Ok(line.args().collect::<Vec<_>>().join(" "))
}

fn refused(line: &str) -> (String, String) {
    let error = sorted(line).unwrap_err();
    (error.to_string(), error.hint().unwrap_or_default())
}

#[test]
fn flags_may_stand_anywhere() {
    let cases = [
        ("search a b", "search -- a b"),
        ("search a --k 3 b --json", "--json search --k 3 -- a b"),
        ("--root=x search --k=3 a", "--root x search --k 3 -- a"),
        ("search a -q --data-dir d", "--quiet --data-dir d search -- a"),
        ("search --tag=-x --tag y a", "search --tag -x --tag y -- a"),
        ("search --tag -x a", "search --tag -x -- a"),
        ("search --json -- --k -q", "--json search -- --k -q"),
        ("search -", "search -- -"),
        ("search help", "search -- help"),
        ("ingest a/b --wait=5 --force", "ingest --wait 5 --force -- a/b"),
        ("search --k= a", "search --k  -- a"),
    ];
    for (line, expected) in cases {
        assert_eq!(sorted(line).unwrap(), expected, "{line}");
    }
}

#[test]
fn what_is_wrong_is_named_and_the_nearest_right_word_given() {
    let cases = [
        ("serach a", "subcommand: there is no \"serach\"", "Did you mean `search`?"),
        (
            "frobnicate",
            "subcommand: there is no \"frobnicate\"",
            "Subcommands: ingest, search, ask, fetch, ingest-file, ingest-stdin, schema, doctor, mcp, server.",
        ),
        ("search --mdoe x", "--mdoe: there is no such flag", "Did you mean `--mode`?"),
        ("search a --jsn", "--jsn: there is no such flag", "Did you mean `--json`?"),
        ("search -zzz", "-zzz: there is no such flag", "Put `--` before words that start with a dash."),
        ("--k 3 search a", "--k: there is no such flag", "It is a flag of `search` and stands behind that word."),
        ("search --json=1 a", "--json: it takes no value", ""),
        ("search a --k", "--k: it needs a value", "Write --k <k>, or --k=<k> if it starts with a dash."),
        ("search --k --json", "--k: it needs a value", "Write --k <k>, or --k=<k> if it starts with a dash."),
    ];
    for (line, message, hint) in cases {
        assert_eq!(refused(line), (message.to_owned(), hint.to_owned()), "{line}");
    }
}

#[test]
fn no_flag_of_a_subcommand_hides_a_global_one() {
    let top = Args::get_args_info();
    for command in &top.commands {
        for flag in command.command.flags.iter().filter(|flag| flag.long != "--help") {
            assert!(find_flag(top.flags, flag.long).is_none(), "{} {}", command.name, flag.long);
        }
    }
}

#[test]
fn search_flags_become_the_object_a_client_would_send() {
    let argv = "search --k 5 --tag a --tag b --drop-weak --path-glob x/** two words";
    let Ok(Request::Run(args)) = parse(argv.split(' ').map(OsString::from).collect()) else { panic!("{argv}") };
    let Command::Search(search) = args.command else { panic!("{argv}") };
    let expected = serde_json::json!({
        "query": "two words", "k": "5", "tag": ["a", "b"], "drop_weak": true, "path_glob": "x/**"
    });
    assert_eq!(Value::Object(search.into_json()), expected);
}

#[test]
fn lines_become_their_two_ends() {
    let lines = |lines: &str| {
        let argv = ["fetch", "a.md", "--lines", lines].map(OsString::from).to_vec();
        let Ok(Request::Run(args)) = parse(argv) else { panic!("{lines}") };
        let Command::Fetch(fetch) = args.command else { panic!("{lines}") };
        let object = fetch.into_json();
        ["line_start", "line_end"].map(|name| object.get(name).map_or("none", |end| end.as_str().unwrap()).to_owned())
    };
    for (text, expected) in [
        ("12-34", ["12", "34"]),
        ("12", ["12", "12"]),
        ("12-", ["12", "none"]),
        ("-34", ["none", "34"]),
        ("-", ["", ""]),
        ("x", ["x", "x"]),
    ] {
        assert_eq!(lines(text), expected, "{text}");
    }
}
