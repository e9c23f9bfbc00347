//! Bad flags: exit code 2, one line that names the flag, nothing on stdout, nothing read.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use common::{model, run, sluice};

#[test]
fn values_out_of_range_name_their_flag_before_the_model_is_looked_at() {
    let nowhere = "/nowhere/model.gguf".as_ref();
    for (flags, word) in [
        ("--threads 0", "--threads"),
        ("--threads -1", "--threads"),
        ("--threads=-1", "--threads"),
        ("--threads abc", "--threads"),
        ("--threads 1.5", "--threads"),
        ("--threads 1000000", "--threads"),
        ("--ctx 0", "--ctx"),
        ("--ctx x", "--ctx"),
        ("-n x", "-n"),
        ("-n=-1", "-n"),
        ("--chunk-bytes 0", "--chunk-bytes"),
        ("--chunk-bytes 1.5M", "300MiB"),
        ("--chunk-bytes 12Q", "300MiB"),
        ("--chunk-bytes 99999999999G", "--chunk-bytes"),
        ("--lm-head-rows 0", "--lm-head-rows"),
        ("--prompt-batch 0", "--prompt-batch"),
        ("--backend floppy", "mmap, pread, uring"),
        ("--direct maybe", "auto, on, off"),
        ("--kv q4", "f32, f16, q8_0"),
        ("--layers no", "resident"),
        ("--lm-head stream --stream-lm-head", "--stream-lm-head"),
        ("--backend mmap --direct on", "--direct on"),
        ("--temp nan", "--temp"),
        ("--temp -1", "--temp"),
        ("--temp inf", "--temp"),
        ("--temp warm", "--temp"),
        ("--top-k -1", "--top-k"),
        ("--top-p nan", "--top-p"),
        ("--top-p -0.1", "--top-p"),
        ("--top-p 1.01", "--top-p: wanted a number from 0 to 1"),
        ("--stop=", "--stop"),
        ("--thread 2", "'--threads'"),
        ("hello", "the prompt goes after -p; see sluice run --help"),
        ("--min-p 1.5", "--min-p"),
        ("--repeat-penalty 0", "--repeat-penalty"),
        ("--repeat-penalty nan", "--repeat-penalty"),
        ("--seed -1", "--seed"),
        ("--seed 1e3", "--seed"),
        ("--unheard-of", "--unheard-of"),
        ("-f x", "--file"),
    ] {
        run(nowhere, &format!("-p the {flags}")).refused(2, &[word]);
    }
}

#[test]
fn a_command_line_that_makes_no_sense_is_one_line_too() {
    sluice(["run"]).refused(2, &["MODEL"]);
    sluice(["run", "", "-p", "x"]).refused(2, &["MODEL"]);
    sluice(["walk", "m.gguf"]).refused(2, &["walk"]);
    sluice(["logits", "m.gguf"]).refused(2, &["--ids"]);
    for ids in ["", "1,", "1,,2", "a", "-1", "4294967296", "1 2"] {
        sluice(["logits", "m.gguf", &format!("--ids={ids}")]).refused(2, &["--ids"]);
    }
    for ids in ["-1", "-1,2", "1,-2"] {
        sluice(["logits", "m.gguf", "--ids", ids]).refused(2, &["--ids", "never negative"]);
    }
    sluice(["logits", "m.gguf", "--ids", "1", "--top", "0"]).refused(2, &["--top"]);
    sluice(["run", "m.gguf", "--backend", "a\n\nb\x1b[31m"]).refused(2, &["--backend"]);
    let not_text = OsStr::from_bytes(b"\xff");
    sluice([OsStr::new("run"), OsStr::new("m.gguf"), OsStr::new("--stop"), not_text]).refused(2, &["UTF-8"]);
}

#[test]
fn json_is_told_in_json_even_when_the_flags_are_wrong() {
    let (_dir, path) = model();
    let path = path.to_str().expect("a plain path");
    for (args, code) in [
        (&["run", path, "--json", "--threads", "0"][..], 2),
        (&["run", path, "--json", "--what"], 2),
        (&["run", path, "--json", "-p", "x", "--temp", "nan"], 2),
        (&["run", "/nowhere/m.gguf", "--json", "-p", "x"], 1),
        (&["inspect", "/nowhere/m.gguf", "--json"], 1),
        (&["tokenize", "/nowhere/m.gguf", "--json"], 1),
        (&["logits", path, "--ids", "9999", "--json"], 2),
    ] {
        let ran = sluice(args);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        let document = ran.json();
        assert_eq!(document["exit_code"], code, "{ran:?}");
        let error = document["error"].as_str().expect("an error");
        assert_eq!(ran.stderr, format!("error: {error}\n"));
    }
}

#[test]
fn help_is_on_stdout_when_asked_for_and_on_stderr_when_not() {
    for args in
        [&["--help"][..], &["run", "--help"], &["inspect", "-h"], &["tokenize", "-h"], &["logits", "-h"]]
    {
        let ran = sluice(args).ok();
        assert!(
            ran.stderr.is_empty() && String::from_utf8_lossy(&ran.stdout).contains("Usage: sluice"),
            "{ran:?}"
        );
    }
    let ran = sluice(["--version"]).ok();
    assert_eq!(ran.stdout, format!("sluice {}\n", env!("CARGO_PKG_VERSION")).as_bytes());
    let none: [&str; 0] = [];
    let ran = sluice(none);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.stdout.is_empty() && ran.stderr.contains("Usage: sluice") && ran.stderr.contains("Examples"),
        "{ran:?}"
    );
}

#[test]
fn more_threads_than_cores_work_with_a_note() {
    let (_dir, path) = model();
    let ran = run(&path, "-p the -n 2 --threads 200").ok();
    assert!(ran.stderr.contains("note: --threads 200"), "{ran:?}");
}

#[test]
fn a_context_beyond_the_model_is_refused_with_both_numbers() {
    let (_dir, path) = model();
    run(&path, "-p the --ctx 513").refused(2, &["--ctx 513", "512"]);
    run(&path, "-p the -n 3 --ctx 512").ok();
}
