//! Chooses a backend: by name it is that one or an error; `auto` may fall back, and says what won and why.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::file::open_regular;
use crate::backend::{Backend, mmap::Mapped, pread::Pread};
use crate::error::{Error, ErrorKind, Result};

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
        return Err(Error::new(ErrorKind::Usage, "open files").note(
            "a mapping goes through the page cache; with --direct on use --backend pread or uring",
        ));
    }
    if paths.len() > usize::from(u16::MAX) {
        return Err(Error::new(ErrorKind::Usage, "open files")
            .note(format!("{} are more than 65535", paths.len())));
    }
    let mut notes = Vec::new();
    let map = match options.backend {
        Choice::Mmap => true,
        Choice::Auto => options.all_resident && options.direct != Direct::On,
        Choice::Pread | Choice::Uring => false,
    };
    if map {
        if options.backend == Choice::Auto {
            notes.push(
                "backend mmap: everything stays in memory, and a mapping copies nothing".to_owned(),
            );
        }
        return Ok(Opened {
            backend: Arc::new(Mapped::open(paths)?),
            notes,
        });
    }
    let direct = match options.direct {
        Direct::On => true,
        Direct::Off => false,
        Direct::Auto => {
            let (warm, asked) = warmth(paths)?;
            let cold = warm * 2 < asked;
            let how = if cold {
                "direct"
            } else {
                "through the page cache"
            };
            notes.push(format!(
                "reads go {how}: {warm} of {asked} samples of the files are in the page cache"
            ));
            cold
        }
    };
    let backend = match choose(paths, options, direct, &mut notes) {
        Err(error) if error.kind() == ErrorKind::NoDirect && options.direct == Direct::Auto => {
            notes.push(format!(
                "reads go through the page cache after all: {error}"
            ));
            choose(paths, options, false, &mut notes)?
        }
        backend => backend?,
    };
    Ok(Opened { backend, notes })
}

/// One of the two that read into slots.
fn choose(
    paths: &[PathBuf],
    options: &Options,
    direct: bool,
    notes: &mut Vec<String>,
) -> Result<Arc<dyn Backend>> {
    let pread = || -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(if direct {
            Pread::direct(paths, options.depth)?
        } else {
            Pread::buffered(paths)?
        }))
    };
    match options.backend {
        Choice::Uring => uring(paths, direct, options.depth),
        Choice::Auto => match uring(paths, direct, options.depth) {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                notes.push(format!("backend pread: {error}"));
                pread()
            }
            Ok(backend) => {
                notes.push("backend uring: several reads in flight and no threads".to_owned());
                Ok(backend)
            }
            error => error,
        },
        Choice::Mmap | Choice::Pread => pread(),
    }
}

#[cfg(target_os = "linux")]
fn uring(paths: &[PathBuf], direct: bool, depth: Option<usize>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(crate::backend::uring::Uring::open(
        paths, direct, depth,
    )?))
}

#[cfg(not(target_os = "linux"))]
fn uring(_paths: &[PathBuf], _direct: bool, _depth: Option<usize>) -> Result<Arc<dyn Backend>> {
    Err(Error::new(ErrorKind::Unavailable, "use io_uring")
        .note("only Linux has it; use --backend pread"))
}

/// Samples per set of files: enough to tell half from most, few enough to cost under a millisecond.
const SAMPLES: u64 = 64;

/// How many of so many sampled bytes are in the page cache.
#[cfg(target_os = "linux")]
fn warmth(paths: &[PathBuf]) -> Result<(u64, u64)> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    let mut files: Vec<(fs::File, u64)> = Vec::with_capacity(paths.len());
    for path in paths {
        let file = open_regular(path)?;
        let length = file
            .metadata()
            .map_err(|error| crate::backend::file::cannot_open(path, error))?
            .len();
        files.push((file, length));
    }
    let total: u64 = files.iter().map(|(_, length)| length).sum();
    let (mut warm, mut asked) = (0, 0);
    for (file, length) in &files {
        // Samples by length, at least one per file; a read that would have to wait comes back at once.
        let here =
            (u128::from(SAMPLES) * u128::from(*length)).div_ceil(u128::from(total.max(1))) as u64;
        for sample in 0..here {
            let offset = (u128::from(*length) * (2 * u128::from(sample) + 1)
                / (2 * u128::from(here))) as u64;
            let mut byte = [0];
            let mut into = [std::io::IoSliceMut::new(&mut byte)];
            match preadv2(file, &mut into, offset, ReadWriteFlags::NOWAIT) {
                Ok(_) => warm += 1,
                Err(Errno::AGAIN) => {}
                // The filesystem cannot tell: then it has no cache to go round either, such as tmpfs on old kernels.
                Err(_) => warm += 1,
            }
            asked += 1;
        }
    }
    Ok((warm, asked))
}

/// Elsewhere nobody can be asked, and reading through the cache is always right.
#[cfg(not(target_os = "linux"))]
fn warmth(paths: &[PathBuf]) -> Result<(u64, u64)> {
    for path in paths {
        open_regular(path)?;
    }
    Ok((SAMPLES, SAMPLES))
}
