//! Bytes of a file → text, and the way back to a byte offset of the file.
//!
//! Refuses half-read texts: a file is decoded without a single replacement character, or named unreadable.

use encoding_rs::{EUC_KR, WINDOWS_1252};

use crate::model::Encoding;

#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// Without the byte order mark.
    pub text: String,
    pub encoding: Encoding,
    /// The file starts with a byte order mark: 3 bytes in UTF-8, 2 in UTF-16.
    pub had_bom: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// NUL or many control characters near the start.
    Binary,
    /// Neither UTF-8, CP949 nor Latin-1 text.
    UnknownEncoding,
    /// UTF-8 or UTF-16 that stops in the middle of a character.
    Truncated,
    /// UTF-8 or UTF-16 with broken sequences inside.
    Malformed,
}

impl Unreadable {
    pub fn reason(self) -> &'static str {
        match self {
            Unreadable::Binary => "binary",
            Unreadable::UnknownEncoding => "unknown encoding",
            Unreadable::Truncated => "truncated",
            Unreadable::Malformed => "malformed",
        }
    }
}

/// Valid UTF-8 is taken over without a copy, UTF-16 is known by its byte order mark, and what is left must look
/// like Korean (CP949, EUC-KR included) or like western European text (windows-1252, Latin-1 included).
pub fn decode(mut bytes: Vec<u8>) -> Result<Decoded, Unreadable> {
    if let Some(units) = bytes.strip_prefix(b"\xFF\xFE") {
        return utf16(units, Encoding::Utf16Le, u16::from_le_bytes);
    }
    if let Some(units) = bytes.strip_prefix(b"\xFE\xFF") {
        return utf16(units, Encoding::Utf16Be, u16::from_be_bytes);
    }
    let had_bom = bytes.starts_with(UTF8_BOM);
    if had_bom {
        bytes.drain(..UTF8_BOM.len());
    }
    if is_binary(&bytes) {
        return Err(Unreadable::Binary);
    }
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return Ok(Decoded { text, encoding: Encoding::Utf8, had_bom }),
        Err(error) => error.into_bytes(),
    };
    if had_bom {
        return Err(broken_utf8(&bytes).unwrap_or(Unreadable::Malformed));
    }
    if let Some(broken) = broken_utf8(&bytes) {
        return Err(broken);
    }
    let (encoding, codec) = match () {
        () if is_korean(&bytes) => (Encoding::EucKr, EUC_KR),
        () if is_western(&bytes) => (Encoding::Windows1252, WINDOWS_1252),
        () => return Err(Unreadable::UnknownEncoding),
    };
    match codec.decode_without_bom_handling_and_without_replacement(&bytes) {
        Some(text) => Ok(Decoded { text: text.into_owned(), encoding, had_bom: false }),
        None => Err(Unreadable::UnknownEncoding),
    }
}

/// The byte of the source file at which byte `byte` of the decoded text stands. `byte` is a character boundary; one
/// inside a character counts as that character's start.
pub fn source_offset(text: &str, byte: usize, encoding: Encoding, had_bom: bool) -> u64 {
    let before = &text[..text.floor_char_boundary(byte)];
    let bytes = match encoding {
        Encoding::Utf8 => before.len() + if had_bom { UTF8_BOM.len() } else { 0 },
        Encoding::Utf16Le | Encoding::Utf16Be => 2 * before.encode_utf16().count() + if had_bom { 2 } else { 0 },
        Encoding::EucKr => before.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum(),
        Encoding::Windows1252 => before.chars().count(),
    };
    bytes as u64
}

/// Whether a file that starts so is binary: what `decode` would say of it, whatever follows. `head` is the file's first
/// `HEAD_BYTES`, or all of it.
pub fn opens_binary(head: &[u8]) -> bool {
    let utf16 = head.starts_with(b"\xFF\xFE") || head.starts_with(b"\xFE\xFF");
    !utf16 && is_binary(head.strip_prefix(UTF8_BOM).unwrap_or(head))
}

