//! Chooses a backend: by name it is that one or an error; `auto` may fall back, and says what won and why.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::backend::file::{cached, cannot_open, open_regular};
use crate::backend::{Backend, mmap::Mapped, pread::Pread};
use crate::error::{Error, ErrorKind, Result};
use crate::{ByteRange, FileIndex};

/// Which backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Whichever suits the files and the machine.
    #[default]
    Auto,
    /// [`Mapped`].
    Mmap,
    /// [`Pread`].
    Pread,
    /// io_uring.
    Uring,
}

/// Whether reads go round the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Round it when the files are mostly not in it and their filesystem permits.
    #[default]
    Auto,
    /// Always, or an error.
    On,
    /// Never.
    Off,
}

/// How to open files.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which backend.
    pub backend: Choice,
    /// Whether reads go round the page cache.
    pub direct: Direct,
    /// Reads in flight ahead of the workers, for eager backends; `None` for the backend's own default.
    pub depth: Option<usize>,
    /// Bytes that reads in flight may take where `depth` is `None`: io_uring has more direct reads in flight then, which disks
    /// that are slow to answer want. `None` for the default.
    pub flight_room: Option<u64>,
    /// The caller keeps everything in memory anyway: then `auto` prefers to map, which copies nothing.
    pub all_resident: bool,
    /// Chunks are to lie in memory of their own: then `auto` does not map, and where reads do not go round the page cache it
    /// copies.
    pub copied: bool,
    /// Bytes that the page cache may take beside the caller, container limits included; `None` when nobody knows. Files that
    /// do not fit are read round it, or, where that is impossible, dropped from it again; files that fit into this and into
    /// memory that nobody uses are read through it, so that every pass but the first finds them there.
    pub page_cache_room: Option<u64>,
    /// Threads that will take loans, for trying backends out with as many; 0 counts as 1.
    pub workers: usize,
}

/// An open backend.
pub struct Opened {
    /// Ready for a [`crate::Stream`].
    pub backend: Arc<dyn Backend>,
    /// Length in bytes of the chunks that suit it best: [`Backend::chunk_bytes`].
    pub chunk_bytes: usize,
    /// What `auto` chose and why, and every fallback, a line each; empty when everything was chosen by name.
    pub notes: Vec<String>,
}

/// Opens the files with a backend. The order of `paths` gives the [`crate::FileIndex`].
///
/// # Errors
/// When a file cannot be opened; when what was asked for by name is not to be had ([`ErrorKind::Unavailable`],
/// [`ErrorKind::NoDirect`]); when the options exclude each other ([`ErrorKind::Usage`]).
pub fn open(paths: &[PathBuf], options: &Options) -> Result<Opened> {
    if options.backend == Choice::Mmap && options.direct == Direct::On {
        return Err(Error::new(ErrorKind::Usage, "open files")
            .note("direct reads with a mapping: a mapping goes through the page cache; choose the backend pread or uring, or turn direct reads off"));
    }
    if paths.is_empty() || paths.len() > usize::from(u16::MAX) {
        let note = format!("{} were named; wanted 1 to 65535", paths.len());
        return Err(Error::new(ErrorKind::Usage, "open files").note(note));
    }
    let mut notes = Vec::new();
    let by_itself = options.backend == Choice::Auto;
    if by_itself
        && options.all_resident
        && options.direct != Direct::On
        && let Some(backend) = mapped(paths, &mut notes)
    {
        notes.push("backend mmap: all stays in memory, and a mapping copies nothing".to_owned());
        return Ok(opened(backend, notes));
    }
    let asks = options.backend != Choice::Mmap && options.direct != Direct::On;
    let cache = if asks || by_itself { Some(Cache::of(paths, options.page_cache_room)?) } else { None };
    let direct = match (options.direct, &cache) {
        (Direct::On, _) => true,
        (Direct::Auto, Some(cache)) => {
            let how = if cache.serves() { "through" } else { "round" };
            notes.push(format!("reads go {how} the page cache: {cache}"));
            !cache.serves()
        }
        _ => false,
    };
    let backend = match choose(paths, options, direct, cache.as_ref(), &mut notes) {
        Err(error) if error.kind() == ErrorKind::NoDirect && options.direct == Direct::Auto => {
            notes.push(format!("reads go through the page cache after all: {error}"));
            choose(paths, options, false, cache.as_ref(), &mut notes)?
        }
        backend => backend?,
    };
    Ok(opened(backend, notes))
}

fn opened(backend: Arc<dyn Backend>, notes: Vec<String>) -> Opened {
    Opened { chunk_bytes: backend.chunk_bytes(), backend, notes }
}

