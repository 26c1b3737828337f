//! The flags of `ask`.

use argh::{ArgsInfo, FromArgs};
use serde_json::{Map, Value};

use super::filters::with_filters;
use super::{object, one};

with_filters! {
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
    }
}

impl AskArgs {
    /// The object an MCP client would send: only what was given, values as they were given.
    pub fn into_json(mut self) -> Map<String, Value> {
        let filters = self.filters();
        let words = if self.question.is_empty() { None } else { Some(self.question.join(" ")) };
        let switch = |on: bool| on.then_some(Value::Bool(true));
        let fields = [
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
        ];
        object(fields.into_iter().chain(filters))
    }
}
