//! `sluice bench`: the same document as `run`, repetitions that agree, and counts that must fit the context.

mod common;

use std::ffi::OsStr;

use common::{sluice, tiny, write};

#[test]
fn repetitions_are_told_one_by_one_and_compute_the_same() {
    let (_dir, path) = write(&tiny(), "tiny.gguf");
    let bench = |more: &[&str]| {
        let words = ["--prompt-tokens", "9", "--gen-tokens", "4", "--reps", "3", "--json"];
        let words = words.iter().chain(more).map(OsStr::new);
        sluice([OsStr::new("bench"), path.as_os_str()].into_iter().chain(words)).ok().json()
    };
    let first = bench(&[]);
    assert_eq!(first["prompt_tokens"], 9, "{first}");
    assert_eq!(first["generated_tokens"], 4, "{first}");
    assert_eq!(first["reps"].as_array().map(Vec::len), Some(3), "{first}");
    for rate in ["prefill_tok_s", "decode_tok_s"] {
        let mut all: Vec<f64> =
            first["reps"].as_array().into_iter().flatten().filter_map(|r| r[rate].as_f64()).collect();
        all.sort_by(f64::total_cmp);
        assert_eq!(first["timings"][rate].as_f64(), Some(all[1]), "the median of {all:?}");
    }
    let other = bench(&["--threads", "3", "--layers", "stream", "--prompt-batch", "2"]);
    assert_eq!(first["logits_digest"], other["logits_digest"]);
    assert_eq!(first["ids"], other["ids"]);
}

#[test]
fn more_tokens_than_the_model_knows_positions_are_refused() {
    let (_dir, path) = write(&tiny(), "tiny.gguf");
    let words = ["--prompt-tokens", "500", "--gen-tokens", "100"].map(OsStr::new);
    let run = sluice([OsStr::new("bench"), path.as_os_str()].into_iter().chain(words));
    run.refused(2, &["--prompt-tokens 500", "599", "512"]);
}
