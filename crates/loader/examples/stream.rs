//! Streams a file through a backend, touches every byte, and says how fast that was and what it cost.
//!
//!     stream FILE [backend=auto|mmap|pread|uring] [direct=auto|on|off] [chunk=BYTES] [depth=N] [workers=N]
//!                 [passes=N] [seconds=N] [keep=N] [room=BYTES] [share] [json]
//!
//! Passes end with the file, or, with seconds=N, when the time is up. With keep=N every N-th chunk stays in memory.
//! Workers take chunks in turn, or with share all a part of each. Every worker adds up what it borrows, so that the
//! bytes have to arrive in its core. chunk=0 takes the length that opening recommends.
//!
//! `json` prints one line: bytes lent, seconds, gb_s (10^9 bytes per second), reads, bytes_read (padding included), wait_s,
//! user_s and system_s (CPU time of all threads), vm_hwm_kb, rss_anon_kb and rss_file_kb and vm_pte_kb (largest of samples every
//! 5 ms), slot_bytes, describe, sum.
#![allow(clippy::print_stdout, clippy::print_stderr)] // an example's output is its purpose

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice_loader::{ByteRange, Choice, Direct, FileIndex, Options, Schedule, Step, Stream, open};

type AnyError = Box<dyn std::error::Error>;

/// Time between two looks at this process's memory: several per pass, and each takes some 30 µs.
const LOOK: Duration = Duration::from_millis(5);

struct Args {
    path: PathBuf,
    options: Options,
    chunk: usize, // 0 for what opening recommends
    workers: usize,
    passes: u64,
    seconds: f64, // 0 for whole passes
    keep: usize,  // 0 for none
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
        chunk: 0,
        workers: 2,
        passes: 1,
        seconds: 0.0,
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
            ("room", bytes) => args.options.page_cache_room = Some(bytes.parse()?),
            ("passes", passes) => args.passes = passes.parse()?,
            ("seconds", seconds) => args.seconds = seconds.parse()?,
            ("keep", keep) => args.keep = keep.parse()?,
            ("share", "") => args.share = true,
            ("json", "") => args.json = true,
            _ => return Err(format!("{word}: no such option").into()),
        }
    }
    Ok(args)
}

/// Whose turn it is, and how far passes have been announced.
struct Turns {
    next: u64,
    announced: u64, // passes
}

