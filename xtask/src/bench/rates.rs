//! What the machine could do at best: the disk's rate of direct reads, and the memory's.

use super::axes::Word;
use super::summary::Stats;
use crate::sh::{Result, command, stdout};
use serde_json::{Value, json};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// Read lengths and numbers of reads in flight that are tried; disks of this kind reach their rate within these.
const LENGTHS: [u64; 3] = [1 << 20, 2 << 20, 4 << 20];
const DEPTHS: [usize; 3] = [4, 16, 32];

/// Seconds that each combination gets at a time, and how often: with the start of so many programs, a minute for all tools.
const TRIAL_S: f64 = 0.25;
const TRIALS: usize = 3;

/// Seconds of a measurement between two runs on a file of so many bytes: about one pass over it, long beside a burst of
/// the disk, short enough to be repeated for each run.
pub fn slice_s(file_bytes: u64) -> f64 {
    (file_bytes as f64 / 2e9).clamp(1.0, 3.0)
}

/// Has a C library ask for huge pages for large buffers, where it is glibc (since 2.35); no other minds.
///
/// A direct read into small pages is a list of addresses, and on some virtual machines that list halves the disk's rate: fio,
/// 1 MiB x 4 in flight, medians of 4: 1.59 GB/s as it comes, 3.13 so. fio's own `--mem=mmaphuge` wants pages that root has to
/// set aside, and to give back however the program ends; this wants neither.
const HUGE_PAGES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

/// A program that reads the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    /// fio with io_uring, its buffers in small pages: what somebody gets who measures a disk in the usual way.
    Fio,
    /// The same with [`HUGE_PAGES`], and with buffers and file registered, as the loader has them.
    FioHuge,
    /// The loader's example, which is ours, with io_uring: registered buffers in huge pages.
    Uring,
    /// The same with threads, for machines without fio that forbid io_uring.
    Pread,
}

impl Word for Tool {
    const AXIS: &'static str = "tool";
    // The last one's refusal is the one that is told when all refuse: the loader says what is wrong with a file system.
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Fio, "fio as it comes"),
        (Self::FioHuge, "fio with huge pages"),
        (Self::Uring, "the loader's example with io_uring"),
        (Self::Pread, "the loader's example with pread"),
    ];
}

/// Measures a disk by direct reads of one file, front to back, again and again.
#[derive(Clone, Debug)]
pub struct Disk {
    path: PathBuf,
    /// The loader's example.
    example: PathBuf,
    tool: Tool,
    length: u64,
    depth: usize,
    /// Who reads and how, and what the others reached, for the record.
    pub how: String,
}

impl Disk {
    /// Finds the tool, length and depth that read `path` fastest: fio, where it is installed, and `example`, the loader's.
    /// The fastest counts, as a bound has to be one.
    ///
    /// # Errors
    /// When none of them can read directly.
    pub fn calibrate(path: &Path, example: &Path) -> Result<Self> {
        let bytes = std::fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?.len();
        let mut all = Vec::new();
        for (length, depth) in LENGTHS.into_iter().flat_map(|length| DEPTHS.map(|depth| (length, depth))) {
            all.extend(Tool::WORDS.iter().map(|&(tool, _)| {
                let (path, example) = (path.to_path_buf(), example.to_path_buf());
                Self { path, example, tool, length, depth, how: String::new() }
            }));
        }
        Self::fastest(all, slice_s(bytes), Self::slice)
    }

    /// Short trials find the best combination of each tool, and measurements of `slice` seconds, as long as those beside the
    /// runs, the best of these; both are interleaved, and medians count. Short ones alone would mislead where disks are
    /// shared and forgive a burst: fio had 2.4 GB/s in 0.25 s here, and 1.3 in 2.5 s.
    fn fastest(all: Vec<Self>, slice: f64, measure: impl Fn(&Self, f64) -> Result<f64>) -> Result<Self> {
        let mut finalists: Vec<Self> = Vec::new();
        for (_, disk) in ranked(all, |disk| measure(disk, TRIAL_S))? {
            if finalists.iter().all(|other| other.tool != disk.tool) {
                finalists.push(disk);
            }
        }
        let finals = ranked(finalists, |disk| measure(disk, slice))?;
        let reached = |(rate, disk): &(f64, Self)| format!("{} {:.2}", disk.tool.word(), rate / 1e9);
        let reached: Vec<String> = finals.iter().map(reached).collect();
        let (_, mut disk) = finals.into_iter().next().ok_or("no tool was tried")?;
        disk.how = format!(
            "by {}, direct, {} MiB x {} in flight (GB/s at their best: {})",
            disk.tool.word(),
            disk.length >> 20,
            disk.depth,
            reached.join(", ")
        );
        Ok(disk)
    }

