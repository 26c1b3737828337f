use super::*;

/// Each block as `kind: text`, on one line.
fn outline(path: &str, text: &str) -> Vec<String> {
    let show = |block: &Block| {
        let kind = match &block.kind {
            BlockKind::Heading { level, title } => format!("h{level} {title}"),
            BlockKind::Prose => "prose".to_owned(),
            BlockKind::Verbatim => "whole".to_owned(),
            BlockKind::Unit { symbol } => format!("unit {}", symbol.as_deref().unwrap_or("-")),
        };
        format!("{kind}: {}", text[block.range.clone()].replace('\n', "⏎"))
    };
    parse(path, text).blocks.iter().map(show).collect()
}

#[test]
fn markdown_blocks() {
    let text = "---\ntitle: T\n---\n# `A` *b* {#id}\n\ntext\nmore\n\nSet\next\n---\n- x\n  # no\n- y\n\n    # code\n\n***\n\
                ```sh\n# no\n\nls\n```\n| a |\n|---|\n| 1 |\n\n[ref]: http://x.y\n";
    assert_eq!(
        outline("a.md", text),
        [
            "h1 A b: # `A` *b* {#id}",
            "prose: text⏎more",
            "h2 Set ext: Set⏎ext⏎---",
            "prose: - x⏎  # no",
            "prose: - y⏎⏎    # code",
            "whole: ```sh⏎# no⏎⏎ls⏎```",
            "whole: | a |⏎|---|⏎| 1 |",
            "prose: [ref]: http://x.y",
        ]
    );
    assert_eq!(outline("a.md", "---\na: b: c\n---\ntext"), ["whole: ---⏎a: b: c⏎---", "prose: text"]);
    assert_eq!(outline("a.md", "    code\n\n    more\n"), ["whole:     code⏎⏎    more"]);
    assert_eq!(parse("a.md", "## \n\n## Second\n").metadata.title.as_deref(), Some("Second"));
}

#[test]
fn rst_blocks() {
    let text = "=====\nTitle\n=====\n\nPara::\n\n  Not\n  ---\n\n  a title\n\n제목\n----\n.. note:: x\n\n   y\n\nSub\n~~~\n\nz\n\nOther\n-----\n";
    assert_eq!(
        outline("a.rst", text),
        [
            "h1 Title: =====⏎Title⏎=====",
            "prose: Para::",
            "whole:   Not⏎  ---⏎⏎  a title",
            "h2 제목: 제목⏎----",
            "whole: .. note:: x⏎⏎   y",
            "h3 Sub: Sub⏎~~~",
            "prose: z",
            "h2 Other: Other⏎-----",
        ]
    );
}

#[test]
fn asciidoc_blocks() {
    let text = "= Title\n\n== Sec\ntext\n----\n== no\n\nx\n----\nafter\n|===\n|a\n\n|b\n|===\n....\nopen\n";
    assert_eq!(
        outline("a.adoc", text),
        [
            "h1 Title: = Title",
            "h2 Sec: == Sec",
            "prose: text",
            "whole: ----⏎== no⏎⏎x⏎----",
            "prose: after",
            "whole: |===⏎|a⏎⏎|b⏎|===",
            "prose: ....⏎open",
        ]
    );
}

#[test]
fn org_blocks() {
    let text = "#+TITLE: My doc\n#+FILETAGS: :a:b:\n* TODO One :x:\ntext\n#+begin_src sh\n* no\n\n#+END_SRC\n** Two\n| a |\n*bold*\n";
    assert_eq!(
        outline("a.org", text),
        [
            "prose: #+TITLE: My doc⏎#+FILETAGS: :a:b:",
            "h1 One: * TODO One :x:",
            "prose: text",
            "whole: #+begin_src sh⏎* no⏎⏎#+END_SRC",
            "h2 Two: ** Two",
            "prose: | a |⏎*bold*",
        ]
    );
    let metadata = parse("a.org", text).metadata;
    assert_eq!((metadata.title.as_deref(), metadata.tags), (Some("My doc"), vec!["a".to_owned(), "b".into()]));
}

#[test]
fn html_blocks_are_raw_and_readable() {
    let text = "<!doctype html><html lang=ko-KR><head><title>A &amp; B</title><style>p{}</style></head><body>\
                <nav><a>menu</a></nav><h1>Big <b>title</b></h1>\n<p>one &lt; <i>two</i>\n   three</p><script>no()</script>\
                <pre>a\n  b</pre><table><tr><td>x</td><td>y</td></tr></table><ul><li>l1<li>l2</ul></body>";
    assert_eq!(
        outline("a.html", text),
        [
            "h1 Big title: Big <b>title",
            "prose: one &lt; <i>two</i>⏎   three",
            "whole: <pre>a⏎  b</pre>",
            "whole: x</td><td>y",
            "prose: l1",
            "prose: l2",
        ]
    );
    let parsed = parse("a.html", text);
    assert_eq!((parsed.metadata.title.as_deref(), parsed.metadata.lang.as_str()), (Some("A & B"), "ko"));
    let all = parsed.blocks[0].range.start..parsed.blocks[5].range.end;
    let read = "Big title\none < two\nthree\na\n  b\nx\ty\nl1\nl2";
    assert_eq!(readable_part(Media::Html, text, all), read);
    assert_eq!(readable_part(Media::Text, "<b>&amp;", 0..8), "<b>&amp;");
    assert_eq!(outline("a.html", "<nav>menu<h1>T</h1><p>x"), ["h1 T: T", "prose: x"]);
}

