//! What the machine could do at best: the disk's rate of direct reads, and the memory's.

use crate::sh::{Result, command, stdout};
use rustix::fs::OFlags;
use serde_json::Value;
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

/// Seconds that each of the nine combinations gets: several passes over the disk's own queue.
const TRIAL_S: f64 = 0.5;

/// Seconds of a measurement between two runs: long beside a burst, short enough to be repeated for each of them.
pub const SLICE_S: f64 = 1.0;

/// Direct reads want buffers and offsets that are multiples of the device's block, nowhere more than this.
const ALIGN: usize = 4096;

/// What reads the file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tool {
    Fio,
    /// Threads of this process, each with one read in flight.
    Own,
}

/// Measures a disk by direct reads of one file, front to back, again and again.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    tool: Tool,
    length: u64,
    depth: usize,
    /// Where the next slice goes on, in reads.
    next: AtomicU64,
}

impl Disk {
    /// Finds the combination of length and depth that reads `path` fastest, with fio where it is installed.
    ///
    /// # Errors
    /// When the file system takes no direct reads.
    pub fn calibrate(path: &Path) -> Result<Self> {
        let tool = match stdout(&mut command("fio", &["--version"])) {
            Ok(_) => Tool::Fio,
            Err(_) => Tool::Own,
        };
        let mut best: Option<(f64, Self)> = None;
        for length in LENGTHS {
            for depth in DEPTHS {
                let next =
                    AtomicU64::new(best.as_ref().map_or(0, |(_, disk)| disk.next.load(Ordering::Relaxed)));
                let disk = Self { path: path.into(), tool, length, depth, next };
                let rate = disk.slice(TRIAL_S)?;
                if best.as_ref().is_none_or(|(most, _)| rate > *most) {
                    best = Some((rate, disk));
                }
            }
        }
        best.map(|(_, disk)| disk).ok_or_else(|| "no combination was tried".into())
    }

    /// Bytes per second over `seconds`.
    pub fn slice(&self, seconds: f64) -> Result<f64> {
        match self.tool {
            Tool::Fio => self.fio(seconds),
            Tool::Own => self.own(seconds),
        }
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

    /// Who reads and how, for the record.
    pub fn describe(&self) -> String {
        let tool = match self.tool {
            Tool::Fio => "fio (io_uring, direct)",
            Tool::Own => "own reader (direct, one read per thread)",
        };
        format!("{tool}, {} MiB x {} in flight", self.length >> 20, self.depth)
    }
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
        let disk =
            |length| Disk { path: path.clone(), tool: Tool::Own, length, depth: 2, next: AtomicU64::new(0) };
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
