//! The words of the domain: ids, media, trust, documents and chunks. Plain data, no I/O.

use std::fmt;
use std::ops::Range;

use globset::GlobMatcher;
use serde::{Deserialize, Serialize, Serializer};

/// A document's or a chunk's identity: 16 bytes, written as 32 lower-case hex characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// Hash of the parts, each length-prefixed so that no two lists of parts collide by concatenation.
    pub fn of(parts: &[&[u8]]) -> Id {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Id(id)
    }

    /// Stable over edits: it depends on where the document lives, not on what it says.
    pub fn document(source_id: &str, path: &str) -> Id {
        Id::of(&[source_id.as_bytes(), path.as_bytes()])
    }

    /// `occurrence` counts equal texts within one document, so an edit changes only the chunks it touches.
    pub fn chunk(document: Id, text: &str, occurrence: u32) -> Id {
        Id::of(&[&document.0, text.as_bytes(), &occurrence.to_le_bytes()])
    }

    /// None unless `hex` is exactly 32 hex digits.
    pub fn parse(hex: &str) -> Option<Id> {
        if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut id = [0; 16];
        for (i, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Id(id))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Id::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no id")))
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut hex = [0; 32];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        match std::str::from_utf8(&hex) {
            Ok(hex) => serializer.serialize_str(hex),
            Err(_) => serializer.collect_str(self),
        }
    }
}

/// Declares a closed set of words: the enum, its wire names and the parser, from one table.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $($(#[$vmeta])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }

            pub fn parse(text: &str) -> Option<$name> {
                match text { $($text => Some($name::$variant),)+ _ => None }
            }

            /// The allowed words, for messages: `a, b, c`.
            pub fn choices() -> String {
                [$($text),+].join(", ")
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// What kind of file a document was read from.
    Media { Markdown = "markdown", Text = "text", Code = "code", Pdf = "pdf", Html = "html", Other = "other" }
}

words! {
    /// How far a document is to be believed; the order is the order of trust.
    Trust { Generated = "generated", Secondary = "secondary", Primary = "primary" }
}

words! {
    /// How a search ranks.
    Mode { Lexical = "lexical", Vector = "vector", Hybrid = "hybrid" }
}

words! {
    /// The scale of a hit's score.
    ScoreKind { Evidence = "evidence", Bm25 = "bm25", Cosine = "cosine", Rerank = "rerank" }
}

words! {
    /// The API of the model that answers questions.
    LlmProvider { Ollama = "ollama", OpenAi = "openai", None = "none" }
}

words! {
    /// The encoding a file was read in.
    Encoding { Utf8 = "utf-8", Utf16Le = "utf-16le", Utf16Be = "utf-16be", EucKr = "euc-kr", Windows1252 = "windows-1252" }
}

/// What a document says about itself, in front matter or by its form.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    /// Front matter, else the first heading; the file name is the caller's last resort.
    pub title: Option<String>,
    /// A BCP 47 primary tag in lower case ("ko", "en", …) or "und".
    pub lang: String,
    pub tags: Vec<String>,
    pub aliases: Vec<String>,
    pub trust_level: Option<Trust>,
    pub source_type: Option<String>,
    /// As written in the front matter, if it is a date or an RFC 3339 time: normalised to RFC 3339 UTC.
    pub created: Option<String>,
    pub updated: Option<String>,
    /// Front-matter keys this program does not know, kept as they were.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// What whoever brought a document said about it: it goes before what the document says itself, and stays with the
/// document when that is read again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Given {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// In addition to the document's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lang: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_level: Option<Trust>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_type: Option<String>,
    /// Where a text that lies in no file is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_uri: Option<String>,
}

impl Given {
    /// What is not said this time stays as it was said before.
    pub fn or(self, earlier: &Given) -> Given {
        Given {
            title: self.title.or_else(|| earlier.title.clone()),
            tags: if self.tags.is_empty() { earlier.tags.clone() } else { self.tags },
            lang: self.lang.or_else(|| earlier.lang.clone()),
            trust_level: self.trust_level.or(earlier.trust_level),
            source_type: self.source_type.or_else(|| earlier.source_type.clone()),
            source_uri: self.source_uri.or_else(|| earlier.source_uri.clone()),
        }
    }

    pub fn apply(&self, metadata: &mut Metadata) {
        if let Some(title) = &self.title {
            metadata.title = Some(title.clone());
        }
        for tag in &self.tags {
            if !metadata.tags.contains(tag) {
                metadata.tags.push(tag.clone());
            }
        }
        if let Some(lang) = &self.lang {
            metadata.lang.clone_from(lang);
        }
        metadata.trust_level = self.trust_level.or(metadata.trust_level);
        if let Some(source_type) = &self.source_type {
            metadata.source_type = Some(source_type.clone());
        }
    }
}

/// Sizes of chunks in estimated tokens; `overlap < target <= max`. The embedding window of 512 leaves `max_tokens` room for the prefix and for error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Neighbours in a section are joined up to here, and longer blocks are cut here.
    pub target_tokens: u32,
    /// No chunk is larger; a block that fits is not cut.
    pub max_tokens: u32,
    /// Repeated between the pieces of one block that had to be cut; at most half of the target counts.
    pub overlap_tokens: u32,
}

