//! Sessions: batch and page edges, passes that were foreseen and do not come, damaged weights, biases of the head.

#![allow(clippy::print_stderr, reason = "common says when a test skips")]

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use sluice_fixtures::{Spec, TensorType};
use sluice_model::loader::Memory;
use sluice_model::{Error, Model, Options, Placement, Result, Session};

use common::{mixed, write};

/// More than two pages of the cache, and the last page is not full.
const LENGTH: usize = 70;

fn ids() -> Vec<u32> {
    (0..LENGTH as u32).map(|i| 1 + i * 29 % 300).collect()
}

fn options(batch: usize) -> Options {
    Options {
        threads: Some(2),
        layers: Placement::Stream,
        head: Placement::Stream,
        chunk_bytes: Some(20_000),
        prompt_batch: Some(batch),
        ..Options::new(LENGTH)
    }
}

/// A model, and its file in memory for eager reads, so that passes are read ahead.
struct World {
    _dir: tempfile::TempDir,
    path: PathBuf,
    model: Model,
}

impl World {
    fn new((dir, path): (tempfile::TempDir, PathBuf)) -> Self {
        let model = Model::open(&path).expect("a tiny model");
        World { _dir: dir, path, model }
    }

    fn session(&self, batch: usize) -> Session<'_> {
        let bytes = std::fs::read(&self.path).expect("the file just written");
        let memory = Arc::new(Memory::new(vec![bytes]).eager(3));
        Session::with_backend(&self.model, &options(batch), memory).expect("a session")
    }

    /// Logits after every token, fed in batches of `batch`.
    fn rows(&self, batch: usize) -> Vec<Vec<f32>> {
        let mut rows = Vec::new();
        let mut session = self.session(batch);
        let visit = |position, row: &[f32]| {
            assert_eq!(position, rows.len());
            rows.push(row.to_vec());
        };
        session.feed_each(&ids(), visit).expect("logits");
        rows
    }
}

#[test]
fn batches_that_end_anywhere_in_a_page_give_the_same_bits() {
    let world = World::new(write(&mixed()));
    let ids = ids();
    let wanted = world.rows(1);
    assert_eq!(wanted.len(), LENGTH);
    for batch in [2, 31, 32, 33, LENGTH - 1, LENGTH, 1000] {
        assert!(world.rows(batch) == wanted, "each of a batch of {batch}");
        let mut session = world.session(batch);
        assert!(session.feed(&ids, false).expect("logits") == wanted[LENGTH - 1], "batches of {batch}");
        assert_eq!(session.position(), LENGTH, "the context is full to the last position");
        assert!(matches!(session.feed(&[1], false), Err(Error::Context { .. })));
    }
}

#[test]
fn a_pass_that_was_foreseen_need_not_come() {
    let world = World::new(write(&mixed()));
    let ids = ids();
    let wanted = world.rows(1);
    let mut session = world.session(8);
    let mut at = 0;
    // Single tokens foresee a pass with head. A long piece then begins with one without, and a last piece that foresees
    // another is followed by nothing.
    for (count, more) in [(1, true), (20, true), (1, false), (17, false), (1, true), (30, true)] {
        let logits = session.feed(&ids[at..at + count], more).expect("logits");
        at += count;
        assert!(*logits == wanted[at - 1], "{count} tokens up to {at}");
    }
    assert_eq!(at, LENGTH);
}

#[test]
fn a_digest_is_of_all_logits_and_whoever_feeds_them() {
    let world = World::new(write(&mixed()));
    let ids = ids();
    let digest = |feed: &dyn Fn(&mut Session<'_>) -> Result<()>| {
        let mut session = world.session(7);
        feed(&mut session).expect("logits");
        session.digest()
    };
    let each = digest(&|session| session.feed_each(&ids, |_, _| {}));
    let single = digest(&|session| ids.iter().try_for_each(|id| session.feed(&[*id], true).map(drop)));
    let last = digest(&|session| session.feed(&ids, false).map(drop));
    assert_eq!(each, single);
    assert_ne!(each, last);
}

