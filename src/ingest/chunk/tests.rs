use super::*;
use crate::ingest::decode::{decode, source_offset};
use crate::ingest::parse::{parse, readable_part};

fn limits(target_tokens: u32, max_tokens: u32, overlap_tokens: u32) -> ChunkLimits {
    ChunkLimits { target_tokens, max_tokens, overlap_tokens }
}

/// Each chunk as `first-last path: text`, on one line.
fn outline(path: &str, text: &str, limits: &ChunkLimits) -> Vec<String> {
    let show = |chunk: &Chunk| {
        let (first, last) = chunk.lines;
        let place = chunk.symbol.clone().unwrap_or_else(|| chunk.heading_path.join(" › "));
        format!("{first}-{last} {place}: {}", text[chunk.bytes.clone()].replace('\n', "⏎"))
    };
    chunk(text, &parse(path, text), limits).iter().map(show).collect()
}

#[test]
fn headings_stay_with_what_follows() {
    let long = "word ".repeat(60);
    let long = long.trim_end();
    let text = format!("intro\r\n\r\n# A\n\n## B\n\n{long}\n\n## C\n## D\n{long}\n\n{long}\n\n# E\n");
    assert_eq!(
        outline("a.md", &text, &limits(100, 120, 0)),
        [
            format!("1-7 A › B: intro\r⏎\r⏎# A⏎⏎## B⏎⏎{long}"),
            format!("9-11 A › D: ## C⏎## D⏎{long}"),
            format!("13-15 A › D: {long}⏎⏎# E"),
        ]
    );
    assert_eq!(outline("a.md", "# Only\n", &ChunkLimits::default()), ["1-1 Only: # Only"]);
    assert_eq!(outline("a.md", "", &ChunkLimits::default()), [""; 0]);
}

#[test]
fn small_sections_of_one_parent_merge() {
    let text = "# T\n\nAn introduction that is long enough to stand alone, were it not small itself, in this small world.\n\n\
                ## A\na\n\n## B\nb\n\n# U\n\n## C\nc\n";
    assert_eq!(
        outline("a.md", text, &ChunkLimits::default()),
        [
            "1-9 T: # T⏎⏎An introduction that is long enough to stand alone, were it not small itself, in this small world.⏎⏎\
         ## A⏎a⏎⏎## B⏎b",
            "11-14 U › C: # U⏎⏎## C⏎c",
        ]
    );
}

#[test]
fn code_keeps_its_symbols() {
    let body = "        let value = compute(1, 2, 3);\n".repeat(12);
    let text =
        format!("use a;\n\nimpl Store {{\n    fn open() {{\n{body}    }}\n\n    fn a() {{}}\n\n    fn b() {{}}\n}}\n");
    let places: Vec<String> = chunk(&text, &parse("a.rs", &text), &ChunkLimits::default())
        .iter()
        .map(|chunk| format!("{:?} {}", chunk.lines, chunk.symbol.as_deref().unwrap_or("-")))
        .collect();
    assert_eq!(places, ["(1, 17) Store::open", "(19, 22) Store"]);
}

#[test]
fn long_blocks_are_cut_at_lines_then_sentences_then_characters() {
    let code = "```\na b c d\ne f g h\n\ni j k l\nm n o p\nq r s t\n```";
    assert_eq!(
        outline("a.md", code, &limits(12, 16, 0)),
        ["1-3 : ```⏎a b c d⏎e f g h", "5-8 : i j k l⏎m n o p⏎q r s t⏎```",]
    );
    assert_eq!(
        outline("a.md", "가나 다라. 마바 사아. 자차 카타.", &limits(8, 8, 0)),
        ["1-1 : 가나 다라.", "1-1 : 마바 사아.", "1-1 : 자차 카타."]
    );
    assert_eq!(
        outline("a.txt", &"한".repeat(20), &limits(8, 8, 0)),
        ["1-1 : 한한한한한한한한한한한", "1-1 : 한한한한한한한한한"]
    );
    let overlapped = outline("a.txt", "one two three four five six seven eight nine ten", &limits(8, 8, 2));
    assert_eq!(overlapped, ["1-1 : one two three four five six", "1-1 : six seven eight nine ten"]);
}

#[test]
fn html_is_never_cut_inside_a_tag() {
    let text = format!("<p>{}</p>", "<a href='x y z. w'>word</a> &amp; <b\n title=q>more</b> ".repeat(40));
    let parsed = parse("a.html", &text);
    let read: Vec<String> = chunk(&text, &parsed, &limits(16, 20, 0))
        .into_iter()
        .map(|chunk| readable_part(Media::Html, &text, chunk.bytes).into_owned())
        .collect();
    assert_eq!(read.join(" "), "word & more ".repeat(40).trim_end());
}