fn stream(args: &Args) -> Result<(), AnyError> {
    let length = std::fs::metadata(&args.path)?.len();
    let options = Options { workers: args.workers, ..args.options.clone() };
    let opened = open(std::slice::from_ref(&args.path), &options)?;
    for note in &opened.notes {
        eprintln!("{note}");
    }
    let chunk = if args.chunk == 0 { opened.chunk_bytes } else { args.chunk };
    let loans = if args.share { args.workers as u32 } else { 1 };
    let schedule = schedule(length, chunk, loans, args.keep)?;
    let count = schedule.pass(0).len() as u64;
    let stream = Stream::new(opened.backend, schedule, args.workers)?;

    let turns = Mutex::new(Turns { next: 0, announced: 0 });
    let (bytes, sum, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let started = Instant::now();
    let time_is_up = || args.seconds > 0.0 && started.elapsed().as_secs_f64() >= args.seconds;
    let work = || -> sluice_loader::Result<()> {
        loop {
            let turn = {
                let mut turns = turns.lock().expect("no worker panics with it");
                let pass = turns.next / (count * u64::from(loans));
                // One pass ahead, so that reading goes on over its end.
                while turns.announced < pass + 2 && (args.seconds > 0.0 || turns.announced < args.passes) {
                    stream.announce(0);
                    turns.announced += 1;
                }
                if pass == turns.announced || time_is_up() {
                    return Ok(());
                }
                turns.next += 1;
                turns.next - 1
            };
            let (position, part) = (turn / u64::from(loans), turn % u64::from(loans));
            let loan = stream.loan(position)?;
            let words = loan.len().div_ceil(8 * loans as usize) * 8; // so that parts add up to the whole
            if let Some(part) = loan.chunks(words).nth(part as usize) {
                sum.fetch_add(add_up(part), Ordering::Relaxed);
                bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
            }
        }
    };
    let most = std::thread::scope(|scope| -> Result<[u64; 3], AnyError> {
        let watcher = scope.spawn(|| {
            let mut most = [0; 3];
            while !over.load(Ordering::Relaxed) {
                for (most, key) in most.iter_mut().zip(["RssAnon:", "RssFile:", "VmPTE:"]) {
                    *most = status(key).max(*most);
                }
                std::thread::sleep(LOOK);
            }
            most
        });
        let workers: Vec<_> = (0..args.workers).map(|_| scope.spawn(work)).collect();
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::Relaxed);
        for outcome in outcomes {
            outcome.map_err(|_| "a worker panicked")??;
        }
        watcher.join().map_err(|_| "the watcher panicked".into())
    })?;

    let seconds = started.elapsed().as_secs_f64();
    let (user, system) = cpu_seconds();
    let (bytes, sum, stats) = (bytes.into_inner(), sum.into_inner(), stream.stats());
    let rate = bytes as f64 / seconds / 1e9;
    let what = stream.describe();
    if args.json {
        println!(
            "{{\"bytes\":{bytes},\"seconds\":{seconds:.6},\"gb_s\":{rate:.3},\"reads\":{},\"bytes_read\":{},\"wait_s\":{:.6},\
             \"user_s\":{user:.2},\"system_s\":{system:.2},\"vm_hwm_kb\":{},\"rss_anon_kb\":{},\"rss_file_kb\":{},\"vm_pte_kb\":{},\
             \"backend\":\"{}\",\"direct\":{},\"chunk\":{chunk},\"depth\":{},\"workers\":{},\"slot_bytes\":{},\
             \"passes\":{},\"describe\":\"{what}\",\"sum\":{sum}}}",
            stats.reads,
            stats.bytes_read,
            stats.wait_s,
            status("VmHWM:"),
            most[0],
            most[1],
            most[2],
            stream.backend().name(),
            stream.backend().direct(),
            stream.backend().depth(),
            args.workers,
            stream.slot_bytes(),
            stats.passes,
        );
    } else {
        println!("{what}");
        println!(
            "{rate:.3} GB/s, {seconds:.3} s, {} reads of {} bytes, {:.3} s waited, CPU {user:.2} + {system:.2} s, peak {} kB \
             (anon {}, file {}), sum {sum:016x}",
            stats.reads,
            stats.bytes_read,
            stats.wait_s,
            status("VmHWM:"),
            most[0],
            most[1],
        );
    }
    Ok(())
}

/// The file in chunks, one kind of pass.
fn schedule(length: u64, chunk: usize, loans: u32, keep: usize) -> sluice_loader::Result<Schedule> {
    let starts = (0..length).step_by(chunk).enumerate();
    let steps: Vec<Step> = starts
        .map(|(number, offset)| {
            let len = chunk.min((length - offset) as usize);
            let resident = keep > 0 && number % keep == 0;
            Step { range: ByteRange { file: FileIndex(0), offset, len }, loans, resident }
        })
        .collect();
    let order = (0..steps.len() as u32).collect();
    Schedule::new(steps, vec![order])
}

/// The sum of the bytes taken as little-endian words: the same for every backend, and no slower than memory.
fn add_up(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(words, |sum, &byte| sum.wrapping_add(u64::from(byte)))
}

/// A line of this process's status in KiB; 0 where there is none.
fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// CPU seconds of all threads so far, user and system, in the hundredths that Linux counts for everybody; 0 elsewhere.
fn cpu_seconds() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name comes second, in brackets, and may hold anything; user and system time are the 14th and 15th field.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut times = fields.split_whitespace().skip(11).map(|field| field.parse().unwrap_or(0.0) / 100.0);
    (times.next().unwrap_or(0.0), times.next().unwrap_or(0.0))
}