/// Writes `spec` with one more vector, whose values are `extra`, or with a tensor's bytes changed.
fn changed(
    spec: &Spec,
    extra: Option<(&str, &[f32])>,
    change: impl Fn(&str, &mut [u8]),
) -> (tempfile::TempDir, PathBuf) {
    let mut file = spec.metadata();
    let tensors = spec.tensors();
    for tensor in &tensors {
        file.tensor(&tensor.name, tensor.ty, &tensor.dims);
    }
    if let Some((name, values)) = extra {
        file.tensor(name, TensorType::F32, &[values.len() as u64]);
    }
    let mut data = file.begin(Vec::new()).expect("a header");
    for tensor in &tensors {
        let mut bytes = tensor.bytes(spec.seed);
        change(&tensor.name, &mut bytes);
        data.tensor(&tensor.name, &bytes).expect("a tensor");
    }
    if let Some((name, values)) = extra {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        data.tensor(name, &bytes).expect("a tensor");
    }
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    let path = dir.path().join("changed.gguf");
    std::fs::write(&path, data.finish().expect("a file")).expect("room for a tiny model");
    (dir, path)
}

#[test]
fn the_bias_of_a_tied_head_is_added_to_the_logits_of_every_token() {
    let spec = Spec { tied: true, ..Spec::tiny(TensorType::Q8_0) };
    let bias: Vec<f32> = (0..spec.vocab).map(|i| i as f32 / 64.0 - 2.0).collect();
    let plain = World::new(write(&spec)).rows(1);
    let biased = World::new(changed(&spec, Some(("output.bias", &bias)), |_, _| {}));
    for batch in [1, 16] {
        let rows = biased.rows(batch);
        for (row, plain) in rows.iter().zip(&plain) {
            let wanted: Vec<f32> = plain.iter().zip(&bias).map(|(logit, bias)| logit + bias).collect();
            assert!(*row == wanted, "batch {batch}");
        }
    }
}

#[test]
fn a_weight_that_is_not_a_number_is_named_by_the_first_logit_it_spoils() {
    const ROW: usize = 123;
    let spec = Spec::tiny(TensorType::F32);
    let world = World::new(changed(&spec, None, |name, bytes| {
        if name == "output.weight" {
            let at = (ROW * spec.dim as usize + 5) * 4;
            bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
    }));
    let mut session = world.session(4);
    match session.feed(&ids()[..10], true) {
        Err(Error::NonFinite { position: 9, id: ROW, value, .. }) => assert!(value.is_nan()),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("NaN was taken for a logit"),
    }
    assert_eq!(session.position(), 8, "the batches before the one that failed are done");
}

#[test]
fn a_batch_that_failed_leaves_nothing_behind() {
    const DAMAGED: u32 = 123;
    let spec = Spec::tiny(TensorType::F32);
    let world = World::new(changed(&spec, None, |name, bytes| {
        if name == "token_embd.weight" {
            let at = DAMAGED as usize * spec.dim as usize * 4;
            bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
    }));
    let wanted = {
        let mut session = world.session(8);
        session.feed_each(&[1, 2, 3, 4], |_, _| {}).expect("logits");
        session.digest()
    };
    let mut session = world.session(8);
    let failed = session.feed_each(&[1, 2, DAMAGED, 4], |_, _| panic!("a row of a batch that failed"));
    assert!(matches!(failed, Err(Error::NonFinite { position: 2, id: 0, .. })));
    assert_eq!(session.position(), 0);
    session.feed_each(&[1, 2, 3, 4], |_, _| {}).expect("logits");
    assert_eq!(session.digest(), wanted, "neither rows counted twice nor keys that are not numbers");
}

#[test]
fn what_would_change_the_result_is_refused_and_what_is_merely_odd_is_mentioned() {
    let spec = Spec::tiny(TensorType::Q8_0);
    for name in ["blk.0.attn_norm.bias", "blk.0.attn_q_norm.weight", "blk.1.ffn_down.scale"] {
        let (_dir, path) = changed(&spec, Some((name, &[1.0; 256])), |_, _| {});
        let refused = Model::open(&path).err().expect("nothing applies it").to_string();
        assert!(refused.contains(name), "{refused}");
    }
    let warned = |file, words: [&str; 2]| {
        let world = World::new(file);
        let warnings = world.model.warnings();
        assert!(warnings.iter().any(|w| words.iter().all(|word| w.contains(word))), "{warnings:?}");
    };
    let mystery = changed(&spec, Some(("blk.0.mystery.weight", &[1.0; 32])), |_, _| {});
    warned(mystery, ["blk.0.mystery.weight", "nothing uses"]);
    let zeroed = changed(&spec, None, |name, bytes| {
        if name == "blk.1.ffn_norm.weight" {
            bytes.fill(0);
        }
    });
    warned(zeroed, ["blk.1.ffn_norm.weight", "zeros"]);
}
