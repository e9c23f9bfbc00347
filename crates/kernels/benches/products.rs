//! Rates of the products, per format, level and number of tokens, on one core; each case checks its result first.
//!
//! `cargo bench -p sluice-kernels [-- FILTER]`, where the filter is a regular expression on names such as
//! `Q4_K/avx512/1 token from RAM`. For each case criterion prints a time and GB/s of weights, both with their spread, and a
//! line of ours gives the median: GB/s, beside what a loop that only reads gets out of this machine's memory in the same run,
//! and GOP/s, two per weight and token. One token is bound by memory, several by arithmetic.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

#[path = "../tests/blocks/mod.rs"]
mod blocks;
mod memory;

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use blocks::{BOUND, Pcg, acts, product, rows_of};
use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use sluice_kernels::{Acts, Format, Isa, QuantRows, matmul};

/// Columns of the weights, those of a small Llama.
const COLS: usize = 2048;
/// Bytes of weights that stay in a level-2 cache beside the activations, and what a call gets: a band.
const IN_CACHE: usize = 256 << 10;
/// Rows of a band are a multiple of these, as they are in a model: most that a level has in lanes.
const ROWS: usize = 16;
/// Bytes that no cache holds: 96 MB of last level is the most that a core has today.
const IN_MEMORY: usize = 256 << 20;
/// Rows that are checked: two whole tiles of every level and a part of one.
const CHECKED: usize = 40;
/// Rows and tokens that are checked against f64.
const CHECKED_IN_F64: usize = 2;

/// Samples of each case, and how long all of them take: 5 ms each, so that those in which somebody else had the core do not
/// move the median. 225 cases make about two minutes.
const SAMPLES: usize = 50;
const MEASURED: Duration = Duration::from_millis(250);
/// Clocks and caches are up after a few milliseconds.
const WARM_UP: Duration = Duration::from_millis(50);
/// How often criterion draws from the samples again for its spread: a little more than what it warns below.
const RESAMPLES: usize = 2000;

/// Where the weights of a case come from.
#[derive(Clone, Copy, PartialEq)]
enum From {
    Cache,
    Memory,
}

/// What is measured at a level: one token, the beginning of a prompt, and tiles of a long one.
fn cases(isa: Isa) -> impl Iterator<Item = (usize, From)> {
    let one = [(1, From::Cache), (1, From::Memory)].into_iter();
    let all = one.chain([2, 6, 32, 256].map(|tokens| (tokens, From::Cache)));
    // The level that defines the bits is there to be compared with: it gains nothing from more tokens.
    all.filter(move |&(tokens, _)| isa != Isa::scalar() || matches!(tokens, 1 | 32))
}

/// Weights and activations of a case, checked.
struct Case<'a> {
    isa: Isa,
    w: QuantRows<'a>,
    x: Acts,
    y: Vec<f32>,
    /// Rows of a call, and the first of the next one.
    band: usize,
    at: usize,
}

impl<'a> Case<'a> {
    /// # Panics
    /// When the level does not give the bits of scalar, or these are further off the reference than promised.
    fn new(isa: Isa, w: QuantRows<'a>, tokens: usize) -> Self {
        let (format, cols) = (w.format(), w.cols());
        let x = acts(&mut Pcg::new(1), tokens, cols, isa, format);
        let few = w.slice(0..w.rows().min(CHECKED));
        let y = product(Isa::scalar(), few, &x);
        assert!(product(isa, few, &x) == y, "{format}, {tokens} tokens, {isa}: not the bits of scalar");
        let error = blocks::error(few.slice(0..CHECKED_IN_F64), &x, &y, CHECKED_IN_F64);
        assert!(error <= BOUND, "{format}, {tokens} tokens: scalar is off by {error:e} of Σ|w·x|");
        let band = band(format);
        Self { isa, w, x, y: vec![0.0; band * tokens], band, at: 0 }
    }