#[test]
fn estimates_are_near_the_tokenizer() {
    assert_eq!(estimate_tokens(""), 0);
    assert_eq!(estimate_tokens("The quick brown fox jumps over the lazy dog."), 13);
    assert_eq!(estimate_tokens("한국어 문서를 검색한다."), 9);
    assert_eq!(estimate_tokens("fn main() { println!(\"{}\", x); }"), 17);
}

const SAMPLES: &[(&str, &str)] = &[
    (
        "a.md",
        "---\ntitle: x\ntags: [a]\n---\n# 제목\n\n글 하나. 둘.\n\n- a\n  - b\n\n```\n# x\n```\n\n| a |\n|---|\n\n> q\n\nT\n===\n[r]: u\n<p>x</p>\n\n<!-- c -->\n\na <b>y</b>\n",
    ),
    ("a.rst", "T\n===\n\npara::\n\n  lit\n\n.. x::\n\n   y\n\n====\nU\n====\n+--+\n|a |\n+--+\n"),
    ("a.adoc", "= T\n\n== S\ntext\n----\nx\n\ny\n----\n|===\n|a\n|===\n"),
    ("a.org", "#+TITLE: t\n* A\ntext\n#+BEGIN_SRC x\n* y\n#+END_SRC\n** B :t:\n"),
    (
        "a.html",
        "<html lang=ko><head><title>t</title></head><nav>n</nav><h1>H &amp;</h1><p>a <b x='>'>b</b><pre>c\n d</pre><!-- e --><script>f</script><table><tr><td>g</table>",
    ),
    ("a.rs", "use a;\n\n/// D\npub fn f<T>(x: T) -> u8 {\n    1\n}\n\nimpl<'a> X for Y<'a> {\n\n    fn g() {}\n}\n"),
    ("a.go", "func (s *T[K]) F(x int) {\n\ty()\n}\n\ntype A struct {\n}\n"),
    ("a.txt", "one\ntwo\r\n\r\nthree\rfour\u{FEFF}\u{A0}five\n"),
];

/// Pieces that mutations insert: what opens, closes or confuses, and characters of every length.
const SPICE: &[&str] = &[
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    " ",
    "\t",
    "#",
    "# ",
    "---\n",
    "+++\n",
    "```",
    "====\n",
    "::\n",
    "|",
    "<",
    ">",
    "</p>",
    "<pre>",
    "&#44032;",
    "&",
    "<script>",
    "<!--",
    "<table>",
    "한",
    "é",
    "😀",
    "e\u{301}",
    "\0",
    "{",
    "}",
    "(",
    ")",
    "fn ",
    "class X",
    "#+END_",
    "* ",
    "\u{2028}",
    "\u{FEFF}",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z ",
    "    ",
    "[",
    "]: ",
    "<h2>",
    "'",
    "\"",
];

#[test]
fn any_input_keeps_the_invariants() {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below.max(1)
    };
    for (path, sample) in SAMPLES {
        for round in 0..2000 {
            let mut text = sample.repeat(1 + round % 3);
            for _ in 0..random(8) {
                let at = text.floor_char_boundary(random(text.len() + 1));
                match random(3) {
                    0 => text.insert_str(at, SPICE[random(SPICE.len())]),
                    1 => text.truncate(at.max(text.floor_char_boundary(text.len() / 8 * 7))),
                    _ => text.replace_range(at..text.ceil_char_boundary((at + random(6)).min(text.len())), ""),
                }
            }
            let overlap = if round % 5 == 0 { 4 } else { 0 };
            check(path, &text, &limits(8 + random(20) as u32, 8 + random(40) as u32, overlap));
        }
    }
}

/// One name for each parser and for each family of code, and some that no table knows.
const NAMES: &[&str] = &[
    "a.md",
    "a.mdx",
    "a.rst",
    "a.adoc",
    "a.org",
    "a.html",
    "a.xhtml",
    "a.txt",
    "a.log",
    "a.rs",
    "a.py",
    "a.go",
    "a.c",
    "a.ts",
    "a.java",
    "a.rb",
    "a.sh",
    "a.sql",
    "a.json",
    "a.yaml",
    "a.toml",
    "a.xml",
    "a.css",
    "a.lua",
    "a.hs",
    "Makefile",
    "Dockerfile",
    "CMakeLists.txt",
    "a.unknown",
    "noextension",
    ".md",
    "a.",
    "",
];

