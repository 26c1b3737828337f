//! File name → format, media and code language: one table. Refuses to look at contents.

use crate::model::Media;

/// How a file is read; `Media` is the coarser word that users filter by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Markdown,
    Rst,
    AsciiDoc,
    Org,
    Html,
    Plain,
    Code(&'static str),
    Pdf,
    Other,
}

/// By name alone. A file whose name says nothing is text: whoever asks has already decoded it.
pub fn media_of(path: &str) -> (Media, Option<&'static str>) {
    match format_of(path) {
        Format::Markdown => (Media::Markdown, None),
        Format::Rst | Format::AsciiDoc | Format::Org | Format::Plain => (Media::Text, None),
        Format::Html => (Media::Html, None),
        Format::Code(lang) => (Media::Code, Some(lang)),
        Format::Pdf => (Media::Pdf, None),
        Format::Other => (Media::Other, None),
    }
}

pub(super) fn format_of(path: &str) -> Format {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path).to_ascii_lowercase();
    let has = |words: &str, word: &str| words.split(' ').any(|w| w == word);
    if let Some((_, lang)) = NAMES.iter().find(|(names, _)| has(names, &name)) {
        return Format::Code(lang);
    }
    let Some((stem, extension)) = name.rsplit_once('.') else { return Format::Plain };
    if has("dockerfile containerfile makefile", stem) {
        return Format::Code(if stem == "makefile" { "make" } else { "dockerfile" });
    }
    let row = EXTENSIONS.iter().find(|(extensions, _)| has(extensions, extension));
    row.map_or(Format::Plain, |(_, format)| *format)
}

/// Whole file names, in lower case.
const NAMES: &[(&str, &str)] = &[
    ("makefile gnumakefile justfile", "make"),
    ("dockerfile containerfile", "dockerfile"),
    ("cmakelists.txt", "cmake"),
    ("gemfile rakefile podfile vagrantfile brewfile", "ruby"),
    ("jenkinsfile", "groovy"),
    ("build workspace build.bazel", "starlark"),
    (".bashrc .bash_profile .profile .zshrc .zshenv .envrc pkgbuild", "shell"),
    (".vimrc", "vim"),
    (".gitconfig .editorconfig .npmrc", "ini"),
    (".gitignore .dockerignore .gitattributes codeowners", "gitignore"),
    ("go.mod go.sum", "go"),
    ("cargo.lock poetry.lock uv.lock pipfile", "toml"),
    (".babelrc .eslintrc .prettierrc", "json"),
];