    /// How long so many calls take, each with the next band.
    fn run(&mut self, calls: u64) -> Duration {
        let start = Instant::now();
        for _ in 0..calls {
            matmul(self.isa, self.w.slice(self.at..self.at + self.band), &self.x, &mut self.y);
            let next = self.at + self.band;
            self.at = if next + self.band <= self.w.rows() { next } else { 0 };
        }
        std::hint::black_box(&self.y);
        start.elapsed()
    }
}

/// Rows of a band.
fn band(format: Format) -> usize {
    IN_CACHE / bytes_of(format, 1) / ROWS * ROWS
}

/// Bytes of so many rows.
fn bytes_of(format: Format, rows: usize) -> usize {
    rows * format.row_bytes(COLS).expect("columns that fit all formats")
}

/// Random weights, at least one band: a short run of rows over and over, as what the bits are makes no difference.
fn weights(format: Format, bytes: usize) -> Vec<u8> {
    let band = band(format);
    let few = rows_of(&mut Pcg::new(2), format, band, COLS);
    few.repeat((bytes / few.len()).max(1))
}

fn products(criterion: &mut Criterion) {
    // Without this argument, as under `cargo test`, criterion runs each case once and measures nothing.
    let measured = std::env::args().any(|argument| argument == "--bench");
    let memory = measured.then(memory::rates);
    if let Some(memory) = &memory {
        println!("{memory}");
    }
    let mut read = memory.map_or(f64::NAN, |memory| memory.one);
    for format in Format::ALL {
        let large = OnceCell::new(); // made only if the filter lets a case of the format through
        let mut group = criterion.benchmark_group(format.name());
        group.sampling_mode(SamplingMode::Flat);
        group.throughput(Throughput::BytesDecimal(bytes_of(format, band(format)) as u64));
        for isa in Isa::available() {
            for (tokens, from) in cases(isa) {
                let name = match (tokens, from) {
                    (1, From::Cache) => "1 token from L2".to_owned(),
                    (1, From::Memory) => "1 token from RAM".to_owned(),
                    _ => format!("{tokens} tokens"),
                };
                let (mut case, mut seconds) = (None, Vec::new());
                group.bench_function(BenchmarkId::new(isa.name(), &name), |bencher| {
                    let case = case.get_or_insert_with(|| {
                        let bytes =
                            large.get_or_init(|| weights(format, if measured { IN_MEMORY } else { 0 }));
                        let w = QuantRows::new(format, COLS, bytes).expect("whole rows");
                        let rows = if from == From::Memory { w.rows() } else { band(format) };
                        Case::new(isa, w.slice(0..rows), tokens)
                    });
                    bencher.iter_custom(|calls| {
                        let time = case.run(calls);
                        seconds.push(time.as_secs_f64() / calls as f64);
                        time
                    });
                });
                // No time, if the filter did not want the case. Before the samples come rounds to warm up.
                seconds.drain(..seconds.len().saturating_sub(SAMPLES));
                let median = memory::median(&mut seconds);
                if measured && !median.is_nan() {
                    if let (From::Memory, Some(large)) = (from, large.get()) {
                        read = memory::one_thread(large);
                    }
                    let bytes = bytes_of(format, band(format)) as f64 / median / 1e9;
                    let operations = (2 * band(format) * COLS * tokens) as f64 / median / 1e9;
                    println!(
                        "{format:6} {isa:6} {name:16} {bytes:7.2} GB/s of weights (memory {read:.1}), {operations:7.2} GOP/s"
                    );
                }
            }
        }
        group.finish();
    }
}

fn configuration() -> Criterion {
    Criterion::default()
        .sample_size(SAMPLES)
        .measurement_time(MEASURED)
        .warm_up_time(WARM_UP)
        .nresamples(RESAMPLES)
        .without_plots()
}

criterion_group! { name = benches; config = configuration(); targets = products }
criterion_main!(benches);
