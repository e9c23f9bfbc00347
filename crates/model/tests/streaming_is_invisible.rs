//! It must not matter how bytes arrive: the same logits, bit for bit, over backend, residency, chunk size, threads,
//! batch and CPU level.

#![allow(clippy::print_stderr, reason = "a test that skips says so")]

mod common;

use std::path::Path;

use sluice_model::{ActBits, BackendChoice, Direct, Isa, KvFormat, Model, Options, Placement, Session};

use common::{mixed, write};
use sluice_fixtures::{required, smollm2};

/// One way to run a model.
#[derive(Clone, Debug)]
struct Cell {
    backend: BackendChoice,
    direct: Direct,
    layers: Placement,
    head: Placement,
    head_rows: usize,
    threads: usize,
    chunk_bytes: usize,
    batch: usize,
}

impl Cell {
    fn options(&self, context: usize) -> Options {
        Options {
            threads: Some(self.threads),
            backend: self.backend,
            direct: self.direct,
            chunk_bytes: Some(self.chunk_bytes),
            layers: self.layers,
            head: self.head,
            head_rows: self.head_rows,
            prompt_batch: Some(self.batch),
            act_bits: Some(ActBits::Eight), // 16 for so small a model otherwise, which have a test of their own
            ..Options::new(context)
        }
    }

    /// Feeds `prompt` and then `more` one by one; the bits of all logits that come out.
    fn run(&self, model: &Model, prompt: &[u32], more: &[u32]) -> sluice_model::Result<Vec<u32>> {
        let mut session = Session::open(model, &self.options(prompt.len() + more.len()))?;
        let bits = |row: &[f32]| row.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let mut out = bits(session.feed(prompt, true)?);
        for (i, id) in more.iter().enumerate() {
            out.extend(bits(session.feed(&[*id], i + 1 < more.len())?));
        }
        assert_eq!(session.position(), prompt.len() + more.len());
        Ok(out)
    }
}

/// Backends with and without the page cache, those left out that this machine forbids.
fn backends(path: &Path) -> Vec<(BackendChoice, Direct)> {
    let all = [
        (BackendChoice::Mmap, Direct::Off, ""),
        (BackendChoice::Pread, Direct::Off, ""),
        (BackendChoice::Pread, Direct::On, "direct"),
        (BackendChoice::Uring, Direct::Off, "uring"),
        (BackendChoice::Uring, Direct::On, "uring,direct"),
    ];
    all.into_iter()
        .filter(|(backend, direct, needs)| {
            let options = sluice_loader::Options { backend: *backend, direct: *direct, ..Default::default() };
            let opened = sluice_loader::open(&[path.to_owned()], &options);
            if let Err(e) = &opened {
                assert!(!needs.is_empty() && !needs.split(',').any(required), "{e}");
                eprintln!("SKIPPED: {backend:?} with direct {direct:?}: {e}");
            }
            opened.is_ok()
        })
        .map(|(backend, direct, _)| (backend, direct))
        .collect()
}

#[test]
fn on_a_tiny_model_every_cell_gives_the_same_bits() {
    let (_dir, path) = write(&mixed());
    let prompt: Vec<u32> = (0..13).map(|i| 1 + i * 17 % 300).collect();
    let more = [7, 290, 33];
    let backends = backends(&path);
    let mut cells = Vec::new();
    for &(backend, direct) in &backends {
        for (layers, head, head_rows) in [
            (Placement::Stream, Placement::Resident, 1024),
            (Placement::Stream, Placement::Stream, 1024),
            (Placement::Stream, Placement::Stream, 7),
            (Placement::Resident, Placement::Resident, 1024),
            (Placement::Resident, Placement::Stream, 7),
        ] {
            for threads in [1, 2, 3] {
                // Fewer rows than a kernel takes at once, and a few bands.
                for chunk_bytes in [3_000, 50_000] {
                    for batch in [1, 5, 64] {
                        cells.push(Cell {
                            backend,
                            direct,
                            layers,
                            head,
                            head_rows,
                            threads,
                            chunk_bytes,
                            batch,
                        });
                    }
                }
            }
        }
    }
    let mut first: Option<Vec<u32>> = None;
    for isa in Isa::available() {
        let model = Model::open_with(&path, isa).expect("a tiny model");
        for cell in &cells {
            let bits = cell
                .run(&model, &prompt, &more)
                .unwrap_or_else(|e| panic!("{cell:?} on {}: {e}", isa.name()));
            let wanted = first.get_or_insert_with(|| bits.clone());
            assert!(*wanted == bits, "{cell:?} on {} gives other bits than the first cell", isa.name());
        }
    }
    let first = first.expect("cells ran");
    assert_eq!(first.len(), 4 * 320, "four rows of logits");
    assert!(first.windows(2).any(|w| w[0] != w[1]), "the logits say something");
    eprintln!("{} cells on {} CPU levels", cells.len(), Isa::available().len());
}

