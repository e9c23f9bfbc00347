//! What the machine could do at best: the disk's rate of direct reads, and the memory's.

use super::summary::Stats;
use crate::sh::{Result, command, stdout};
use rustix::fs::OFlags;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Read lengths and numbers of reads in flight that are tried; disks of this kind reach their rate within these.
const LENGTHS: [u64; 3] = [1 << 20, 2 << 20, 4 << 20];
const DEPTHS: [usize; 3] = [4, 16, 32];

/// Seconds that each combination gets at a time, and how often: together half a minute for three tools.
const TRIAL_S: f64 = 0.25;
const TRIALS: usize = 3;

/// Seconds of a measurement between two runs on a file of so many bytes: about one pass over it, long beside a burst of
/// the disk, short enough to be repeated for each run.
pub fn slice_s(file_bytes: u64) -> f64 {
    (file_bytes as f64 / 2e9).clamp(1.0, 3.0)
}

/// Direct reads want buffers and offsets that are multiples of the device's block, nowhere more than this.
const ALIGN: usize = 4096;

/// What reads the file.
#[derive(Clone, Debug, PartialEq)]
enum Tool {
    /// fio, with io_uring.
    Fio,
    /// Threads of this process, each with one read in flight.
    Own,
    /// The loader's example, with io_uring: its buffers are registered, which on some machines doubles the rate.
    Loader(PathBuf),
}

impl Tool {
    /// What it is called in reports and records.
    fn name(&self) -> &'static str {
        match self {
            Self::Fio => "fio",
            Self::Own => "own threads",
            Self::Loader(_) => "the loader's example",
        }
    }
}

/// Measures a disk by direct reads of one file, front to back, again and again.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    tool: Tool,
    length: u64,
    depth: usize,
    /// Where the next slice of our own threads goes on, in reads.
    next: AtomicU64,
    /// Who reads and how, and what the others reached, for the record.
    pub how: String,
}

impl Disk {
    /// Finds the tool, length and depth that read `path` fastest: fio where it is installed, threads of our own, and
    /// `example`, the loader's, where it is built. The fastest counts, as a bound has to be one.
    ///
    /// Short trials find the best combination of each tool, and slices as long as those beside the runs the best of these;
    /// both are interleaved, and medians count. Short ones alone would mislead where disks are shared and forgive a burst:
    /// fio had 2.4 GB/s in 0.25 s here, and 1.3 in 2.5 s.
    ///
    /// # Errors
    /// When none of them can read directly.
    pub fn calibrate(path: &Path, example: Option<&Path>) -> Result<Self> {
        let mut tools = vec![Tool::Own];
        tools.extend(stdout(&mut command("fio", &["--version"])).is_ok().then_some(Tool::Fio));
        tools.extend(example.map(|example| Tool::Loader(example.into())));
        let mut all = Vec::new();
        for (length, depth) in LENGTHS.into_iter().flat_map(|length| DEPTHS.map(|depth| (length, depth))) {
            all.extend(tools.iter().map(|tool| {
                let (path, tool) = (path.to_path_buf(), tool.clone());
                Self { path, tool, length, depth, next: AtomicU64::new(0), how: String::new() }
            }));
        }
        let bytes = std::fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?.len();
        let mut finalists: Vec<Self> = Vec::new();
        for (_, disk) in ranked(all, TRIAL_S)? {
            if finalists.iter().all(|other| other.tool != disk.tool) {
                finalists.push(disk);
            }
        }
        let finals = ranked(finalists, slice_s(bytes))?;
        let reached: Vec<String> =
            finals.iter().map(|(rate, disk)| format!("{} {:.2}", disk.tool.name(), rate / 1e9)).collect();
        let (_, mut disk) = finals.into_iter().next().ok_or("no tool was tried")?;
        disk.how = format!(
            "by {}, direct, {} MiB x {} in flight (GB/s at their best: {})",
            disk.tool.name(),
            disk.length >> 20,
            disk.depth,
            reached.join(", ")
        );
        Ok(disk)
    }

    /// For a record, so that the rest of an interrupted run measures by the same means.
    pub fn to_json(&self) -> Value {
        json!({"tool": self.tool.name(), "length": self.length, "depth": self.depth, "how": self.how})
    }

    /// From a record; `None` if it is none that can be used here.
    pub fn from_json(path: &Path, example: Option<&Path>, line: &Value) -> Option<Self> {
        let tools = [Some(Tool::Fio), Some(Tool::Own), example.map(|example| Tool::Loader(example.into()))];
        Some(Self {
            path: path.into(),
            tool: tools.into_iter().flatten().find(|tool| line["tool"] == tool.name())?,
            length: line["length"].as_u64().filter(|length| *length > 0)?,
            depth: line["depth"].as_u64()?.try_into().ok()?,
            next: AtomicU64::new(0),
            how: line["how"].as_str()?.into(),
        })
    }

    /// Bytes per second over `seconds`.
    pub fn slice(&self, seconds: f64) -> Result<f64> {
        match &self.tool {
            Tool::Fio => self.fio(seconds),
            Tool::Own => self.own(seconds),
            Tool::Loader(example) => self.loader(example, seconds),
        }
    }