/// Bytes in any of the encodings, whole or broken, or in none.
fn bytes(random: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
    let mut text = String::new();
    for _ in 0..random(40) {
        match random(3) {
            0 => text.push_str(SAMPLES[random(SAMPLES.len())].1),
            1 => text.push_str(SPICE[random(SPICE.len())]),
            _ => text.push_str(["한국어 문서를 ", "naïve café ", "plain words ", "東京 "][random(4)]),
        }
    }
    let mut bytes = match random(7) {
        0 => [b"\xEF\xBB\xBF", text.as_bytes()].concat(),
        1 => [b"\xFF\xFE".to_vec(), text.encode_utf16().flat_map(u16::to_le_bytes).collect()].concat(),
        2 => [b"\xFE\xFF".to_vec(), text.encode_utf16().flat_map(u16::to_be_bytes).collect()].concat(),
        3 => encoding_rs::EUC_KR.encode(&text).0.into_owned(),
        4 => (0..random(400)).map(|_| random(256) as u8).collect(),
        5 => encoding_rs::WINDOWS_1252
            .encode("# Déjà vu\n\nUn café à Zürich.\n".repeat(random(20)).as_str())
            .0
            .into_owned(),
        _ => text.into_bytes(),
    };
    for _ in 0..random(3) * random(3) {
        let at = random(bytes.len() + 1);
        match random(3) {
            0 => bytes.insert(at, random(256) as u8),
            1 => bytes.truncate(at.max(bytes.len() / 2)),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random(256) as u8),
        }
    }
    bytes
}

#[test]
fn any_bytes_are_refused_or_keep_the_invariants() {
    let mut state = 0xD1B5_4A32_D192_ED03_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below.max(1)
    };
    let mut read = std::collections::BTreeMap::new();
    for round in 0..6000 {
        let bytes = bytes(&mut random);
        let path = NAMES[round % NAMES.len()];
        let Ok(decoded) = decode(bytes.clone()) else { continue };
        *read.entry(decoded.encoding.as_str()).or_insert(0) += 1;
        let end = source_offset(&decoded.text, decoded.text.len(), decoded.encoding, decoded.had_bom);
        assert_eq!(end, bytes.len() as u64, "{:?} read as {}", bytes, decoded.encoding);
        check(path, &decoded.text, &limits(8 + random(30) as u32, 8 + random(60) as u32, random(2) as u32 * 3));
    }
    let often = read.iter().filter(|(_, count)| **count >= 50).map(|(encoding, _)| *encoding);
    assert_eq!(often.collect::<Vec<_>>(), ["euc-kr", "utf-16be", "utf-16le", "utf-8", "windows-1252"], "{read:?}");
}

fn check(path: &str, text: &str, limits: &ChunkLimits) {
    let parsed = parse(path, text);
    let mut end = 0;
    for block in &parsed.blocks {
        assert!(block.range.start >= end && !text[block.range.clone()].trim().is_empty(), "{block:?} of {text:?}");
        end = block.range.end;
    }
    let chunks = chunk(text, &parsed, limits);
    let mut held = vec![false; text.len()];
    for chunk in &chunks {
        let passage = &text[chunk.bytes.clone()];
        assert!(chunk.tokens <= limits.max_tokens, "{chunk:?} of {text:?}");
        let read = readable_part(parsed.media, text, chunk.bytes.clone());
        match parsed.media {
            Media::Html => assert!(estimate_tokens(&read) <= limits.max_tokens, "{read:?} in {chunk:?} of {text:?}"),
            _ => assert_eq!(chunk.tokens, estimate_tokens(passage), "{chunk:?} of {text:?}"),
        }
        let first = text[..chunk.bytes.start].matches('\n').count() as u32 + 1;
        assert_eq!(chunk.lines, (first, first + passage.matches('\n').count() as u32), "{chunk:?} of {text:?}");
        assert_eq!(passage.trim_end(), passage, "{chunk:?} of {text:?}");
        held[chunk.bytes.clone()].fill(true);
    }
    for block in &parsed.blocks {
        let lost =
            text[block.range.clone()].char_indices().find(|(i, c)| !c.is_whitespace() && !held[block.range.start + i]);
        assert_eq!(lost, None, "{block:?} of {text:?}: {chunks:?}");
    }
}