/// Extensions, in lower case and without the dot.
const EXTENSIONS: &[(&str, Format)] = &[
    ("md markdown mdown mkd mkdn mdx mdc qmd rmd", Format::Markdown),
    ("rst rest", Format::Rst),
    ("adoc asciidoc asc", Format::AsciiDoc),
    ("org", Format::Org),
    ("html htm xhtml", Format::Html),
    ("txt text log", Format::Plain),
    ("pdf", Format::Pdf),
    ("rs", Format::Code("rust")),
    ("py pyi pyw", Format::Code("python")),
    ("ts mts cts tsx", Format::Code("typescript")),
    ("js mjs cjs jsx", Format::Code("javascript")),
    ("go", Format::Code("go")),
    ("java", Format::Code("java")),
    ("kt kts", Format::Code("kotlin")),
    ("c h", Format::Code("c")),
    ("cc cpp cxx c++ hh hpp hxx h++ ipp inl cu cuh ino", Format::Code("cpp")),
    ("cs csx", Format::Code("csharp")),
    ("fs fsi fsx", Format::Code("fsharp")),
    ("vb vbs bas", Format::Code("vb")),
    ("swift", Format::Code("swift")),
    ("m mm", Format::Code("objc")),
    ("scala sc sbt", Format::Code("scala")),
    ("groovy gradle", Format::Code("groovy")),
    ("rb rake gemspec", Format::Code("ruby")),
    ("php phtml", Format::Code("php")),
    ("pl pm t", Format::Code("perl")),
    ("lua", Format::Code("lua")),
    ("r", Format::Code("r")),
    ("jl", Format::Code("julia")),
    ("dart", Format::Code("dart")),
    ("zig", Format::Code("zig")),
    ("nim", Format::Code("nim")),
    ("d", Format::Code("d")),
    ("ex exs", Format::Code("elixir")),
    ("erl hrl", Format::Code("erlang")),
    ("hs lhs", Format::Code("haskell")),
    ("ml mli", Format::Code("ocaml")),
    ("clj cljs cljc edn", Format::Code("clojure")),
    ("lisp lsp cl el", Format::Code("lisp")),
    ("scm ss rkt", Format::Code("scheme")),
    ("v sv svh", Format::Code("verilog")),
    ("vhd vhdl", Format::Code("vhdl")),
    ("asm s", Format::Code("assembly")),
    ("f f90 f95 for", Format::Code("fortran")),
    ("pas dpr", Format::Code("pascal")),
    ("sol", Format::Code("solidity")),
    ("sh bash zsh ksh fish", Format::Code("shell")),
    ("ps1 psm1 psd1", Format::Code("powershell")),
    ("bat cmd", Format::Code("batch")),
    ("awk", Format::Code("awk")),
    ("vim", Format::Code("vim")),
    ("sql psql ddl", Format::Code("sql")),
    ("proto", Format::Code("protobuf")),
    ("graphql gql", Format::Code("graphql")),
    ("thrift", Format::Code("thrift")),
    ("tf tfvars hcl", Format::Code("hcl")),
    ("nix", Format::Code("nix")),
    ("bzl bazel star", Format::Code("starlark")),
    ("cmake", Format::Code("cmake")),
    ("mk mak", Format::Code("make")),
    ("vue", Format::Code("vue")),
    ("svelte", Format::Code("svelte")),
    ("astro", Format::Code("astro")),
    ("css", Format::Code("css")),
    ("scss sass less styl", Format::Code("scss")),
    ("wat wgsl glsl hlsl frag vert comp metal", Format::Code("shader")),
    ("json jsonc json5 jsonl ndjson geojson ipynb webmanifest", Format::Code("json")),
    ("yaml yml", Format::Code("yaml")),
    ("toml", Format::Code("toml")),
    ("ini cfg conf properties env desktop service editorconfig", Format::Code("ini")),
    ("xml xsd xsl xslt wsdl plist csproj props targets resx svg", Format::Code("xml")),
    ("csv tsv", Format::Code("csv")),
    ("diff patch", Format::Code("diff")),
    ("tex sty bib", Format::Code("latex")),
    ("png jpg jpeg gif webp bmp ico tif tiff heic avif psd", Format::Other),
    ("mp3 mp4 m4a wav flac ogg avi mov mkv webm", Format::Other),
    ("zip gz tgz bz2 xz zst tar 7z rar jar war whl deb rpm iso dmg", Format::Other),
    ("doc docx xls xlsx ppt pptx hwp hwpx odt ods odp epub", Format::Other),
    ("exe dll so dylib a o obj lib class pyc wasm bin dat db sqlite parquet onnx", Format::Other),
    ("woff woff2 ttf otf eot", Format::Other),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_media_and_language() {
        for (path, media, lang) in [
            ("a/README.MD", Media::Markdown, None),
            ("doc/index.rst", Media::Text, None),
            ("src/lib.rs", Media::Code, Some("rust")),
            ("C:\\x\\Main.KT", Media::Code, Some("kotlin")),
            ("Makefile", Media::Code, Some("make")),
            ("docker/Dockerfile.dev", Media::Code, Some("dockerfile")),
            ("CMakeLists.txt", Media::Code, Some("cmake")),
            ("ci.yml", Media::Code, Some("yaml")),
            ("a.b/LICENSE", Media::Text, None),
            ("notes.unheard", Media::Text, None),
            ("page.htm", Media::Html, None),
            ("paper.pdf", Media::Pdf, None),
            ("logo.png", Media::Other, None),
        ] {
            assert_eq!(media_of(path), (media, lang), "{path}");
        }
    }

    #[test]
    fn no_extension_is_listed_twice() {
        let mut all: Vec<&str> = EXTENSIONS.iter().flat_map(|(extensions, _)| extensions.split(' ')).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
    }
}