impl Default for ChunkLimits {
    fn default() -> Self {
        ChunkLimits { target_tokens: 320, max_tokens: 448, overlap_tokens: 0 }
    }
}

/// A passage of a document: what is ranked, shown and cited.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// Bytes of the document's decoded text; always on character boundaries.
    pub bytes: Range<usize>,
    /// Lines of the source file, 1-based, inclusive at both ends.
    pub lines: (u32, u32),
    /// The headings the chunk stands under, outermost first, its own heading included.
    pub heading_path: Vec<String>,
    /// The symbol a piece of code sits in (`Store::open`), when there is one.
    pub symbol: Option<String>,
    /// Estimated tokens (`ingest::chunk::estimate_tokens`).
    pub tokens: u32,
}

/// The rows of the store that a chunk of the index stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    pub chunk: u32,
    pub document: u32,
}

/// A set of small numbers; absent words are zero.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bits(Vec<u64>);

impl Bits {
    pub fn insert(&mut self, i: usize) {
        if i / 64 >= self.0.len() {
            self.0.resize(i / 64 + 1, 0);
        }
        self.0[i / 64] |= 1 << (i % 64);
    }

    pub fn has(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|word| word >> (i % 64) & 1 == 1)
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub fn from_bytes(bytes: &[u8]) -> Bits {
        Bits(bytes.chunks(8).map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))).collect())
    }
}

/// A segment of the index as the store lists it.
#[derive(Debug, Clone)]
pub struct SegmentEntry {
    pub id: i64,
    /// Name inside the segment folder.
    pub file: String,
    pub chunks: u32,
    pub bytes: u64,
    /// Chunk rows in it, deleted ones included, lie in this range; ranges of segments are disjoint and ascend.
    pub rows: Range<u32>,
    /// Terms counted when it was built, by field.
    pub terms: [u64; 2],
    /// Ordinals of deleted chunks.
    pub tombstones: Bits,
}

/// A segment of vectors as the store lists it.
#[derive(Debug, Clone)]
pub struct VectorEntry {
    /// Name inside the segment folder.
    pub file: String,
    /// The model that made the vectors.
    pub model: String,
    pub dimensions: u32,
    /// Deleted ones included.
    pub vectors: u32,
    /// Chunks whose vectors are not deleted.
    pub chunks: u32,
    pub bytes: u64,
    /// Chunk rows in it, deleted ones included, lie in this range; ranges of segments may overlap, no live row is in two.
    pub rows: Range<u32>,
    /// Places of deleted vectors.
    pub tombstones: Bits,
}

/// How what words and what meaning say of a chunk are weighed against each other; both values lie on a flat optimum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Of BM25.
    pub lambda: f32,
    /// The count of chance neighbours at which closeness begins to say something.
    pub c: f32,
}

impl Default for Weights {
    fn default() -> Self {
        Weights { lambda: 0.7, c: 20.0 }
    }
}

/// Which documents a search is about: AND across fields, OR inside a list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub tags: Vec<String>,
    pub lang: Option<String>,
    pub path_glob: Option<GlobMatcher>,
    pub trust_min: Option<Trust>,
    pub media: Vec<String>,
    /// Nanoseconds since 1970.
    pub ingested_after: Option<i64>,
    pub doc_id: Option<Id>,
    pub sources: Vec<String>,
    pub repos: Vec<String>,
    pub code_langs: Vec<String>,
    pub exclude_tags: Vec<String>,
    pub exclude_path_glob: Option<GlobMatcher>,
    pub exclude_doc_ids: Vec<Id>,
}

impl Filter {
    /// True if every document passes.
    pub fn is_open(&self) -> bool {
        self.tags.is_empty()
            && self.lang.is_none()
            && self.path_glob.is_none()
            && self.trust_min.is_none()
            && self.media.is_empty()
            && self.ingested_after.is_none()
            && self.doc_id.is_none()
            && self.sources.is_empty()
            && self.repos.is_empty()
            && self.code_langs.is_empty()
            && self.exclude_tags.is_empty()
            && self.exclude_path_glob.is_none()
            && self.exclude_doc_ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_goes_first_and_what_is_not_given_stays() {
        let earlier = Given { title: Some("Old".into()), tags: vec!["a".into()], ..Given::default() };
        let given = Given { title: Some("New".into()), trust_level: Some(Trust::Generated), ..Given::default() };
        let given = given.or(&earlier);
        assert_eq!((given.title.as_deref(), &given.tags[..]), (Some("New"), &["a".to_owned()][..]));

        let mut metadata = Metadata { lang: "ko".into(), tags: vec!["own".into(), "a".into()], ..Metadata::default() };
        given.apply(&mut metadata);
        let expected = Metadata {
            title: Some("New".into()),
            lang: "ko".into(),
            tags: vec!["own".into(), "a".into()],
            trust_level: Some(Trust::Generated),
            ..Metadata::default()
        };
        assert_eq!(metadata, expected);
    }
}