    /// For a record, so that the rest of an interrupted run measures by the same means.
    pub fn to_json(&self) -> Value {
        json!({"tool": self.tool.word(), "length": self.length, "depth": self.depth, "how": self.how})
    }

    /// From a record; `None` if it is none that can be used here.
    pub fn from_json(path: &Path, example: &Path, line: &Value) -> Option<Self> {
        Some(Self {
            path: path.into(),
            example: example.into(),
            tool: Tool::parse(line["tool"].as_str()?).ok()?,
            length: line["length"].as_u64().filter(|length| *length > 0)?,
            depth: line["depth"].as_u64()?.try_into().ok()?,
            how: line["how"].as_str()?.into(),
        })
    }

    /// Bytes per second over `seconds`.
    pub fn slice(&self, seconds: f64) -> Result<f64> {
        let (mut program, rate, unit) = match self.tool {
            Tool::Fio | Tool::FioHuge => (self.fio(seconds), "/jobs/0/read/bw_bytes", 1.0),
            Tool::Uring => (self.loader("uring", seconds), "/gb_s", 1e9),
            Tool::Pread => (self.loader("pread", seconds), "/gb_s", 1e9),
        };
        let said = stdout(&mut program)?;
        let tool = self.tool.word();
        let report: Value =
            serde_json::from_str(&said).map_err(|error| format!("{tool}: bad JSON: {error}"))?;
        let rate = report.pointer(rate).and_then(Value::as_f64).filter(|rate| *rate > 0.0);
        rate.map(|rate| rate * unit).ok_or_else(|| format!("{tool}: reports no rate"))
    }

    fn fio(&self, seconds: f64) -> Command {
        let mut fio =
            command("fio", &["--name=disk", "--readonly", "--rw=read", "--direct=1", "--time_based"]);
        fio.args(["--ioengine=io_uring", "--output-format=json"]);
        fio.arg(format!("--filename={}", self.path.display())).arg(format!("--bs={}", self.length));
        fio.arg(format!("--iodepth={}", self.depth)).arg(format!("--runtime={}ms", (1e3 * seconds) as u64));
        if self.tool == Tool::FioHuge {
            fio.args(["--fixedbufs", "--registerfiles"]).env(HUGE_PAGES.0, HUGE_PAGES.1);
        }
        fio
    }

    fn loader(&self, backend: &str, seconds: f64) -> Command {
        let mut stream = command(&self.example.to_string_lossy(), &[]);
        stream.arg(&self.path).args(["json", "direct=on"]).arg(format!("backend={backend}"));
        stream.arg(format!("seconds={seconds}"));
        stream.arg(format!("chunk={}", self.length)).arg(format!("depth={}", self.depth));
        stream
    }
}

/// Whether a record's line about a disk tells of a tool that is tried now: those before huge pages were half as fast.
pub fn is_known(line: &Value) -> bool {
    line["tool"].as_str().is_some_and(|tool| Tool::parse(tool).is_ok())
}

