//! kebab-lite: a local knowledge base as a library. The program is a thin layer over it.
//!
//! ```text
//! stdin line ─ stdio ─┬─ rpc ─┬─ known at once ─► stdout line, response
//! request ──── http ──┘       └─ a call ─► pool ─┐
//! argv ─ cli ─ input ────────────────────────────┤
//!                                                ▼
//!      tools::<verb>::run(&Kb, Input) -> Result<wire::Output, Error>
//!                                              │
//!      Kb { config, connections, snapshot: Arc<Index> }
//!                                              │
//!      index: terms → posting lists ∥ query → vector → scan or graph; fuse; the store hydrates k of the best
//!
//! files ─ ingest: walk → prepare (parse, chunk, weigh) ─► store, one transaction ─► segment, revision + 1
//!         then, batch by batch: chunks without vectors → embed ─► segment of vectors, revision + 1
//! ```
//! The one seam is `tools::<verb>::run`: the command line, the protocol and embedding programs all call it, and its
//! output is the wire struct.
//!
//! | room | owns | the only one that names |
//! |---|---|---|
//! | `main.rs`, `cli/` (program) | argv → input, rendering for people, exit codes | argh, indicatif, ctrlc, stdout |
//! | [`error`] [`model`] [`wire`] [`config`] | what can go wrong · the words of the domain · every v1 shape · defaults ← file ← environment ← flags | |
//! | [`endpoint`] | one HTTP request to a model server, its deadline, its failures and its end on demand | minreq, rustls |
//! | [`llm`] | a chat call to a language model, streamed, in two dialects | |
//! | [`store`] | the source of truth: documents, texts, chunks, the list of segments | rusqlite |
//! | [`index`] | the immutable snapshot: terms, posting lists, top-k, snippets; vectors, their scan and their graph; the fusion of evidence | bm25, bitpacking, memmap2, instant_distance |
//! | [`index::embed`] | texts → unit vectors: the model within the program, a folder's or an endpoint's; the cross-encoder | ort, ort_tract, tokenizers, libloading |
//! | [`ingest`] | files → documents → chunks → store and index, then vectors; parsing and chunking are pure functions | rayon, ignore, pulldown-cmark, html5gum |
//! | [`kb`] | configuration, connections, the current snapshot | |
//! | [`tools`] | a file a verb, and `TOOLS`, the table of those the protocol offers | |
//! | [`rpc`] | JSON-RPC and MCP as pure functions of (knowledge base, message) | |
//! | [`pool`] [`catch_up`] [`log`] [`exit`] | workers · a server's own ingest · its lines on stderr · the end of a process | |
//! | [`lines`] [`stdio`] | lines ⇄ messages over any two streams · the one owner of a server's stdout | nix |
//! | [`residency`] | which pages of the program stay in memory | nix |
//! | [`rendezvous`] | where a server and those who look for it meet: token, endpoint file, locks | getrandom |
//! | [`http`] | HTTP/1.1 ⇄ messages: framing, limits, deadlines, headers | httparse |
//! | [`connect`] | a thin line to a server that many hosts share: finds it, starts it, stands in for it | |
//! | [`serve`] | a server's life: transports, signals, idleness, its end | ctrlc |
//!
//! Imports go down this list only: `error model` ← `wire config` ← `endpoint` ← `llm` ← `store index` ←
//! `ingest::{decode,parse,chunk}` ← `kb` ← `ingest` ← `tools` ← `rpc` ← `log pool catch_up` ← `lines` ← `stdio rendezvous residency` ←
//! `http` ← `serve connect` ← program. The index does not know SQLite; the store
//! does not know the index; rpc does not know a transport; a transport does not know a tool; nothing in the library
//! prints. A test reads the edges and holds them.
//!
//! Invariants
//! - A search sees one revision: its read transaction and its snapshot belong together.
//! - A segment file is complete and durable before the transaction that names it commits; it never changes afterwards.
//! - Chunk rows ascend within a segment and ranges of segments are disjoint, so a row leads to its segment. Vectors lie
//!   in segments of their own; whatever happens to those, searching by words goes on.
//! - A vector's key is the hash of model and text: no text is given to a model twice, and vectors of two never mix.
//! - A hit's score depends on query, chunk and corpus alone, not on the page or on the other candidates.
//! - Equal scores are broken by chunk row. Sums of impacts are integers, so skipping work changes no score.
//! - Text is stored once, as decoded from its file; a chunk is a range of it, and its lines are the file's lines.
//! - Documents are never written to.

pub mod catch_up;
pub mod config;
pub mod connect;
pub mod endpoint;
pub mod error;
pub mod exit;
pub mod http;
pub mod index;
pub mod ingest;
pub mod kb;
pub mod lines;
pub mod llm;
pub mod log;
pub mod model;
pub mod pool;
pub mod rendezvous;
pub mod residency;
pub mod rpc;
pub mod serve;
pub mod stdio;
pub mod store;
pub mod tools;
pub mod wire;