#[test]
fn markup_alone_is_no_block_of_markdown() {
    let text = "<!-- © Someone -->\n# T\n\n<p align=center>\n<img src=logo.png>\n</p>\n\n[![CI](b.svg)](ci)\n\n\
                <details>\n<summary>More</summary>\n\n- <br>\n- one\n";
    assert_eq!(
        outline("a.md", text),
        ["h1 T: # T", "prose: [![CI](b.svg)](ci)", "prose: <details>⏎<summary>More</summary>", "prose: - one",]
    );
    assert_eq!(outline("a.md", "<!-- nothing -->\n"), [""; 0]);
}

#[test]
fn a_title_may_be_html() {
    let title = |text: &str| parse("a.md", text).metadata.title;
    let front_page = "<p><img src=a></p>\n\n<h1 align=center>\n  <a href=x>The</a> Name\n</h1>\n\n## Install\n";
    assert_eq!(title(front_page).as_deref(), Some("The Name"));
    assert_eq!(title("<h1><img src=a></h1>\n\n## Install\n").as_deref(), Some("Install"));
    assert_eq!(title("## Install\n\n<h1>Late</h1>\n").as_deref(), Some("Install"));
    assert_eq!(title("---\ntitle: Given\n---\n<h1>Name</h1>\n").as_deref(), Some("Given"));
    assert_eq!(title("```html\n<h1>Code</h1>\n```\n"), None);
}

#[test]
fn code_units() {
    let rust = "use a;\n\n/// Doc.\n#[derive(Debug)]\npub struct Store {\n    x: u8,\n\n    y: u8,\n}\n\nimpl<T> Read for Store<T> {\n    \
                fn open() {\n        a();\n\n        b();\n    }\n    // Why.\n    pub(crate) async fn close() {}\n}\nfn main() {}\n";
    assert_eq!(
        outline("a.rs", rust),
        [
            "unit -: use a;",
            "unit Store: /// Doc.⏎#[derive(Debug)]⏎pub struct Store {⏎    x: u8,",
            "unit Store:     y: u8,⏎}",
            "unit Store: impl<T> Read for Store<T> {",
            "unit Store::open:     fn open() {⏎        a();⏎⏎        b();⏎    }",
            "unit Store::close:     // Why.⏎    pub(crate) async fn close() {}⏎}",
            "unit main: fn main() {}",
        ]
    );
    let python = "import os\n\n\n@deco\nclass A(B):\n    x = 1\n\n    def f(self):\n        if x:\n\n            pass\n\ndef g(): pass\n";
    assert_eq!(
        outline("a.py", python),
        [
            "unit -: import os",
            "unit A: @deco⏎class A(B):⏎    x = 1",
            "unit A.f:     def f(self):⏎        if x:⏎⏎            pass",
            "unit g: def g(): pass",
        ]
    );
    for (path, code, symbol) in [
        ("a.go", "func (s *Store) Open(p string) error {\n}\n", "Store.Open"),
        ("a.c", "static int *foo_bar(int x)\n{\n\n  return 1;\n}\n", "foo_bar"),
        ("a.ts", "export const load = async (x) => {\n}\n", "load"),
        ("a.kt", "suspend fun <T> String.grow(): T {}\n", "String.grow"),
        ("a.cpp", "void Foo::bar() {\n}\n", "Foo::bar"),
        ("a.sh", "run() {\n  x\n}\n", "run"),
        ("a.java", "public static void main(String[] a) {\n}\n", "main"),
        ("b.rs", "impl<T> A\nwhere\n    T: B,\n{\n    x!();\n}\n", "A"),
        ("a.js", "describe('x', () => {\n})\n", "-"),
        ("a.js", "if (x) {\n}\n", "-"),
        ("a.yaml", "a: 1\n", "-"),
    ] {
        assert_eq!(outline(path, code), [format!("unit {symbol}: {}", code.trim_end().replace('\n', "⏎"))], "{path}");
    }
}

#[test]
fn a_title_has_a_bound() {
    let title = title_of(&"한글 ".repeat(1000));
    assert_eq!((title.len(), title.chars().count()), (255, 109));
}