/// Ways to measure, the fastest first, with the median of [`TRIALS`] interleaved measurements of each.
///
/// # Errors
/// When all of them fail, the last one's.
fn ranked(disks: Vec<Disk>, measure: impl Fn(&Disk) -> Result<f64>) -> Result<Vec<(f64, Disk)>> {
    let mut tried: Vec<(Vec<f64>, Disk)> = disks.into_iter().map(|disk| (Vec::new(), disk)).collect();
    let mut refused = String::new();
    for _ in 0..TRIALS {
        // What has failed once fails again.
        tried.retain_mut(|(rates, disk)| match measure(disk) {
            Ok(rate) => {
                rates.push(rate);
                true
            }
            Err(message) => {
                refused = message;
                false
            }
        });
    }
    let median = |rates: Vec<f64>| Stats::of(rates).map_or(0.0, |stats| stats.median);
    let mut ranked: Vec<(f64, Disk)> = tried.into_iter().map(|(rates, disk)| (median(rates), disk)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    if ranked.is_empty() { Err(refused) } else { Ok(ranked) }
}

/// Bytes of one buffer for the memory's rate: far more than any cache holds.
const BUFFER: usize = 64 << 20;

/// Seconds of a measurement, and how many of them: the best is what the memory can do.
const MEMORY_S: f64 = 0.15;
const TRIES: usize = 3;

/// The rate in bytes per second at which `threads` threads read memory.
///
/// Each compares two equal buffers, for which the system's routine is as good as any that one could write here.
pub fn memory(threads: u32) -> f64 {
    let threads = threads as usize;
    let start = Barrier::new(threads);
    let measure = || {
        // Equal, and not zero: pages that nobody has written to are all one page.
        let (a, b) = (vec![1u8; BUFFER], vec![1u8; BUFFER]);
        let mut best = 0f64;
        for _ in 0..TRIES {
            start.wait();
            let begin = Instant::now();
            let mut bytes = 0;
            while begin.elapsed().as_secs_f64() < MEMORY_S {
                black_box(black_box(&a) == black_box(&b));
                bytes += 2 * BUFFER;
            }
            best = best.max(bytes as f64 / begin.elapsed().as_secs_f64());
        }
        best
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(measure)).collect();
        workers.into_iter().map(|worker| worker.join().expect("comparing does not panic")).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(tool: Tool, depth: usize) -> Disk {
        let (path, example) = ("f".into(), "no-such-program".into());
        Disk { path, example, tool, length: 1 << 20, depth, how: String::new() }
    }

    #[test]
    fn the_fastest_over_a_slice_counts_and_all_are_named() {
        let all = [(Tool::Fio, 4), (Tool::FioHuge, 4), (Tool::Uring, 4), (Tool::Uring, 16)];
        let all: Vec<Disk> = all.map(|(tool, depth)| disk(tool, depth)).to_vec();
        let measure = |disk: &Disk, seconds: f64| match (disk.tool, disk.depth) {
            (Tool::Fio, _) => Err("fio: no such program".to_string()),
            // A burst that doesn't last.
            (Tool::FioHuge, _) => Ok(if seconds < 1.0 { 9e9 } else { 1.5e9 }),
            (_, 16) => Ok(3e9),
            _ => Ok(2e9),
        };
        let best = Disk::fastest(all, 2.0, measure).unwrap();
        assert_eq!((best.tool, best.depth), (Tool::Uring, 16));
        assert_eq!(
            best.how,
            "by the loader's example with io_uring, direct, 1 MiB x 16 in flight (GB/s at their best: the loader's \
             example with io_uring 3.00, fio with huge pages 1.50)"
        );
        assert!(is_known(&best.to_json()) && !is_known(&json!({"tool": "fio"})));
        let again = Disk::from_json(&best.path, &best.example, &best.to_json()).unwrap();
        assert_eq!((again.tool, again.length, again.depth, again.how), (Tool::Uring, 1 << 20, 16, best.how));
    }

    #[test]
    fn without_any_tool_the_last_one_says_why() {
        let all = vec![disk(Tool::Fio, 4), disk(Tool::Pread, 4)];
        let refuse = |disk: &Disk, _: f64| Err(disk.tool.word().to_string());
        assert_eq!(Disk::fastest(all, 1.0, refuse).unwrap_err(), Tool::Pread.word());
        assert!(disk(Tool::Pread, 4).slice(0.1).unwrap_err().contains("no-such-program"));
        let refused = json!({"how": "refused"});
        assert!(Disk::from_json(Path::new("f"), Path::new("e"), &refused).is_none());
    }

    #[test]
    fn the_memory_has_a_rate() {
        // No memory is slower than a tenth of a gigabyte per second.
        assert!(memory(1) > 1e8);
    }
}
