//! Tokenizers of real vocabularies against reference ids, and of damaged files against what must be said of them.
//!
//! `SLUICE_SHARED` names a folder with `tokenizers/*.gguf`, `.inp` and `.out`, and with `cases/files`. A test whose
//! files are missing says so and passes.

#![allow(clippy::print_stderr, clippy::print_stdout)] // a test that skips says so; a child process says what it took

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sluice_fixtures::smollm2;
use sluice_gguf::Gguf;
use sluice_model::ProcessMemory;
use sluice_model::tokenizer::{Decoder, Tokenizer};

/// A folder of shared test files; `None`, said on stderr, if there is none.
fn shared(folder: &str) -> Option<PathBuf> {
    let path = std::env::var_os("SLUICE_SHARED").map(|shared| Path::new(&shared).join(folder));
    let found = path.filter(|path| path.is_dir());
    if found.is_none() {
        eprintln!("SKIPPED: SLUICE_SHARED names no folder that has {folder}");
    }
    found
}

fn open(path: &Path) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Text of tokens that follow other text.
fn decoded(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut decoder = Decoder::continuing(tokenizer);
    let text: String = ids.iter().map(|&id| decoder.push(id)).collect();
    text + &decoder.finish()
}

#[test]
fn reference_lines_of_both_vocabularies() {
    let Some(folder) = shared("tokenizers") else {
        return;
    };
    for name in ["ggml-vocab-llama-spm", "ggml-vocab-llama-bpe"] {
        let file = |ext: &str| folder.join(format!("{name}.gguf{ext}"));
        let tokenizer = open(&file(""));
        let (input, expected) =
            (std::fs::read(file(".inp")).unwrap(), std::fs::read_to_string(file(".out")).unwrap());
        let input = String::from_utf8(input).unwrap();
        let texts: Vec<&str> = input.split_terminator("\n__ggml_vocab_test__\n").collect();
        let lines: Vec<&str> = expected.lines().collect();
        assert_eq!(texts.len(), lines.len());
        for (text, line) in texts.iter().zip(lines) {
            let line: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let found = tokenizer.encode(text.as_bytes(), true, false);
            assert_eq!(found, line, "{name}: {text:?}");
            let prefix = if name.ends_with("spm") && !text.is_empty() { " " } else { "" };
            assert_eq!(decoded(&tokenizer, &found), format!("{prefix}{text}"));
        }
    }
}

#[test]
fn golden_prompts() {
    let Some(model) = smollm2() else { return };
    let tokenizer = open(&model);
    let golden = include_str!("data/smollm2-135m-q4_1.jsonl");
    let golden: Vec<Value> = golden.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(golden.len(), 12);
    for case in golden {
        let prompt = case["prompt"].as_str().unwrap();
        let found = tokenizer.encode(prompt.as_bytes(), true, true);
        assert_eq!(found, ids(&case["ids"]), "{prompt:?}");
    }
    let long: Value = serde_json::from_str(include_str!("data/perplexity.json")).unwrap();
    let expected = ids(&long["ids"]);
    let found = tokenizer.encode(long["text"].as_str().unwrap().as_bytes(), false, true);
    assert_eq!(found[..expected.len()], expected);
    assert_eq!(tokenizer.warnings(), [] as [String; 0]);
    assert!(tokenizer.is_end(2) && tokenizer.is_end(0) && !tokenizer.is_end(1));
}

#[test]
fn case_files_are_refused_or_warned_of_by_key() {
    let Some(folder) = shared("cases/files") else {
        return;
    };
    let index = std::fs::read_to_string(folder.join("index.tsv")).unwrap();
    let mut seen = 0;
    for line in index.lines() {
        let [file, kind, _, words] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        if !file.starts_with('T') && file != "G40-empty-vocab.gguf" {
            continue;
        }
        seen += 1;
        let gguf = Gguf::open(&folder.join(file)).unwrap();
        match Tokenizer::from_gguf(&gguf) {
            Ok(tokenizer) => {
                assert_ne!(kind, "must-reject", "{file}");
                tokenizer.encode("1234567 a   b\n\n\tc 你\n".as_bytes(), true, true);
                if let Some((_, key)) = words.split_once("warning: ") {
                    let key = key.trim_end_matches(')');
                    assert!(tokenizer.warnings().iter().any(|w| w.contains(key)), "{file}");
                }
            }
            Err(error) => {
                assert_ne!(kind, "must-accept", "{file}");
                let error = error.to_string();
                assert!(words.split(" | ").any(|word| error.contains(word)), "{file}: {error}");
                assert_eq!(error.lines().count(), 1);
            }
        }
    }
    assert!(seen > 10);
}

/// What the process that is asked for by [`loading_takes_little_memory`] has to load.
const CHILD_FILE: &str = "SLUICE_TOKENIZER_OF_CHILD";

#[test]
fn loading_takes_little_memory() {
    // The peak of a process never falls, so each vocabulary is loaded by one of its own, which runs only this test.
    if let Some(file) = std::env::var_os(CHILD_FILE) {
        let before = ProcessMemory::now().peak;
        let tokenizer = open(Path::new(&file));
        let grown = ProcessMemory::now().peak - before;
        assert_eq!(tokenizer.encode(b"hello", true, true).len(), 2);
        println!("GROWN {grown} {}", tokenizer.heap_bytes());
        return;
    }
    let Some(folder) = shared("tokenizers") else {
        return;
    };
    // Measured: 2.16 and 0.71 MB of growth, tables of 1.84 and 0.50. 128,256 tokens and 280,147 merges in one, 32,000 tokens in the other.
    for (name, most) in [("ggml-vocab-llama-bpe.gguf", 3_000_000), ("ggml-vocab-llama-spm.gguf", 1_200_000)] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "loading_takes_little_memory", "--nocapture"])
            .env(CHILD_FILE, folder.join(name))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        let numbers = said.lines().find_map(|line| line.split_once("GROWN ")).expect(&said).1;
        let [grown, heap] = numbers.split(' ').map(|n| n.parse().unwrap()).collect::<Vec<u64>>()[..] else {
            panic!("{said}");
        };
        assert!(grown < most, "{name}: {grown} bytes at the peak of loading");
        assert!(heap < grown, "{name}: {heap} bytes of tables, but the peak grew by {grown}");
    }
}
