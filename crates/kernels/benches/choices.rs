//! Every value of every choice that belongs to a kind of CPU (`Tuning`), one token from memory, with one thread and with two.
//!
//! `cargo bench -p sluice-kernels --bench choices [-- FORMAT…]`: less than a minute. Values are measured in turn, round after round, so that all
//! of them see the same minutes of a shared machine; medians are printed in GB/s of weights, those in use marked with `*`. On
//! a new machine: where another row is faster by more than a few per cent for most formats, the table in `tuning.rs` is to change.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

#[path = "../tests/blocks/mod.rs"]
mod blocks;
mod memory;

use std::time::Instant;

use blocks::{Pcg, acts, rows_of};
use sluice_kernels::{Acts, Format, HINTS, Isa, QuantRows, Tuning, matmul};

/// Formats and columns: the matrices of a 1.1B model, the long rows of 8B, a small model's.
const CASES: [(Format, usize); 6] = [
    (Format::Q4_K, 2048),
    (Format::Q6_K, 2048),
    (Format::Q4_K, 14336),
    (Format::Q4_1, 576),
    (Format::Q8_0, 4096),
    (Format::F16, 2048),
];
/// More than a last cache is likely to hold of one process' data; where it holds more (105 to 480 MB on Xeons), what is read is new
/// each time: a round reads another part.
const BYTES: usize = 1 << 30;
/// Bytes that a thread multiplies in a round: about 3 ms.
const ROUND: usize = 32 << 20;
/// Bytes of a call, as a band.
const BAND: usize = 256 << 10;
/// Rounds of each value.
const ROUNDS: usize = 15;

/// The values to try, by what sets them apart from those in use.
fn values(here: Tuning) -> Vec<(String, Tuning)> {
    let mut all = vec![("in use".to_owned(), here)];
    for kind in ["amd", "intel"] {
        all.push((format!("kind={kind}"), here.with(&format!("kind={kind}")).expect("a kind")));
    }
    for (name, hint) in HINTS {
        for (switch, twice) in [("on", true), ("off", false)] {
            all.push((format!("hint={name},twice={switch}"), Tuning { hint, twice, ..here }));
        }
    }
    for distance in [1024, 2048, 4096, 8192] {
        all.push((format!("twice=on,distance={distance}"), Tuning { twice: true, distance, ..here }));
    }
    all
}

/// GB/s of `threads` threads over the next parts of the weights.
fn rate(isa: Isa, w: QuantRows<'_>, x: &Acts, threads: usize, turn: &mut usize) -> f64 {
    let rows = ROUND / w.row_bytes();
    let band = (BAND / w.row_bytes()).max(16);
    let parts: Vec<_> = (0..threads)
        .map(|_| {
            *turn = (*turn + 1) % (w.rows() / rows);
            w.slice(*turn * rows..(*turn + 1) * rows)
        })
        .collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for part in parts {
            scope.spawn(move || {
                let mut y = vec![0.0; band];
                for at in (0..part.rows()).step_by(band) {
                    let band = part.slice(at..part.rows().min(at + band));
                    matmul(isa, band, x, &mut y[..band.rows()]);
                }
                std::hint::black_box(y);
            });
        }
    });
    (threads * rows * w.row_bytes()) as f64 / start.elapsed().as_nanos() as f64
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Without this argument, as under `cargo test`, nothing is measured.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let wanted: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    println!("{}", memory::rates());
    let here = Tuning::of_this_cpu();
    println!("in use: {here}");
    for (format, cols) in CASES {
        if !wanted.is_empty() && !wanted.iter().any(|name| format.name() == name.as_str()) {
            continue;
        }
        let row_bytes = format.row_bytes(cols).expect("columns that fit");
        let few = rows_of(&mut Pcg::new(2), format, 64, cols);
        let bytes = few.repeat(BYTES / few.len());
        let w = QuantRows::new(format, cols, &bytes).expect("whole rows");
        for isa in Isa::available().into_iter().filter(|isa| !matches!(isa.name(), "scalar" | "amx")) {
            let x = acts(&mut Pcg::new(1), 1, cols, isa, format);
            let values = values(here);
            let mut rates = vec![[const { Vec::new() }; 2]; values.len()];
            let mut turn = 0;
            for _ in 0..ROUNDS {
                for ((_, tuning), rates) in values.iter().zip(&mut rates) {
                    for (threads, rates) in [1, 2].into_iter().zip(rates) {
                        rates.push(rate(isa.with_tuning(*tuning), w, &x, threads, &mut turn));
                    }
                }
            }
            println!("\n{format}, rows of {row_bytes} bytes, {isa}: GB/s with one thread and with two");
            for ((name, tuning), [one, two]) in values.iter().zip(&mut rates) {
                let same = Tuning { kind: here.kind, ..*tuning } == here;
                let mark = if same { '*' } else { ' ' };
                println!("{mark} {name:28} {:6.1} {:6.1}", memory::median(one), memory::median(two));
            }
        }
    }
}
