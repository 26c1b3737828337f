//! The body of a request as it arrives: what of the bytes belongs to it, and whether it is all there. A pure machine
//! that keeps what has come and never makes room for what was only claimed.

use super::head::{Framing, MAX_BODY, bad};
use super::response::{Refusal, Status};

pub struct Body {
    bytes: Vec<u8>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// So many bytes to come, then the end.
    Rest(u64),
    /// The line with the size of a chunk.
    Size,
    /// So many bytes of a chunk to come.
    Chunk(u64),
    /// The line end behind a chunk.
    ChunkEnd,
    /// The blank line behind the last chunk.
    Last,
    Done,
}

/// Hexadecimal digits of a size; a body of more is too large whatever they say.
const MAX_DIGITS: usize = 16;

impl Body {
    pub fn new(framing: Framing) -> Body {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Rest(length),
            Framing::Chunked => State::Size,
        };
        Body { bytes: Vec::new(), state }
    }

    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Takes what belongs to the body from the front of `bytes`; says how much that was. What is left unless the body
    /// is done is the beginning of a line whose end has not come, and is to be shown again with more behind it.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<usize, Refusal> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            match self.state {
                State::Done => return Ok(used),
                State::Rest(left) | State::Chunk(left) => {
                    let count = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    self.bytes.extend_from_slice(&rest[..count]);
                    used += count;
                    let left = left - count as u64;
                    let chunked = matches!(self.state, State::Chunk(_));
                    self.state = match (chunked, left) {
                        (false, 0) => State::Done,
                        (true, 0) => State::ChunkEnd,
                        (false, _) => State::Rest(left),
                        (true, _) => State::Chunk(left),
                    };
                    if left > 0 {
                        return Ok(used);
                    }
                }
                State::Size => {
                    let Some(line) = line(rest, MAX_DIGITS)? else { return Ok(used) };
                    used += line.len() + 2;
                    let size = size(line)?;
                    if size > MAX_BODY.saturating_sub(self.bytes.len() as u64) {
                        return Err(Refusal::new(
                            Status::ContentTooLarge,
                            format!("a body has at most {MAX_BODY} bytes"),
                        ));
                    }
                    self.state = if size == 0 { State::Last } else { State::Chunk(size) };
                }
                State::ChunkEnd | State::Last => {
                    let Some(line) = line(rest, 0)? else { return Ok(used) };
                    used += line.len() + 2;
                    self.state = if self.state == State::Last { State::Done } else { State::Size };
                }
            }
        }
    }
}

/// The line that the bytes begin with, without its CRLF; None until that has come.
fn line(bytes: &[u8], longest: usize) -> Result<Option<&[u8]>, Refusal> {
    let wrong = || bad("a chunk is not framed as it should be; extensions and trailers are refused");
    let end = bytes.iter().take(longest + 2).position(|byte| *byte == b'\n');
    match end {
        Some(end) if end > 0 && bytes[end - 1] == b'\r' && end - 1 <= longest => Ok(Some(&bytes[..end - 1])),
        Some(_) => Err(wrong()),
        None if bytes.len() >= longest + 2 => Err(wrong()),
        // A CR may only be the one before the line feed that is to come.
        None if bytes.iter().rev().skip(1).any(|byte| *byte == b'\r') => Err(wrong()),
        None => Ok(None),
    }
}

fn size(line: &[u8]) -> Result<u64, Refusal> {
    let digits = std::str::from_utf8(line).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let size = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    size.ok_or_else(|| bad("the size of a chunk must be hexadecimal digits"))
}