/// How much of a file tells whether it is binary.
pub const HEAD_BYTES: usize = HEAD + UTF8_BOM.len();

const UTF8_BOM: &[u8] = b"\xEF\xBB\xBF";

/// How much of a file is looked at for NUL and control characters.
const HEAD: usize = 8192;

fn utf16(bytes: &[u8], encoding: Encoding, unit: fn([u8; 2]) -> u16) -> Result<Decoded, Unreadable> {
    let pairs = bytes.chunks_exact(2);
    let odd = !pairs.remainder().is_empty();
    let units = pairs.map(|pair| unit([pair[0], pair[1]]));
    let mut text = String::with_capacity(bytes.len() / 2);
    let mut decoder = char::decode_utf16(units).peekable();
    while let Some(c) = decoder.next() {
        match c {
            Ok(c) => text.push(c),
            Err(_) if decoder.peek().is_none() => return Err(Unreadable::Truncated),
            Err(_) => return Err(Unreadable::Malformed),
        }
    }
    if is_binary(text.as_bytes()) {
        return Err(Unreadable::Binary);
    }
    if odd {
        return Err(Unreadable::Truncated);
    }
    Ok(Decoded { text, encoding, had_bom: true })
}

fn is_binary(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(HEAD)];
    let controls = head.iter().filter(|&&b| is_control(b)).count();
    head.contains(&0) || controls * 10 > head.len()
}

/// Controls that text does not hold: a log may hold escapes and backspaces, a listing form feeds.
fn is_control(byte: u8) -> bool {
    matches!(byte, 0..=7 | 0x0E..=0x1A | 0x1C..=0x1F | 0x7F)
}

/// A legacy file matches UTF-8 only by chance; where most bytes beyond ASCII do, it is UTF-8 with damage, and another
/// reading of it would be nonsense.
fn broken_utf8(bytes: &[u8]) -> Option<Unreadable> {
    let (mut valid, mut invalid, mut last) = (0, 0, 0);
    for chunk in bytes.utf8_chunks() {
        valid += chunk.valid().bytes().filter(|b| !b.is_ascii()).count();
        last = chunk.invalid().len();
        invalid += last;
    }
    let ends_short = last > 0 && last == invalid && std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none());
    match valid > 4 * invalid {
        true if ends_short => Some(Unreadable::Truncated),
        true => Some(Unreadable::Malformed),
        false => None,
    }
}

/// All of it is CP949, and most double bytes are among the 2,350 Hangul syllables of KS X 1001: Chinese and Japanese
/// encodings, and accented letters that happen to pair up, fall outside.
fn is_korean(bytes: &[u8]) -> bool {
    let (mut hangul, mut others) = (0, 0);
    let mut rest = bytes.iter();
    while let Some(&lead) = rest.next() {
        if lead.is_ascii() {
            continue;
        }
        match (lead, rest.next()) {
            (0xB0..=0xC8, Some(0xA1..=0xFE)) => hangul += 1,
            (0xA1..=0xAC, Some(0xA1..=0xFE)) => {}
            _ => others += 1,
        }
    }
    hangul > others && EUC_KR.decode_without_bom_handling_and_without_replacement(bytes).is_some()
}

