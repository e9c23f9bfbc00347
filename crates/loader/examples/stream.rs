//! Streams a file through a backend and says how fast that was.
//!
//!     stream FILE [backend=auto|mmap|pread|uring] [direct=auto|on|off] [chunk=BYTES] [depth=N] [workers=N] [passes=N] [keep=N] [share] [json]
//!
//! With keep=N every N-th chunk stays in memory. Workers take chunks in turn, or with share all a part of each.
//!
//! Every worker adds up what it borrows, so that the bytes have to arrive in its core.
#![allow(clippy::print_stdout, clippy::print_stderr)] // an example's output is its purpose

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sluice_loader::{ByteRange, Choice, Direct, FileIndex, Options, Schedule, Step, Stream, open};

type AnyError = Box<dyn std::error::Error>;

struct Args {
    path: PathBuf,
    options: Options,
    chunk: usize,
    workers: usize,
    passes: u64,
    keep: usize, // 0 for none
    share: bool,
    json: bool,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)).and_then(|args| stream(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stream: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut given: impl Iterator<Item = String>) -> Result<Args, AnyError> {
    let path = given.next().ok_or("which file?")?.into();
    let mut args = Args {
        path,
        options: Options::default(),
        chunk: 1 << 20,
        workers: 2,
        passes: 1,
        keep: 0,
        share: false,
        json: false,
    };
    for word in given {
        match word.split_once('=').unwrap_or((&word, "")) {
            ("backend", "auto") => args.options.backend = Choice::Auto,
            ("backend", "mmap") => args.options.backend = Choice::Mmap,
            ("backend", "pread") => args.options.backend = Choice::Pread,
            ("backend", "uring") => args.options.backend = Choice::Uring,
            ("direct", "auto") => args.options.direct = Direct::Auto,
            ("direct", "on") => args.options.direct = Direct::On,
            ("direct", "off") => args.options.direct = Direct::Off,
            ("chunk", bytes) => args.chunk = bytes.parse()?,
            ("depth", depth) => args.options.depth = Some(depth.parse()?),
            ("workers", workers) => args.workers = workers.parse()?,
            ("passes", passes) => args.passes = passes.parse()?,
            ("keep", keep) => args.keep = keep.parse()?,
            ("share", "") => args.share = true,
            ("json", "") => args.json = true,
            _ => return Err(format!("{word}: no such option").into()),
        }
    }
    if args.chunk == 0 {
        return Err("chunk=0: wanted at least 1 byte".into());
    }
    Ok(args)
}

fn stream(args: &Args) -> Result<(), AnyError> {
    let length = std::fs::metadata(&args.path)?.len();
    let loans = if args.share { args.workers as u32 } else { 1 };
    let starts = (0..length).step_by(args.chunk).enumerate();
    let steps: Vec<Step> = starts
        .map(|(number, offset)| {
            let len = args.chunk.min((length - offset) as usize);
            let resident = args.keep > 0 && number % args.keep == 0;
            Step { range: ByteRange { file: FileIndex(0), offset, len }, loans, resident }
        })
        .collect();
    let count = steps.len() as u64;
    let schedule = Schedule::new(steps, vec![(0..count as u32).collect()])?;
    let opened = open(std::slice::from_ref(&args.path), &args.options)?;
    for note in &opened.notes {
        eprintln!("{note}");
    }
    let stream = Stream::new(opened.backend, schedule, args.workers)?;
    let (next, sum) = (AtomicU64::new(0), AtomicU64::new(0));
    let started = Instant::now();
    for _ in 0..args.passes {
        stream.announce(0);
    }
    std::thread::scope(|scope| -> Result<(), AnyError> {
        let worker = || -> sluice_loader::Result<()> {
            loop {
                let turn = next.fetch_add(1, Ordering::Relaxed);
                let (position, part) = (turn / u64::from(loans), turn % u64::from(loans));
                if position >= count * args.passes {
                    return Ok(());
                }
                let loan = stream.loan(position)?;
                let words = loan.len().div_ceil(8 * loans as usize) * 8; // so that parts add up to the whole
                if let Some(part) = loan.chunks(words).nth(part as usize) {
                    sum.fetch_add(add_up(part), Ordering::Relaxed);
                }
            }
        };
        let workers: Vec<_> = (0..args.workers).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Ok(())
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let stats = stream.stats();
    let rate = (length * args.passes) as f64 / seconds;
    let (sum, what) = (sum.into_inner(), stream.describe());
    if args.json {
        println!(
            "{{\"backend\":\"{}\",\"direct\":{},\"bytes_per_s\":{rate:.0},\"seconds\":{seconds:.6},\"bytes_read\":{},\
             \"reads\":{},\"wait_s\":{:.6},\"passes\":{},\"slot_bytes\":{},\"sum\":{sum}}}",
            stream.backend().name(),
            stream.backend().direct(),
            stats.bytes_read,
            stats.reads,
            stats.wait_s,
            stats.passes,
            stream.slot_bytes(),
        );
    } else {
        println!("{what}");
        println!(
            "{:.3} GB/s, {:.3} s, {} reads of {} bytes, {:.3} s waited, sum {sum:016x}",
            rate / 1e9,
            seconds,
            stats.reads,
            stats.bytes_read,
            stats.wait_s
        );
    }
    Ok(())
}

/// The sum of the bytes taken as little-endian words: the same for every backend, and no slower than memory.
fn add_up(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(words, |sum, &byte| sum.wrapping_add(u64::from(byte)))
}
