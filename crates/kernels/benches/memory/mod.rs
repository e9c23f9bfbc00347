//! How fast this machine reads memory: what products of one token are to be judged by.

use core::fmt;
use std::time::Instant;

/// Bytes for each thread: several times what any CPU has of last-level cache for each of its cores (12 MB).
const PER_THREAD: usize = 64 << 20;
/// Bytes at least: as `IN_MEMORY` of the products.
const AT_LEAST: usize = 256 << 20;
/// Bytes that one thread reads at a time: about a millisecond.
const PIECE: usize = 32 << 20;
/// Places that are read in turn: CPUs differ in how many they ask for ahead. More than four were slower wherever tried.
const STREAMS: usize = 4;
/// How often each is measured; the median counts, as for the products.
const ROUNDS: usize = 15;
/// Bytes of a line of cache, of which all come whichever is read.
const LINE: usize = 64;

/// What reading reaches.
pub struct Rates {
    /// One thread, in GB/s.
    pub one: f64,
    /// All threads together, in GB/s.
    pub all: f64,
    /// How many these are.
    pub threads: usize,
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { one, all, threads } = self;
        write!(f, "memory: 1 thread reads {one:.1} GB/s, {threads} threads read {all:.1} GB/s together")
    }
}

/// Measures both, each with as many places at a time as proves fastest.
pub fn rates() -> Rates {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let bytes = vec![1u8; (threads * PER_THREAD).max(AT_LEAST)]; // zeros would all lie in one page
    let together = (1..=STREAMS).map(|streams| {
        rate(bytes.len(), || {
            std::thread::scope(|scope| {
                for part in bytes.chunks_exact(bytes.len() / threads) {
                    scope.spawn(move || read(part, streams));
                }
            });
        })
    });
    Rates { one: one_thread(&bytes), all: together.fold(0.0, f64::max), threads }
}

/// What one thread reaches now, in GB/s, from bytes that no cache holds. On shared machines it is another from one minute to
/// the next.
pub fn one_thread(bytes: &[u8]) -> f64 {
    let mut pieces = bytes.chunks_exact(PIECE).cycle();
    let mut next = || pieces.next().expect("more bytes than a piece");
    (1..=STREAMS).map(|streams| rate(PIECE, || read(next(), streams))).fold(0.0, f64::max)
}

/// The median of the rates in GB/s, which are bytes per nanosecond.
fn rate(bytes: usize, mut work: impl FnMut()) -> f64 {
    let mut rates = [0.0; ROUNDS].map(|_: f64| {
        let start = Instant::now();
        work();
        bytes as f64 / start.elapsed().as_nanos() as f64
    });
    median(&mut rates)
}

/// The value that half of the others do not exceed, NaN if there are none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Reads every line from `streams` places in turn.
fn read(bytes: &[u8], streams: usize) {
    let lines = bytes.as_chunks::<LINE>().0;
    let each = lines.len() / streams;
    let mut sums = [0; STREAMS];
    for at in 0..each {
        for (stream, sum) in sums.iter_mut().take(streams).enumerate() {
            *sum ^= lines[stream * each + at][0];
        }
    }
    std::hint::black_box(sums);
}
