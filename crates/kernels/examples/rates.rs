//! Rates of the products per format, level and number of tokens, each checked against the scalar level.
//!
//! `cargo run --release -p sluice-kernels --example rates [FORMAT…]` prints GB/s of weights for one token and GOP/s (two per
//! weight and token) for several, on one core: from a buffer that stays in L2, and for one token from one that does not fit
//! any cache.
#![allow(clippy::print_stdout)] // printing is what it is for

use std::time::{Duration, Instant};

use sluice_kernels::{Acts, Format, Isa, QuantRows, matmul};

/// Bytes that are read at about the speed of [`SLICE`].
const SLICE_OF_READING: usize = 32 << 20;
/// Columns of the weights, those of a small Llama.
const COLS: usize = 2048;
/// Numbers of tokens: two, a short prompt, and parts of a long one.
const TOKENS: [usize; 4] = [2, 6, 32, 256];
/// Bytes of weights that stay in a level-2 cache beside the activations.
const IN_CACHE: usize = 256 << 10;
/// Bytes that do not stay in any cache.
const IN_MEMORY: usize = 256 << 20;
/// How long each figure is measured.
const LONG_ENOUGH: Duration = Duration::from_millis(200);
/// The best slice counts: short enough to fit between the turns of other programs.
const SLICE: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    println!("a plain loop reads memory at {:.1} GB/s", reading(&weights(Format::F32, IN_MEMORY)) / 1e9);
    println!(
        "{:8} {:7} {:>8} {:>8}   GOP/s with {TOKENS:?} tokens",
        "format", "level", "L2 GB/s", "RAM GB/s"
    );
    for format in Format::ALL {
        if !chosen.is_empty() && !chosen.iter().any(|name| name == format.name()) {
            continue;
        }
        let row_bytes = format.row_bytes(COLS)?;
        let large = weights(format, IN_MEMORY / row_bytes * row_bytes);
        let small = &large[..IN_CACHE / row_bytes * row_bytes];
        let (small, large) = (QuantRows::new(format, COLS, small)?, QuantRows::new(format, COLS, &large)?);
        for isa in Isa::available() {
            let one = activations(1, isa, format);
            check(isa, small, &one)?;
            let cached = bytes_per_s(isa, small, &one);
            let memory = if isa == Isa::scalar() { f64::NAN } else { bytes_per_s(isa, large, &one) };
            print!("{format:8} {isa:7} {:8.2} {:8.2}  ", cached / 1e9, memory / 1e9);
            for tokens in TOKENS {
                let many = activations(tokens, isa, format);
                check(isa, small.slice(0..small.rows().min(40)), &many)?;
                let weights_per_s = bytes_per_s(isa, small, &many) / row_bytes as f64 * COLS as f64;
                print!(" {:6.1}", weights_per_s * tokens as f64 * 2.0 / 1e9);
            }
            println!();
        }
    }
    Ok(())
}

/// Pseudo-random bytes whose halves are small numbers.
fn weights(format: Format, len: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut bytes = Vec::with_capacity(len);
    for _ in 0..len {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.push((state >> 24) as u8);
    }
    let tops: &[usize] = match format {
        Format::F32 => &[3],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[1, 3],
        Format::Q2_K => &[81, 83],
        Format::Q3_K => &[109],
        Format::Q6_K => &[209],
        _ => &[1],
    };
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for &top in tops {
            block[top] = 0x1c; // the top byte of a half near 0.004, and of singles that are small as well
        }
    }
    bytes
}

fn activations(tokens: usize, isa: Isa, format: Format) -> Acts {
    let x: Vec<f32> = (0..tokens * COLS).map(|i| ((i * 7919) % 2003) as f32 / 1000.0 - 1.0).collect();
    let mut acts = Acts::new();
    acts.fill(&x, COLS);
    acts.prepare(isa, format);
    acts
}

/// How fast a plain loop reads memory and does nothing with it, to judge the other figures by.
fn reading(bytes: &[u8]) -> f64 {
    let mut best = f64::INFINITY;
    for piece in bytes.chunks_exact(SLICE_OF_READING) {
        let start = Instant::now();
        let words = piece.as_chunks::<64>().0.iter();
        let sum = words.fold([0u64; 8], |mut sum, line| {
            for (sum, word) in sum.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum ^= u64::from_le_bytes(*word);
            }
            sum
        });
        std::hint::black_box(sum);
        best = best.min(start.elapsed().as_secs_f64());
    }
    SLICE_OF_READING as f64 / best
}

/// A rate counts only with the right result.
fn check(isa: Isa, w: QuantRows<'_>, x: &Acts) -> Result<(), String> {
    let mut results = [vec![0.0; w.rows() * x.tokens()], vec![0.0; w.rows() * x.tokens()]];
    matmul(isa, w, x, &mut results[0]);
    matmul(Isa::scalar(), w, x, &mut results[1]);
    let same = results[0].iter().zip(&results[1]).all(|(a, b)| a.to_bits() == b.to_bits());
    if same { Ok(()) } else { Err(format!("{} on {isa}: not the scalar result", w.format())) }
}

/// The best rate at which pieces of the rows, each as large as fits in a cache, go through the kernel in turn.
fn bytes_per_s(isa: Isa, w: QuantRows<'_>, x: &Acts) -> f64 {
    let piece = IN_CACHE / w.row_bytes();
    let mut y = vec![0.0; piece * x.tokens()];
    let (begin, mut best, mut at) = (Instant::now(), f64::INFINITY, 0);
    while begin.elapsed() < LONG_ENOUGH {
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < SLICE {
            matmul(isa, w.slice(at..at + piece), x, &mut y);
            bytes += piece * w.row_bytes();
            at = if at + 2 * piece <= w.rows() { at + piece } else { 0 };
        }
        best = best.min(start.elapsed().as_secs_f64() / bytes as f64);
    }
    std::hint::black_box(&y);
    1.0 / best
}
