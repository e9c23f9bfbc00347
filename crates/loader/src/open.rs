//! Chooses a backend: by name it is that one or an error; `auto` may fall back, and says what won and why.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
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
    /// The caller keeps everything in memory anyway: then `auto` prefers to map, which copies nothing.
    pub all_resident: bool,
}

/// An open backend.
pub struct Opened {
    /// Ready for a [`crate::Stream`].
    pub backend: Arc<dyn Backend>,
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
        return Ok(Opened { backend, notes });
    }
    let chooses = by_itself || options.direct == Direct::Auto;
    let warm = if chooses && options.backend != Choice::Mmap { Some(warmth(paths)?) } else { None };
    let direct = match (options.direct, &warm) {
        (Direct::On, _) => true,
        (Direct::Auto, Some(warm)) => {
            let how = if warm.mostly() { "through the page cache" } else { "round the page cache" };
            notes.push(format!("reads go {how}: {warm}"));
            !warm.mostly()
        }
        _ => false,
    };
    let warm = warm.is_some_and(|warm| warm.mostly());
    let backend = match choose(paths, options, direct, warm, &mut notes) {
        Err(error) if error.kind() == ErrorKind::NoDirect && options.direct == Direct::Auto => {
            notes.push(format!("reads go through the page cache after all: {error}"));
            choose(paths, options, false, warm, &mut notes)?
        }
        backend => backend?,
    };
    Ok(Opened { backend, notes })
}

/// The backend itself, once it is known whether reads go round the page cache and whether the files are in it.
fn choose(
    paths: &[PathBuf],
    options: &Options,
    direct: bool,
    warm: bool,
    notes: &mut Vec<String>,
) -> Result<Arc<dyn Backend>> {
    let pread = || -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(if direct { Pread::direct(paths, options.depth)? } else { Pread::buffered(paths)? }))
    };
    match options.backend {
        Choice::Mmap => Ok(Arc::new(Mapped::open(paths)?)),
        Choice::Pread => pread(),
        Choice::Uring => uring(paths, direct, options.depth),
        // Nothing has to be waited for: then the worker that needs a chunk gets it itself, the faster way.
        Choice::Auto if warm && !direct => match mapped(paths, notes) {
            Some(mapped) => race(mapped, pread()?, notes),
            None => pread(),
        },
        Choice::Auto => match uring(paths, direct, options.depth) {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                notes.push(format!("backend pread: {error}"));
                pread()
            }
            Ok(backend) => {
                notes.push("backend uring: several reads in flight, and no threads".to_owned());
                Ok(backend)
            }
            error => error,
        },
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

/// Chunks that are timed each way: enough to be past the first faults, over in a few milliseconds.
const LAPS: u64 = 8;

/// Length of a timed chunk in bytes: what models are streamed in by default.
const LAP: usize = 1 << 20;

/// The backend that brings warm bytes to this core faster.
fn race(one: Arc<dyn Backend>, other: Arc<dyn Backend>, notes: &mut Vec<String>) -> Result<Arc<dyn Backend>> {
    // Twice in turn, so that whatever happens once at the start burdens neither.
    let (first, second) = (rate(&*one)?.max(rate(&*one)?), rate(&*other)?.max(rate(&*other)?));
    let won = if first >= second { &one } else { &other };
    let (name, other_name) = (one.name(), other.name());
    notes.push(format!(
        "backend {}: {name} brought {first:.1} GB/s to one core and {other_name} {second:.1}",
        won.name()
    ));
    Ok(Arc::clone(won))
}

/// Gigabytes per second (10^9) of a few chunks from the front of the first file, every byte looked at.
fn rate(backend: &dyn Backend) -> Result<f64> {
    let mut slot = backend.slot(LAP)?;
    let (mut bytes, mut sum) = (0, 0u64);
    let started = Instant::now();
    for lap in 0..LAPS {
        let range = ByteRange { file: FileIndex(0), offset: lap * LAP as u64, len: LAP };
        match backend.wait(backend.submit(slot, range)) {
            Ok(filled) => {
                let words = filled.as_chunks::<8>().0;
                sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
                bytes += filled.len();
                slot = backend.release(filled);
            }
            Err(failed) if failed.error.kind() == ErrorKind::Shortened => break, // a small file: what there is will do
            Err(failed) => return Err(failed.error),
        }
    }
    std::hint::black_box(sum);
    Ok(bytes as f64 / 1e9 / started.elapsed().as_secs_f64().max(f64::EPSILON))
}

#[cfg(target_os = "linux")]
fn uring(paths: &[PathBuf], direct: bool, depth: Option<usize>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(crate::backend::uring::Uring::open(paths, direct, depth)?))
}

#[cfg(not(target_os = "linux"))]
fn uring(_paths: &[PathBuf], _direct: bool, _depth: Option<usize>) -> Result<Arc<dyn Backend>> {
    Err(Error::new(ErrorKind::Unavailable, "use io_uring")
        .note("only Linux has it; choose the backend pread"))
}

/// Samples per set of files: enough to tell half from most, few enough to cost under a millisecond.
const SAMPLES: u64 = 64;

/// How much of the files is in the page cache.
struct Warmth {
    cached: u64,
    asked: u64,
}

impl Warmth {
    fn mostly(&self) -> bool {
        self.cached * 2 >= self.asked
    }
}

impl fmt::Display for Warmth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} samples of the files are in the page cache", self.cached, self.asked)
    }
}

/// Samples every file in proportion to its length, at least once unless it is empty.
fn warmth(paths: &[PathBuf]) -> Result<Warmth> {
    let mut files: Vec<(fs::File, u64)> = Vec::with_capacity(paths.len());
    for path in paths {
        let file = open_regular(path)?;
        let length = file.metadata().map_err(|error| cannot_open(path, error))?.len();
        files.push((file, length));
    }
    let total: u128 = files.iter().map(|(_, length)| u128::from(*length)).sum();
    let mut found = Warmth { cached: 0, asked: 0 };
    for (file, length) in &files {
        let here = (u128::from(SAMPLES) * u128::from(*length)).div_ceil(total.max(1)) as u64;
        found.cached += cached(file, *length, here);
        found.asked += here;
    }
    Ok(found)
}
