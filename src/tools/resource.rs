//! `kebab://doc/{id}` and `kebab://chunk/{id}`: texts of the store by id, as they are on disk.

use std::fmt;

use crate::error::Result;
use crate::kb::Kb;
use crate::model::{Id, Media};

/// The fields of a resources/templates/list result.
pub const TEMPLATES: &str = concat!(
    r#""resourceTemplates":["#,
    r#"{"uriTemplate":"kebab://doc/{id}","name":"doc","title":"Document","description":"Full text of a document, by the doc_id of a hit"},"#,
    r#"{"uriTemplate":"kebab://chunk/{id}","name":"chunk","title":"Passage","description":"Full text of a passage, by the chunk_id of a hit"}]"#
);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uri {
    Document(Id),
    Chunk(Id),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    pub mime: &'static str,
    pub text: String,
}

impl Uri {
    pub fn parse(uri: &str) -> Option<Uri> {
        let (kind, id) = uri.strip_prefix("kebab://")?.split_once('/')?;
        let id = Id::parse(id)?;
        match kind {
            "doc" => Some(Uri::Document(id)),
            "chunk" => Some(Uri::Chunk(id)),
            _ => None,
        }
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Uri::Document(id) => write!(f, "kebab://doc/{id}"),
            Uri::Chunk(id) => write!(f, "kebab://chunk/{id}"),
        }
    }
}

/// None if there is nothing of this id.
pub fn read(kb: &Kb, uri: &Uri) -> Result<Option<Text>> {
    kb.read_store(|store| {
        let (document, bytes) = match uri {
            Uri::Document(id) => match store.document_by_id(*id)? {
                Some(document) => {
                    let len = store.text_len(document.row)?;
                    (document, 0..len)
                }
                None => return Ok(None),
            },
            Uri::Chunk(id) => match store.chunk_by_id(*id)? {
                Some(chunk) => (store.document(chunk.document)?, chunk.chunk.bytes),
                None => return Ok(None),
            },
        };
        let mime = match document.media {
            Media::Markdown => "text/markdown",
            _ => "text/plain",
        };
        Ok(Some(Text { mime, text: store.text(document.row, bytes)? }))
    })
}