/// Accented letters stand alone or in pairs among many plain ones; other 8-bit encodings show long runs.
fn is_western(bytes: &[u8]) -> bool {
    let letters = bytes.iter().filter(|b| b.is_ascii_alphabetic()).count();
    let (mut high, mut in_runs) = (0, 0);
    for run in bytes.split(|b| b.is_ascii()).filter(|run| !run.is_empty()) {
        high += run.len();
        in_runs += if run.len() > 2 { run.len() } else { 0 };
    }
    let undefined = |b: &u8| matches!(b, 0x81 | 0x8D | 0x8F | 0x90 | 0x9D);
    !bytes.iter().any(|b| undefined(b) || is_control(*b)) && high * 2 <= letters && in_runs * 4 <= high
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<(String, Encoding, bool), &'static str> {
        decode(bytes.to_vec()).map(|d| (d.text, d.encoding, d.had_bom)).map_err(Unreadable::reason)
    }

    #[test]
    fn encodings_are_told_apart() {
        use Encoding::*;
        let ok = |text: &str, encoding, bom| Ok((text.to_owned(), encoding, bom));
        assert_eq!(read(b""), ok("", Utf8, false));
        assert_eq!(read("a 한글 \u{FFFD}".as_bytes()), ok("a 한글 \u{FFFD}", Utf8, false));
        assert_eq!(read(b"\xEF\xBB\xBF# T"), ok("# T", Utf8, true));
        assert_eq!(read(b"\xFF\xFEA\0\x00\xAC"), ok("A가", Utf16Le, true));
        assert_eq!(read(b"\xFE\xFF\0A\xAC\x00"), ok("A가", Utf16Be, true));
        assert_eq!(read(b"\xC7\xD1\xB1\xDB \xB9\xAE\xBC\xAD utf"), ok("한글 문서 utf", EucKr, false));
        assert_eq!(read(b"d\xE9j\xE0 vu, na\xEFve caf\xE9"), ok("déjà vu, naïve café", Windows1252, false));
        assert_eq!(read(b"it\x92s Stra\xDFe \x96 \xC4rger"), ok("it’s Straße – Ärger", Windows1252, false));
    }

    #[test]
    fn what_is_not_text_is_refused() {
        assert_eq!(read(b"\x7FELF\x02\x01\x01\0\0"), Err("binary"));
        assert_eq!(read(b"\x01\x02\x03\x04 abc"), Err("binary"));
        assert_eq!(read(b"\xFF\xFE\0\0A\0\0\0"), Err("binary"));
        assert_eq!(read(b"\xFF\xFEA\0B"), Err("truncated"));
        assert_eq!(read(b"\xFF\xFEA\0\x00\xD8"), Err("truncated"));
        assert_eq!(read(b"\xFF\xFE\x00\xD8A\0B\0"), Err("malformed"));
        assert_eq!(read(&"한국어 문서".as_bytes()[..14]), Err("truncated"));
        assert_eq!(read(b"\xEC\x95\x88\xEB\x85\x95 \xFF \xEC\x95\x88"), Err("malformed"));
        // Windows-1251 and Shift-JIS.
        assert_eq!(read(b"\xCF\xF0\xE8\xE2\xE5\xF2, \xEC\xE8\xF0 hello"), Err("unknown encoding"));
        assert_eq!(read(b"\x93\xFA\x96{\x8C\xEA\x82\xCC\x95\xB6\x8F\x91"), Err("unknown encoding"));
    }

    #[test]
    fn offsets_lead_back_to_the_file() {
        let at = |text: &str, needle, encoding, bom| source_offset(text, text.find(needle).unwrap(), encoding, bom);
        assert_eq!(at("한글 x", 'x', Encoding::Utf8, true), 10);
        assert_eq!(at("한😀x", 'x', Encoding::Utf16Be, true), 8);
        assert_eq!(at("한글 x", 'x', Encoding::EucKr, false), 5);
        assert_eq!(at("éé x", 'x', Encoding::Windows1252, false), 3);
    }

    #[test]
    fn whatever_is_read_is_read_to_the_last_byte() {
        let seeds: [&[u8]; 4] =
            ["UTF-8 텍스트 😀".as_bytes(), b"\xFF\xFEA\0\x3D\xD8\x00\xDE", b"\xC7\xD1\xB1\xDB", b"caf\xE9 noir"];
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        for round in 0..8000 {
            let mut bytes = seeds[round % seeds.len()].to_vec();
            for _ in 0..3 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let at = state as usize % bytes.len();
                bytes[at] = (state >> 32) as u8;
            }
            if let Ok(decoded) = decode(bytes.clone()) {
                let whole = source_offset(&decoded.text, decoded.text.len(), decoded.encoding, decoded.had_bom);
                assert_eq!(whole, bytes.len() as u64, "{bytes:02x?}");
            }
        }
    }
}
