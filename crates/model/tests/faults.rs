//! Reads that fail in the middle of a pass: the error comes out, nothing hangs, and the session goes on with the same
//! bits once reads work again.

#![allow(clippy::print_stderr, reason = "common says when a test skips")]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_model::loader::{ByteRange, ErrorKind, Faults, FileIndex, Memory};
use sluice_model::{Error, Model, Options, Placement, Session};

use common::{mixed, write};

const PROMPT: [u32; 9] = [1, 50, 60, 70, 200, 300, 9, 8, 7];

fn options(threads: usize) -> Options {
    Options {
        threads: Some(threads),
        layers: Placement::Stream,
        head: Placement::Stream,
        head_rows: 64,
        chunk_bytes: Some(20_000),
        prompt_batch: Some(4),
        ..Options::new(16)
    }
}

#[test]
fn a_file_that_took_the_place_of_the_one_whose_header_was_read_is_refused() {
    let (dir, path) = write(&mixed());
    let bytes = std::fs::read(&path).expect("the file just written");
    let model = Model::open(&path).expect("a tiny model");
    Session::open(&model, &options(1)).expect("still the same file");
    // The same length and even the same bytes: only that it is another file can tell.
    let other = dir.path().join("other.gguf");
    std::fs::write(&other, &bytes).expect("room for a copy");
    std::fs::rename(&other, &path).expect("the same folder");
    let error = Session::open(&model, &options(1)).err().expect("another file").to_string();
    assert!(error.contains("tiny.gguf") && error.contains("took its place"), "{error}");
    std::fs::remove_file(&path).expect("a file");
    assert!(Session::open(&model, &options(1)).is_err());
}

#[test]
fn a_session_survives_failing_reads_and_gives_the_same_bits() {
    let (_dir, path) = write(&mixed());
    let bytes = std::fs::read(&path).expect("the file just written");
    let model = Model::open(&path).expect("a tiny model");
    let wanted = {
        let mut session = Session::open(&model, &options(1)).expect("a session");
        session.feed(&PROMPT, false).expect("logits").to_vec()
    };
    for (threads, depth) in [(1, 0), (2, 0), (3, 4), (2, 1)] {
        let memory = Arc::new(match depth {
            0 => Memory::new(vec![bytes.clone()]),
            depth => Memory::new(vec![bytes.clone()]).eager(depth),
        });
        let mut session =
            Session::with_backend(&model, &options(threads), memory.clone()).expect("a session");
        let mut failures = 0;
        for seed in 0..12 {
            let delay = Duration::from_micros(50);
            memory.set_faults(Faults { seed, fail_one_in: 60, split_one_in: 5, delay, ..Faults::default() });
            match session.feed(&PROMPT[session.position()..], false) {
                Err(Error::Stream(_)) => failures += 1,
                Err(other) => panic!("{other}"),
                Ok(_) => break,
            }
        }
        assert!(failures > 0, "the faults were to be met");
        memory.set_faults(Faults::default());
        let left = session.position();
        if left < PROMPT.len() {
            let logits = session.feed(&PROMPT[left..], false).expect("reads work again");
            assert_eq!(logits, wanted, "{threads} threads, {depth} ahead, {failures} failures");
        }
    }
}

#[test]
fn the_error_says_which_bytes() {
    let (_dir, path) = write(&mixed());
    let bytes = std::fs::read(&path).expect("the file just written");
    let model = Model::open(&path).expect("a tiny model");
    let last = ByteRange { file: FileIndex(0), offset: bytes.len() as u64 - 100, len: 100 };
    let memory = Arc::new(Memory::new(vec![bytes]));
    memory.set_faults(Faults { fail: vec![last], ..Faults::default() });
    let mut session = Session::with_backend(&model, &options(2), memory).expect("a session");
    match session.feed(&PROMPT, false) {
        Err(Error::Stream(e)) => assert_eq!(e.kind(), ErrorKind::Read, "{e}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the last tensor cannot be read"),
    }
}

#[test]
fn a_raised_flag_ends_the_pass_and_a_lowered_one_lets_it_begin_again() {
    let (_dir, path) = write(&mixed());
    let model = Model::open(&path).expect("a tiny model");
    let options = options(2);
    let mut session = Session::open(&model, &options).expect("a session");
    let wanted = {
        let mut other = Session::open(&model, &self::options(1)).expect("a session");
        other.feed(&PROMPT, false).expect("logits").to_vec()
    };
    options.cancel.store(true, Ordering::Relaxed);
    assert!(matches!(session.feed(&PROMPT, true), Err(Error::Interrupted)));
    assert_eq!(session.position(), 0);
    options.cancel.store(false, Ordering::Relaxed);
    assert_eq!(session.feed(&PROMPT, false).expect("logits"), wanted);
}

#[test]
fn what_does_not_fit_is_refused_before_any_pass() {
    let (_dir, path) = write(&mixed());
    let model = Model::open(&path).expect("a tiny model");
    let mut session = Session::open(&model, &options(1)).expect("a session");
    let long = [1u32; 17];
    assert!(matches!(session.feed(&long, false), Err(Error::Context { context: 16, wanted: 17, .. })));
    assert!(matches!(session.feed(&[320], false), Err(Error::Usage(_))), "an id past the vocabulary");
    assert!(matches!(session.feed(&[], false), Err(Error::Usage(_))));
    assert_eq!(session.report().passes, 0);
    session.feed(&long[..16], false).expect("a full context");
    assert!(matches!(session.feed(&[1], false), Err(Error::Context { .. })));
    for bad in [
        Options { head_rows: 0, ..options(1) },
        Options { prompt_batch: Some(0), ..options(1) },
        Options { chunk_bytes: Some(0), ..options(1) },
        options(0),
    ] {
        assert!(matches!(Session::open(&model, &bad), Err(Error::Usage(_))), "{bad:?}");
    }
    assert!(Session::open(&model, &Options::new(usize::MAX)).is_err());
}
