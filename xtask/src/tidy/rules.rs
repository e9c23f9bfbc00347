//! The rules on single files: each takes a path and its text and gives its complaints.

use super::source::{code_only, std_modules, words};

/// A complaint about a line; 0 where it is about the whole file.
#[derive(Debug, PartialEq)]
pub struct Finding {
    /// Line number from 1, or 0.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
}

/// Past this nobody keeps a file in mind; most should stay under half of it.
const MAX_LINES: usize = 800;

/// Files and folders that may hold `unsafe`: system calls, intrinsics, shared memory. Nothing else needs it.
const UNSAFE_ALLOWED: [&str; 6] = [
    "crates/kernels/src/aarch64/",
    "crates/kernels/src/in_place.rs",
    "crates/kernels/src/x86/",
    "crates/loader/src/backend/",
    "crates/loader/src/buffer.rs",
    "crates/model/src/team.rs",
];

/// How far above an `unsafe` its note may begin: a long note above a call that is broken over lines.
const SAFETY_LINES: usize = 12;

/// Pieces of GGUF tensor names. The loader must not know any: it hands out byte ranges, of whatever they are.
const TENSOR_NAMES: [&str; 6] = ["blk.", "token_embd", "output_norm", "output.weight", "attn_", "ffn_"];

/// Words for how bytes arrive. Layers are arithmetic over weights that are just there.
const IO_WORDS: [&str; 7] = ["file", "backend", "pread", "mmap", "uring", "loader", "loan"];

/// Every complaint about one text file; `path` is relative to the root, with forward slashes.
pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = machine_paths(text);
    if path.ends_with(".rs") {
        let code = code_only(text);
        findings.extend(opening(text));
        findings.extend(length(text));
        findings.extend(left_overs(&code));
        findings.extend(unsafety(path, text, &code));
        if path.starts_with("crates/loader/src/") {
            findings.extend(tensor_names(text));
        }
        if path.starts_with("crates/kernels/src/") {
            findings.extend(kernel_effects(&code));
        }
        if path.starts_with("crates/model/src/layers/") {
            findings.extend(io_words(&code));
        }
    }
    findings
}

fn whole_file(message: String) -> Option<Finding> {
    Some(Finding { line: 0, message })
}

fn opening(text: &str) -> Option<Finding> {
    if text.starts_with("//!") {
        return None;
    }
    whole_file("open the file with a `//!` line that says what lives here".into())
}

fn length(text: &str) -> Option<Finding> {
    let lines = text.lines().count();
    if lines <= MAX_LINES {
        return None;
    }
    whole_file(format!("{lines} lines, at most {MAX_LINES}: split it by what its parts are about"))
}

fn left_overs(code: &str) -> Vec<Finding> {
    on_words(code, |word, tail| {
        let macro_call = tail.starts_with('!') && !tail.starts_with("!=");
        (macro_call && ["todo", "dbg", "unimplemented"].contains(&word))
            .then(|| format!("`{word}!` is left over: finish it or take it out"))
    })
}

fn unsafety(path: &str, text: &str, code: &str) -> Vec<Finding> {
    let allowed = UNSAFE_ALLOWED.iter().any(|place| path.starts_with(place));
    let lines: Vec<&str> = text.lines().collect();
    let mut findings = Vec::new();
    for (i, line) in code.lines().enumerate() {
        for (_, tail) in words(line).filter(|&(word, _)| word == "unsafe") {
            let message = if !allowed {
                "`unsafe` here: it belongs into kernels/x86, kernels/aarch64, kernels/in_place.rs, loader/backend, loader/buffer.rs or model/team.rs"
            } else if !tail.starts_with("fn") && !tail.starts_with("extern") && !has_note(&lines, i) {
                "no `// SAFETY:` note above: say what a reader has to check"
            } else {
                continue;
            };
            findings.push(Finding { line: i + 1, message: message.into() });
        }
    }
    findings
}

/// Whether line `i`, or one of the lines above it up to a blank one, holds a note.
fn has_note(lines: &[&str], i: usize) -> bool {
    let above = lines[..=i].iter().rev().take(SAFETY_LINES);
    above.take_while(|line| !line.trim().is_empty()).any(|line| line.contains("SAFETY:"))
}

fn tensor_names(text: &str) -> Vec<Finding> {
    on_lines(text, |line| {
        let name = TENSOR_NAMES.iter().find(|name| line.contains(**name))?;
        Some(format!("`{name}`: the loader knows byte ranges, no tensor names"))
    })
}

fn kernel_effects(code: &str) -> Vec<Finding> {
    // Over the whole text, not by line: a `use` group may span several.
    let banned = std_modules(code)
        .into_iter()
        .filter(|module| ["fs", "io", "net", "process", "thread"].contains(module));
    let mut findings: Vec<Finding> = banned
        .filter_map(|module| whole_file(format!("`std::{module}`: kernels do no I/O and own no threads")))
        .collect();
    findings.extend(on_words(code, |word, _| {
        (word == "rayon").then(|| "`rayon`: kernels own no threads; the caller splits the rows".to_string())
    }));
    findings
}

fn io_words(code: &str) -> Vec<Finding> {
    on_words(code, |word, _| {
        let lower = word.to_lowercase();
        let parts: Vec<&str> = lower.split('_').collect();
        let banned = IO_WORDS
            .iter()
            .find(|banned| parts.iter().any(|part| part.trim_start_matches("sluice") == **banned))?;
        Some(format!("`{word}`: layers know no I/O words such as `{banned}`; ask `Weights` for the product"))
    })
}