    fn loader(&self, example: &Path, seconds: f64) -> Result<f64> {
        let mut stream = command(&example.to_string_lossy(), &[]);
        stream.arg(&self.path).args(["json", "backend=uring", "direct=on"]).arg(format!("seconds={seconds}"));
        stream.arg(format!("chunk={}", self.length)).arg(format!("depth={}", self.depth));
        let said = stdout(&mut stream)?;
        let report: Value =
            serde_json::from_str(&said).map_err(|error| format!("stream: bad JSON: {error}"))?;
        let rate = report["bytes"].as_f64().zip(report["seconds"].as_f64()).map(|(bytes, s)| bytes / s);
        rate.filter(|rate| *rate > 0.0).ok_or_else(|| "the loader's example reports no rate".into())
    }

    fn fio(&self, seconds: f64) -> Result<f64> {
        let mut fio =
            command("fio", &["--name=disk", "--readonly", "--rw=read", "--direct=1", "--time_based"]);
        fio.args(["--ioengine=io_uring", "--output-format=json"]);
        fio.arg(format!("--filename={}", self.path.display())).arg(format!("--bs={}", self.length));
        fio.arg(format!("--iodepth={}", self.depth)).arg(format!("--runtime={}ms", (1e3 * seconds) as u64));
        let said = stdout(&mut fio)?;
        let report: Value = serde_json::from_str(&said).map_err(|error| format!("fio: bad JSON: {error}"))?;
        let rate = report.pointer("/jobs/0/read/bw_bytes").and_then(Value::as_f64);
        rate.filter(|rate| *rate > 0.0).ok_or_else(|| "fio reports no rate".into())
    }

    fn own(&self, seconds: f64) -> Result<f64> {
        let failed = |error| format!("{}: direct reads: {error}", self.path.display());
        let direct = OFlags::DIRECT.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(direct).open(&self.path).map_err(failed)?;
        let reads = file.metadata().map_err(failed)?.len() / self.length;
        if reads == 0 {
            return Err(format!("{}: too short to measure a disk by", self.path.display()));
        }
        let start = Instant::now();
        let end = start + Duration::from_secs_f64(seconds);
        let bytes = thread::scope(|scope| {
            let readers: Vec<_> =
                (0..self.depth).map(|_| scope.spawn(|| self.read_until(&file, reads, end))).collect();
            let read = |reader: thread::ScopedJoinHandle<'_, std::io::Result<u64>>| {
                reader.join().expect("reading does not panic")
            };
            readers.into_iter().map(read).sum::<std::io::Result<u64>>()
        });
        Ok(bytes.map_err(failed)? as f64 / start.elapsed().as_secs_f64())
    }

    fn read_until(&self, file: &File, reads: u64, end: Instant) -> std::io::Result<u64> {
        let length = self.length as usize;
        let mut buffer = vec![0; length + ALIGN];
        let start = buffer.as_ptr().align_offset(ALIGN);
        let aligned = &mut buffer[start..start + length];
        let mut bytes = 0;
        while Instant::now() < end {
            let read = self.next.fetch_add(1, Ordering::Relaxed) % reads;
            file.read_exact_at(aligned, read * self.length)?;
            bytes += self.length;
        }
        Ok(bytes)
    }
}

/// Ways to measure, the fastest first, with the median of [`TRIALS`] interleaved measurements of `seconds` each.
///
/// # Errors
/// When all of them fail, the last one's.
fn ranked(disks: Vec<Disk>, seconds: f64) -> Result<Vec<(f64, Disk)>> {
    let mut tried: Vec<(Vec<f64>, Disk)> = disks.into_iter().map(|disk| (Vec::new(), disk)).collect();
    let mut refused = String::new();
    for _ in 0..TRIALS {
        // What has failed once fails again.
        tried.retain_mut(|(rates, disk)| match disk.slice(seconds) {
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

    #[test]
    fn a_disk_and_the_memory_have_rates() {
        // Beside the program, which lies on a disk.
        let path = std::env::current_exe().unwrap().with_extension("rate-test");
        std::fs::write(&path, vec![1; 3 << 20]).unwrap();
        let disk = |length| Disk {
            path: path.clone(),
            tool: Tool::Own,
            length,
            depth: 2,
            next: AtomicU64::new(0),
            how: String::new(),
        };
        let again = Disk::from_json(&path, None, &disk(1 << 20).to_json()).unwrap();
        assert_eq!((again.tool, again.length, again.depth), (Tool::Own, 1 << 20, 2));
        assert!(Disk::from_json(&path, None, &json!({"how": "refused"})).is_none());
        let (rate, too_short) = (disk(1 << 20).slice(0.01), disk(4 << 20).slice(0.01));
        std::fs::remove_file(&path).unwrap();
        // A file system may refuse direct reads, but not for a reason that we have made.
        match rate {
            Ok(rate) => assert!(rate > 0.0 && too_short.unwrap_err().contains("too short")),
            Err(message) => assert!(message.contains("direct reads"), "{message}"),
        }
        // No memory is slower than a tenth of a gigabyte per second.
        assert!(memory(1) > 1e8);
    }
}
