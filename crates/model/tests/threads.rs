//! Any number of threads: the same logits, and a number of locks and wake-ups per token that does not grow with it. Bounds
//! are those of `docs/threads.md`; nothing here measures time.

mod common;

use std::path::Path;

use common::write;
use sluice_fixtures::{Spec, TensorType};
use sluice_model::{BackendChoice, Direct, Model, Options, Placement, Report, Session};

const THREADS: [usize; 6] = [1, 2, 4, 8, 16, 64];

/// Wide enough that a group is worth several workers.
fn spec() -> Spec {
    Spec { dim: 512, ffn: 1536, heads: 8, kv_heads: 2, layers: 2, vocab: 512, ..Spec::tiny(TensorType::Q8_0) }
}

/// q, k and v; output; gate and up; down: of two layers; and the head.
const GROUPS: u64 = 2 * 4 + 1;
/// Besides groups each layer has one region of attention, and for many tokens eight between products (norms, turning, rounding
/// and the like), the head two.
const REGIONS: u64 = GROUPS + 2 * 9 + 2;

fn open<'m>(model: &'m Model, threads: usize, backend: BackendChoice, placement: Placement) -> Session<'m> {
    let options = Options {
        threads: Some(threads),
        backend,
        direct: Direct::Off,
        layers: placement,
        head: placement,
        chunk_bytes: Some(100_000),
        ..Options::new(64)
    };
    Session::open(model, &options).expect("a session")
}

fn ways(path: &Path) -> Vec<(BackendChoice, Placement)> {
    let mut ways = vec![
        (BackendChoice::Mmap, Placement::Resident),
        (BackendChoice::Pread, Placement::Resident),
        (BackendChoice::Mmap, Placement::Stream),
        (BackendChoice::Pread, Placement::Stream),
    ];
    let options = sluice_model::loader::Options {
        backend: BackendChoice::Uring,
        direct: Direct::Off,
        ..Default::default()
    };
    if sluice_model::loader::open(&[path.to_owned()], &options).is_ok() {
        ways.push((BackendChoice::Uring, Placement::Stream));
    }
    ways
}

/// Panics when the last pass of `report` took more than it may. Without chunks all is resident.
fn check(report: &Report, chunks: u64, what: &str) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let threads = report.threads as u64;
    let passed = report.sync.last_pass;
    let per_pass = 8; // announcing, and the embedding of one token
    let bound = |per_chunk: u64| per_pass + 3 * GROUPS + per_chunk * chunks;
    assert!(passed.locks <= bound(24), "{what}: {passed:?}, {chunks} chunks");
    // Each region wakes those it has use for, and the last of them the caller.
    let called = REGIONS * threads.min(cores) + chunks.min(GROUPS * threads);
    assert!(passed.wakeups <= called + 3 * chunks, "{what}: {passed:?}, {chunks} chunks");
    // Who is woken has slept; a sleep that is not over is counted with the pass in which it began.
    assert!(passed.sleeps <= called + 3 * chunks + threads, "{what}: {passed:?}, {chunks} chunks");
    if threads == 1 {
        assert_eq!((passed.wakeups, passed.sleeps), (0, 0), "{what}");
    }
}

#[test]
fn logits_do_not_depend_on_threads_and_what_is_locked_and_woken_is_bounded() {
    let (_dir, path) = write(&spec());
    let model = Model::open(&path).expect("a tiny model");
    for prompt in [1, 5, 40] {
        let ids: Vec<u32> = (0..prompt).map(|i| 1 + i * 37 % 500).collect();
        let mut wanted = None;
        for (backend, placement) in ways(&path) {
            for threads in THREADS {
                let what = format!("{backend:?}, {placement:?}, {threads} threads, prompt of {prompt}");
                let mut session = open(&model, threads, backend, placement);
                session.feed(&ids, true).expect("logits");
                for i in 0..8 {
                    let before = session.report();
                    session.feed(&[7 + i], i < 7).expect("logits");
                    let after = session.report();
                    // A read for each chunk, and one for the embedding; copies of a mapping are not counted as reads.
                    let bytes = after.streamed_bytes_per_pass;
                    let chunks = match placement {
                        Placement::Resident => 0,
                        _ => (after.reads - before.reads).max(bytes / (16 << 10)).min(GROUPS * (128 + 3)),
                    };
                    check(&after, chunks, &what);
                }
                let digest = session.digest();
                assert_eq!(*wanted.get_or_insert(digest), digest, "{what}");
                let sync = session.report().sync;
                assert_eq!(sync.single_passes, 8);
                assert!(sync.per_token().is_some_and(|[locks, ..]| locks > 0.0));
            }
        }
    }
}

/// With everything in memory the locks are not only bounded but the same for every number of threads.
#[test]
fn what_stays_takes_as_many_locks_with_any_number_of_threads() {
    let (_dir, path) = write(&spec());
    let model = Model::open(&path).expect("a tiny model");
    let locks = THREADS.map(|threads| {
        let mut session = open(&model, threads, BackendChoice::Pread, Placement::Resident);
        session.feed(&[1, 2, 3], true).expect("logits");
        session.feed(&[4], true).expect("logits");
        session.feed(&[5], false).expect("logits");
        session.report().sync.last_pass.locks
    });
    assert!(locks.iter().all(|n| *n == locks[0]), "{locks:?}");
}
