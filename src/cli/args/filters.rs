//! The filters of `search` and `ask`. Flags of argh cannot be nested, so a macro puts the same ones behind those of either.

/// The flags of a command and the filters behind them, with `filters`: the fields of the filters that were given.
/// Types are matched word by word, since argh reads them as they are spelt.
macro_rules! with_filters {
    ($(#[$($of_all:tt)*])* pub struct $name:ident { $($(#[$($of_one:tt)*])* pub $flag:ident: $value:ident $(<$of:ident>)?,)* }) => {
        $(#[$($of_all)*])*
        pub struct $name {
            $($(#[$($of_one)*])* pub $flag: $value$(<$of>)?,)*
            /// only documents with this tag; may be repeated
            #[argh(option)]
            pub tag: Vec<String>,
            /// only documents in this language, such as en or ko
            #[argh(option)]
            pub lang: Option<String>,
            /// only paths that match, such as docs/**/*.md: `*` stops at `/`, `**` does not
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

        impl $name {
            fn filters(&mut self) -> [(&'static str, Option<serde_json::Value>); 13] {
                use $crate::cli::args::{many, one};
                use std::mem::take;
                [
                    ("tag", many(take(&mut self.tag))),
                    ("lang", one(take(&mut self.lang))),
                    ("path_glob", one(take(&mut self.path_glob))),
                    ("trust_min", one(take(&mut self.trust_min))),
                    ("media", many(take(&mut self.media))),
                    ("ingested_after", one(take(&mut self.ingested_after))),
                    ("doc_id", one(take(&mut self.doc_id))),
                    ("source", many(take(&mut self.source))),
                    ("repo", many(take(&mut self.repo))),
                    ("code_lang", many(take(&mut self.code_lang))),
                    ("exclude_tag", many(take(&mut self.exclude_tag))),
                    ("exclude_path_glob", one(take(&mut self.exclude_path_glob))),
                    ("exclude_doc_id", many(take(&mut self.exclude_doc_id))),
                ]
            }
        }
    };
}

pub(super) use with_filters;