/// Paths of the machines that this was written on; they mean nothing to anybody else.
fn machine_paths(text: &str) -> Vec<Finding> {
    // In two halves, so that this file passes its own rule.
    let banned = [("/wo", "rk/"), ("/ro", "ot/"), ("/tmp/", "target")].map(|(a, b)| format!("{a}{b}"));
    on_lines(text, |line| {
        let path = banned.iter().find(|path| line.contains(path.as_str()))?;
        Some(format!("`{path}`: a path of one machine"))
    })
}

fn on_lines(text: &str, complaint: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let found = text
        .lines()
        .enumerate()
        .filter_map(|(i, line)| Some(Finding { line: i + 1, message: complaint(line)? }));
    found.collect()
}

fn on_words(code: &str, complaint: impl Fn(&str, &str) -> Option<String>) -> Vec<Finding> {
    on_lines(code, |line| words(line).find_map(|(word, tail)| complaint(word, tail)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one complaint about a file with this body, or "".
    fn complaint(path: &str, body: &str) -> String {
        let mut findings = check(path, &format!("//! A file.\n{body}"));
        assert!(findings.len() <= 1, "{findings:?}");
        findings.pop().map(|finding| finding.message).unwrap_or_default()
    }

    #[test]
    fn good_files_pass() {
        assert_eq!(
            complaint("crates/model/src/lib.rs", "// unsafe, todo!() and dbg!(x) in a comment\nfn f() {}"),
            ""
        );
        assert_eq!(complaint("README.md", "todo!() and unsafe are only words here"), "");
        assert_eq!(complaint("crates/gguf/src/lib.rs", "const NAME: &str = \"blk.0\";"), "");
    }

    #[test]
    fn a_file_opens_with_its_purpose() {
        assert_eq!(check("xtask/src/a.rs", "fn f() {}")[0].line, 0);
        assert!(check("xtask/src/a.rs", "// A file.\n")[0].message.contains("//!"));
        assert!(check("xtask/src/a.rs", "")[0].message.contains("//!"));
    }

    #[test]
    fn files_stay_short() {
        assert_eq!(complaint("xtask/src/a.rs", &"\n".repeat(MAX_LINES - 1)), "");
        assert!(complaint("xtask/src/a.rs", &"\n".repeat(MAX_LINES)).starts_with("801 lines"));
    }

    #[test]
    fn nothing_is_left_over() {
        for name in ["todo", "dbg", "unimplemented"] {
            let body = format!("fn f() {{\n    {name}!(1);\n}}");
            assert!(complaint("crates/cli/src/main.rs", &body).contains(&format!("`{name}!`")));
        }
        assert_eq!(complaint("crates/cli/src/main.rs", "let b = todo != 1;"), "");
    }

    #[test]
    fn unsafe_stays_in_its_places_and_has_a_note() {
        let bare = "fn f() {\n    unsafe { g() }\n}";
        let noted = "fn f() {\n    // SAFETY: g has no conditions.\n    unsafe { g() }\n}";
        assert!(complaint("crates/model/src/lib.rs", noted).contains("belongs"));
        assert!(complaint("crates/kernels/src/x86/avx2.rs", bare).contains("SAFETY"));
        assert_eq!(complaint("crates/kernels/src/x86/avx2.rs", noted), "");
        assert_eq!(complaint("crates/loader/src/buffer.rs", noted), "");
        // A note belongs to one block: a blank line ends it.
        let apart = "// SAFETY: of something else.\n\nunsafe impl Send for A {}";
        assert!(complaint("crates/loader/src/buffer.rs", apart).contains("SAFETY"));
        // An unsafe fn states conditions instead; the lint for that is clippy's.
        assert_eq!(complaint("crates/kernels/src/x86/avx2.rs", "unsafe fn f() {}"), "");
        assert_eq!(complaint("crates/model/src/lib.rs", "#![forbid(unsafe_code)]"), "");
    }

    #[test]
    fn the_loader_knows_no_tensor_names() {
        assert!(complaint("crates/loader/src/stream.rs", "let name = \"blk.0.attn\";").contains("`blk.`"));
        assert!(
            complaint("crates/loader/src/stream.rs", "// reads token_embd last").contains("`token_embd`")
        );
        assert_eq!(complaint("crates/loader/tests/contract.rs", "let name = \"blk.0\";"), "");
    }

    #[test]
    fn kernels_do_no_io_and_own_no_threads() {
        let kernel = |body| complaint("crates/kernels/src/matmul.rs", body);
        assert!(kernel("use std::{fmt,\n    fs};").contains("`std::fs`"));
        assert!(kernel("std::thread::spawn(f);").contains("`std::thread`"));
        assert!(kernel("use rayon::prelude::*;").contains("`rayon`"));
        assert_eq!(kernel("use std::{fmt, env};"), "");
        assert_eq!(complaint("crates/loader/src/lib.rs", "use std::fs::File;"), "");
    }

    #[test]
    fn layers_know_no_io_words() {
        let layer = |body| complaint("crates/model/src/layers/ffn.rs", body);
        assert!(layer("fn f(file: &File) {}").contains("`file`"));
        assert!(layer("use sluice_loader::Stream;").contains("`loader`"));
        assert!(layer("let mmap_bytes = 1;").contains("`mmap`"));
        assert_eq!(layer("let profile = filed;"), "");
        assert_eq!(complaint("crates/model/src/weights.rs", "use sluice_loader::Loan;"), "");
    }

    #[test]
    fn no_paths_of_one_machine() {
        let found = check("README.md", &format!("fine\ncd /wo{}main", "rk/"));
        assert_eq!(found[0].line, 2);
        assert_eq!(found.len(), 1);
        assert!(
            check("a.toml", &format!("dir = \"/tmp/{}-x\"", "target"))[0].message.contains("one machine")
        );
        assert!(check("README.md", "see framework/docs and /tmp/x").is_empty());
    }
}