/// The backend itself, once it is known whether reads go round the page cache and what that holds.
fn choose(
    paths: &[PathBuf],
    options: &Options,
    direct: bool,
    cache: Option<&Cache>,
    notes: &mut Vec<String>,
) -> Result<Arc<dyn Backend>> {
    let drops = !direct && cache.is_some_and(Cache::overflows);
    let pread = || -> Result<Arc<dyn Backend>> {
        Ok(match (direct, drops) {
            (true, _) => Arc::new(Pread::direct(paths, options.depth)?),
            (false, true) => Arc::new(Pread::buffered(paths)?.dropping_behind()),
            (false, false) => Arc::new(Pread::buffered(paths)?),
        })
    };
    match options.backend {
        Choice::Mmap => Ok(Arc::new(Mapped::open(paths)?)),
        Choice::Pread => pread(),
        Choice::Uring => uring(paths, direct, options, drops),
        Choice::Auto if options.copied && !direct => {
            notes.push(
                "backend pread: nothing has to be waited for, and the worker that copies a chunk has it in its cache"
                    .to_owned(),
            );
            pread()
        }
        Choice::Auto => {
            // Nothing has to be waited for: then the worker that needs a chunk gets it itself, the faster way.
            if let Some(cache) = cache.filter(|cache| !direct && cache.serves()) {
                return match mapped(paths, notes) {
                    Some(mapped) if cache.mostly() => race(mapped, pread()?, cache, options.workers, notes),
                    Some(mapped) => {
                        // Nothing there to try. It reads the first pass in order, which gives large folios.
                        notes.push(
                            "backend mmap: the fastest once its first pass has filled the cache".to_owned(),
                        );
                        Ok(mapped)
                    }
                    None => pread(),
                };
            }
            match uring(paths, direct, options, drops) {
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    notes.push(format!("backend pread: {error}"));
                    pread()
                }
                Ok(backend) => {
                    notes.push("backend uring: several reads in flight, and no threads".to_owned());
                    Ok(backend)
                }
                error => error,
            }
        }
    }
}

/// A mapping for `auto`, which goes on without one where files cannot be mapped.
fn mapped(paths: &[PathBuf], notes: &mut Vec<String>) -> Option<Arc<dyn Backend>> {
    match Mapped::open(paths) {
        Ok(backend) => Some(Arc::new(backend)),
        Err(error) => {
            notes.push(format!("no backend mmap: {error}"));
            None
        }
    }
}

/// Bytes that each worker takes in a timed lap: past the first faults, and over in a millisecond or two.
const LAP: usize = 8 << 20;

/// Laps each way, at different places, since parts of a file may lie in the cache in different ways; the best counts, so
/// that whatever happens once burdens neither.
const LAPS: u64 = 3;

/// Most threads of a race: two show what sharing memory and unmapping cost, and starting more costs more than it tells.
const RACERS: usize = 2;

/// The backend that brings warm bytes to the workers' cores faster.
fn race(
    one: Arc<dyn Backend>,
    other: Arc<dyn Backend>,
    cache: &Cache,
    workers: usize,
    notes: &mut Vec<String>,
) -> Result<Arc<dyn Backend>> {
    let workers = workers.clamp(1, RACERS);
    let (mut first, mut second) = (0f64, 0f64);
    for lap in 0..LAPS {
        let from = cache.first_length / LAPS * lap;
        first = first.max(rate(&*one, from, cache.first_length, workers)?);
        second = second.max(rate(&*other, from, cache.first_length, workers)?);
    }
    let won = if first >= second { &one } else { &other };
    let (name, other_name) = (one.name(), other.name());
    notes.push(format!(
        "backend {}: {name} brought {first:.1} GB/s to {workers} core(s) and {other_name} {second:.1}",
        won.name()
    ));
    Ok(Arc::clone(won))
}

/// Gigabytes per second (10^9) of chunks that `workers` take in turn from the first file, which is `length` bytes long, from
/// `from` on: every byte is used as a product would.
fn rate(backend: &dyn Backend, from: u64, length: u64, workers: usize) -> Result<f64> {
    let chunk = backend.chunk_bytes();
    let next = AtomicU64::new(0);
    let end = length.min(from.saturating_add((LAP * workers) as u64));
    let work = || -> Result<()> {
        let mut slot = backend.slot(chunk)?;
        loop {
            let offset = from + next.fetch_add(chunk as u64, Ordering::Relaxed);
            if offset >= end {
                return Ok(());
            }
            let len = chunk.min((end - offset) as usize);
            let range = ByteRange { file: FileIndex(0), offset, len };
            let filled = backend.wait(backend.submit(slot, range)).map_err(|failed| failed.error)?;
            std::hint::black_box(digest(&filled));
            slot = backend.release(filled);
        }
    };
    let started = Instant::now();
    thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
        let own = work();
        let others = others.into_iter().map(|other| other.join().unwrap_or(Ok(())));
        others.fold(own, Result::and)
    })?;
    Ok((end - from) as f64 / 1e9 / started.elapsed().as_secs_f64().max(f64::EPSILON))
}