#[test]
fn sixteen_bits_are_as_invisible_and_are_no_eight() {
    let (_dir, path) = write(&mixed());
    let prompt: Vec<u32> = (0..40).map(|i| 1 + i * 29 % 300).collect();
    let run = |isa, act_bits, batch, layers, threads| {
        let model = Model::open_with(&path, isa).expect("a tiny model");
        let options = Options {
            act_bits: Some(act_bits),
            prompt_batch: Some(batch),
            layers,
            threads: Some(threads),
            head_rows: 7,
            ..Options::new(64)
        };
        let mut session = Session::open(&model, &options).expect("a session");
        session.feed(&prompt, false).expect("logits").to_vec()
    };
    let wanted = run(Isa::scalar(), ActBits::Sixteen, 40, Placement::Resident, 1);
    for isa in Isa::available() {
        for (batch, threads) in [(1, 2), (5, 1), (40, 3)] {
            for layers in [Placement::Resident, Placement::Stream] {
                let got = run(isa, ActBits::Sixteen, batch, layers, threads);
                assert!(got == wanted, "batches of {batch}, {threads} threads, {layers:?}, {}", isa.name());
            }
        }
    }
    assert!(run(Isa::scalar(), ActBits::Eight, 40, Placement::Resident, 1) != wanted);
}

#[test]
fn other_cache_formats_change_little_and_are_as_invisible() {
    let (_dir, path) = write(&mixed());
    let model = Model::open(&path).expect("a tiny model");
    let prompt: Vec<u32> = (0..40).map(|i| 1 + i * 29 % 300).collect();
    let run = |kv, batch| {
        let act_bits = Some(ActBits::Eight);
        let options = Options { kv, act_bits, prompt_batch: Some(batch), ..Options::new(64) };
        let mut session = Session::open(&model, &options).expect("a session");
        session.feed(&prompt, false).expect("logits").to_vec()
    };
    let exact = run(KvFormat::F32, 40);
    // A changed last bit of a key flips roundings of later 8-bit activations, each worth up to half a percent.
    let scale = exact.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (kv, bound) in [(KvFormat::F32, 0.0), (KvFormat::F16, 0.03), (KvFormat::Q8_0, 0.1)] {
        let (whole, single) = (run(kv, 40), run(kv, 1));
        assert_eq!(whole, single, "{kv:?}");
        let worst = whole.iter().zip(&exact).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst <= bound * scale, "{kv:?}: {worst} of {scale}");
    }
}

#[test]
fn on_the_real_model_every_backend_gives_the_same_bits() {
    let Some(path) = smollm2() else { return };
    let model = Model::open(&path).expect("the real model");
    let prompt = model.tokenizer().encode(b"Once upon a time, in a small village by the sea,", true, true);
    let more = [665, 436, 253];
    let mut first: Option<Vec<u32>> = None;
    for (backend, direct) in backends(&path) {
        for (head, head_rows) in [(Placement::Resident, 1024), (Placement::Stream, 1024)] {
            for (threads, chunk_bytes, batch) in [(1, 1 << 20, 5), (2, 200_000, 64)] {
                let layers = Placement::Stream;
                let cell = Cell { backend, direct, layers, head, head_rows, threads, chunk_bytes, batch };
                let bits = cell.run(&model, &prompt, &more).unwrap_or_else(|e| panic!("{cell:?}: {e}"));
                assert!(*first.get_or_insert_with(|| bits.clone()) == bits, "{cell:?} gives other bits");
            }
        }
    }
}
