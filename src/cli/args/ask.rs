//! The flags of `ask`.

use argh::{ArgsInfo, FromArgs};
use serde_json::{Map, Value};

use super::{many, object, one};

/// Answer a question from the documents, each sentence with the passage it is from.
#[derive(FromArgs, ArgsInfo)]
#[argh(
    subcommand,
    name = "ask",
    help_triggers("--help", "-h"),
    example = "{command_name} --extractive how long are backups kept",
    note = "Answers come from the model of models.llm in the config file, or of the variables\n\
            KEBAB_MODELS_LLM_PROVIDER (ollama, openai), _MODEL, _ENDPOINT and _API_KEY.\n\
            Exit code 1: no answer, and why. Filters are those of search.\n\
            Words behind `--` are words of the question, even those that start with a dash."
)]
pub struct AskArgs {
    /// words of the question
    #[argh(positional, arg_name = "question")]
    pub question: Vec<String>,
    /// quote the best passages and call no model (default: rag.extractive of the config file, else off)
    #[argh(switch)]
    pub extractive: bool,
    /// go on with a conversation, or begin one of this name: letters, digits, `-` and `_`
    #[argh(option, arg_name = "id")]
    pub session: Option<String>,
    /// print the answer as it comes; with --json, events on stderr
    #[argh(switch)]
    pub stream: bool,
    /// look the parts of a question up one by one
    #[argh(switch)]
    pub multi_hop: bool,
    /// show the text of each citation
    #[argh(switch)]
    pub show_citations: bool,
    /// show the passages, their scores and the prompt
    #[argh(switch)]
    pub explain: bool,
    /// how to find passages: lexical, vector or hybrid (default: hybrid)
    #[argh(option)]
    pub mode: Option<String>,
    /// number of hits to choose passages from, 1 to 100 (default: 10, or search.default_k of the config file)
    #[argh(option)]
    pub k: Option<String>,
    /// how freely the model speaks, 0 to 2 (default: 0, or models.llm.temperature)
    #[argh(option, arg_name = "t")]
    pub temperature: Option<String>,
    /// the same number makes a model that knows seeds answer alike (default: models.llm.seed, else none)
    #[argh(option, arg_name = "n")]
    pub seed: Option<String>,
    /// list the conversations that are kept
    #[argh(switch)]
    pub list_sessions: bool,
    /// forget a conversation
    #[argh(option, arg_name = "id")]
    pub forget: Option<String>,
    /// ingest changed files first
    #[argh(switch)]
    pub sync: bool,
    /// only documents with this tag; may be repeated
    #[argh(option)]
    pub tag: Vec<String>,
    /// only documents in this language, such as en or ko
    #[argh(option)]
    pub lang: Option<String>,
    /// only paths that match, such as docs/**/*.md
    #[argh(option, arg_name = "glob")]
    pub path_glob: Option<String>,
    /// only documents trusted at least so far: generated, secondary or primary
    #[argh(option, arg_name = "level")]
    pub trust_min: Option<String>,
    /// only this kind of file: markdown, text, code, pdf, html or other; may be repeated
    #[argh(option, arg_name = "kind")]
    pub media: Vec<String>,
    /// only documents indexed after this time, such as 2025-01-31T00:00:00Z
    #[argh(option, arg_name = "time")]
    pub ingested_after: Option<String>,
    /// only this document
    #[argh(option, arg_name = "id")]
    pub doc_id: Option<String>,
    /// only this configured source; may be repeated
    #[argh(option, arg_name = "id")]
    pub source: Vec<String>,
    /// only this repository; may be repeated
    #[argh(option, arg_name = "name")]
    pub repo: Vec<String>,
    /// only code in this programming language; may be repeated
    #[argh(option, arg_name = "lang")]
    pub code_lang: Vec<String>,
    /// no documents with this tag; may be repeated
    #[argh(option, arg_name = "tag")]
    pub exclude_tag: Vec<String>,
    /// no paths that match
    #[argh(option, arg_name = "glob")]
    pub exclude_path_glob: Option<String>,
    /// not this document; may be repeated
    #[argh(option, arg_name = "id")]
    pub exclude_doc_id: Vec<String>,
}

impl AskArgs {
    /// The object an MCP client would send: only what was given, values as they were given.
    pub fn into_json(self) -> Map<String, Value> {
        let words = if self.question.is_empty() { None } else { Some(self.question.join(" ")) };
        let switch = |on: bool| on.then_some(Value::Bool(true));
        object([
            ("question", one(words)),
            ("extractive", switch(self.extractive)),
            ("session_id", one(self.session)),
            ("multi_hop", switch(self.multi_hop)),
            ("show_citations", switch(self.show_citations)),
            ("explain", switch(self.explain)),
            ("mode", one(self.mode)),
            ("k", one(self.k)),
            ("temperature", one(self.temperature)),
            ("seed", one(self.seed)),
            ("tag", many(self.tag)),
            ("lang", one(self.lang)),
            ("path_glob", one(self.path_glob)),
            ("trust_min", one(self.trust_min)),
            ("media", many(self.media)),
            ("ingested_after", one(self.ingested_after)),
            ("doc_id", one(self.doc_id)),
            ("source", many(self.source)),
            ("repo", many(self.repo)),
            ("code_lang", many(self.code_lang)),
            ("exclude_tag", many(self.exclude_tag)),
            ("exclude_path_glob", one(self.exclude_path_glob)),
            ("exclude_doc_id", many(self.exclude_doc_id)),
        ])
    }
}