/// Arithmetic on every byte, about as much as a product of 4-bit weights needs (40 GB/s on one core from its cache): with
/// less, copying first would look cheaper than it is.
fn digest(bytes: &[u8]) -> u64 {
    bytes.as_chunks::<8>().0.iter().fold(0, |sum, word| {
        let word = u64::from_le_bytes(*word);
        sum ^ (word & 0x0f0f_0f0f_0f0f_0f0f).wrapping_add((word >> 4) & 0x0f0f_0f0f_0f0f_0f0f)
    })
}

#[cfg(target_os = "linux")]
fn uring(paths: &[PathBuf], direct: bool, options: &Options, drops: bool) -> Result<Arc<dyn Backend>> {
    let room = options.flight_room.filter(|_| direct);
    let depth = options.depth.or(room.map(crate::backend::uring::depth_in));
    let backend = crate::backend::uring::Uring::open(paths, direct, depth)?;
    Ok(Arc::new(if drops { backend.dropping_behind() } else { backend }))
}

#[cfg(not(target_os = "linux"))]
fn uring(_paths: &[PathBuf], _direct: bool, _options: &Options, _drops: bool) -> Result<Arc<dyn Backend>> {
    Err(Error::new(ErrorKind::Unavailable, "use io_uring")
        .note("only Linux has it; choose the backend pread"))
}

/// Samples per set of files: enough to tell half from most, few enough to cost under a millisecond.
const SAMPLES: u64 = 64;

/// What the page cache holds of the files, and whether it could hold them all.
struct Cache {
    cached: u64, // of `asked` samples
    asked: u64,
    bytes: u64, // of all files
    first_length: u64,
    room: Option<u64>, // what it may take; none when the caller does not say
    unused: u64,       // bytes of memory that nobody uses
}

impl Cache {
    /// Samples every file in proportion to its length, at least once unless it is empty.
    fn of(paths: &[PathBuf], room: Option<u64>) -> Result<Self> {
        let mut files: Vec<(fs::File, u64)> = Vec::with_capacity(paths.len());
        for path in paths {
            let file = open_regular(path)?;
            let length = file.metadata().map_err(|error| cannot_open(path, error))?.len();
            files.push((file, length));
        }
        let total: u128 = files.iter().map(|(_, length)| u128::from(*length)).sum();
        let (bytes, first_length) = (u64::try_from(total).unwrap_or(u64::MAX), files[0].1);
        let mut found =
            Cache { cached: 0, asked: 0, bytes, first_length, room, unused: unused().unwrap_or(0) };
        for (file, length) in &files {
            let here = (u128::from(SAMPLES) * u128::from(*length)).div_ceil(total.max(1)) as u64;
            found.cached += cached(file, *length, here);
            found.asked += here;
        }
        Ok(found)
    }

    fn mostly(&self) -> bool {
        self.cached * 2 >= self.asked
    }

    /// Whether passes would find the files there: they are mostly, and there is room for the rest; or there is room for all
    /// of them in memory that nobody uses, so that filling it pushes nothing out.
    fn serves(&self) -> bool {
        if self.mostly() {
            let missing =
                u128::from(self.bytes) * u128::from(self.asked - self.cached) / u128::from(self.asked.max(1));
            return self.room.is_none_or(|room| missing <= u128::from(room));
        }
        self.room.is_some_and(|room| self.bytes <= room.min(self.unused))
    }

    /// Whether what is read through it must be dropped again: reading has brought it in, and it does not fit.
    fn overflows(&self) -> bool {
        self.room.is_some() && !self.mostly() && !self.serves()
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} samples of the files are in it", self.cached, self.asked)?;
        match self.room {
            Some(room) => {
                write!(f, ", with room for {} of their {} MB", room / 1_000_000, self.bytes / 1_000_000)
            }
            None => Ok(()),
        }
    }
}

/// Bytes of memory that nobody uses, not even for cached files; `None` where the system does not say.
fn unused() -> Option<u64> {
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let free = memory.lines().find_map(|line| line.strip_prefix("MemFree:"))?;
    free.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}
