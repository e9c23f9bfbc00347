//! Chunks in place: the file is mapped, pages are populated as chunks are waited for and dropped behind them.
//!
//! Lazy, and without memory of its own: a slot is empty, the bytes are the page cache's. What is mapped counts as ours
//! while it is mapped, so pages are unmapped behind the walk (from this process, not from the cache: whoever else uses
//! the file keeps it warm). A fault maps up to a whole folio, also around the chunk, so whole windows as long as the
//! largest folio are unmapped, several at once. Where that hits a neighbour in use, or a resident, its pages are mapped
//! again at the next touch; keeping account of who uses what would keep every window with a resident in it.
//!
//! A file that is cut while it is mapped: populating notices and gives an error, and so does the check at the start of
//! each pass. What remains is a cut between the populating of a chunk and its use by a kernel, or of a page that a
//! neighbour's drop took: then the process gets SIGBUS. Use `pread` or `uring` for files that others may cut. A file
//! that is overwritten in place changes the bytes under our feet: the check at the next pass notices, the current pass
//! computes nonsense, as it would with any backend.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{Mmap, UncheckedAdvice};

use super::file::{Stamp, cached, cannot_open, check_length, lookup, open_regular, read_at};
use super::{Backend, Failed, Filled, Slot, Ticket};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::stats::Traffic;
use crate::sync::{Mutex, lock};
use crate::{ByteRange, FileIndex};

/// Largest folio that a fault maps at once: a huge page of the page cache.
const FOLIO: usize = 2 << 20;

/// Windows, each a folio long, that may wait to be unmapped. Unmapping interrupts every other core that works on this
/// process, 14 µs each time on a virtual machine, so it is done for several windows at once. Two workers, chunks of 1 MB,
/// large folios, median of 9 interleaved runs: 32.5 GB/s unmapping one at a time, 37.3 two, 39.6 three; everything
/// resident gives 45.
const WAITING: usize = 3;

/// Windows that stay when the others go: the last one used, into which the next chunk most likely reaches. Dropping it
/// too was up to 7 % slower.
const KEPT: usize = 1;

/// Places at which a file is looked up in the page cache when it is opened: "mostly" is all that must be known.
const SAMPLES: u64 = 8;

/// Piece in which a cold chunk is read through: a few system calls per megabyte, and little memory.
const PIECE: usize = 128 << 10;

/// The mapping backend.
#[derive(Debug)]
pub struct Mapped {
    files: Vec<Region>,
    recent: Mutex<Recent>,
}

/// A stretch of a file as long as a folio: the file, and how many such lie before it.
type Window = (FileIndex, u64);

/// Windows that have been given back and may be mapped still; the last one at the back.
#[derive(Clone, Debug, Default)]
struct Recent(VecDeque<Window>);

impl Recent {
    /// Counts the windows of a chunk as the last ones used. Those to unmap: all but [`KEPT`] when more than [`WAITING`] are
    /// left, in ascending order.
    fn used(&mut self, range: ByteRange) -> Vec<Window> {
        self.0.retain(|window| !windows(range).any(|used| used == *window));
        self.0.extend(windows(range));
        if self.0.len() <= WAITING {
            return Vec::new();
        }
        let behind = self.0.len() - KEPT;
        let mut gone: Vec<Window> = self.0.drain(..behind).collect();
        gone.sort_unstable();
        gone
    }
}

/// The windows that a range touches.
fn windows(range: ByteRange) -> impl Iterator<Item = Window> {
    let end = range.offset.saturating_add(range.len as u64);
    (range.offset / FOLIO as u64..end.div_ceil(FOLIO as u64)).map(move |window| (range.file, window))
}

/// The most windows that are mapped at once while `workers` walk `pass` over and over: those that were given back last, and
/// those of the chunks that are held. While a worker unmaps or is held up the others may be as many chunks further.
fn most_windows(pass: &[ByteRange], workers: usize) -> usize {
    let held = (2 * workers).saturating_sub(1).min(pass.len());
    let mut recent = Recent::default();
    let mut most = 0;
    // From the second round on, the end of a pass lies behind its beginning.
    for at in 0..2 * pass.len() {
        let mut mapped: Vec<Window> = recent.0.iter().copied().collect();
        mapped.extend((at..at + held).flat_map(|i| windows(pass[i % pass.len()])));
        mapped.sort_unstable();
        mapped.dedup();
        most = most.max(mapped.len());
        recent.used(pass[at % pass.len()]);
    }
    most
}

#[derive(Debug)]
struct Region {
    path: PathBuf,
    file: fs::File,
    map: Arc<Mmap>,
    stamp: Stamp,
    cold: AtomicU64, // bytes still to be read through; 0 when the file was found warm
}

impl Mapped {
    /// Maps the files.
    ///
    /// # Errors
    /// When a file cannot be opened or mapped.
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let files = paths.iter().map(|path| {
            let file = open_regular(path)?;
            let stamp = Stamp::of(&file, path)?;
            // SAFETY: the mapping is private and read-only and lives as long as any `Filled` that points into it. Bytes
            // may still change if someone writes to the file; they are only ever read as plain bytes, for which any value
            // is valid, and the module's page states what a cut file does.
            let map = unsafe { Mmap::map(&file) }.map_err(|error| cannot_open(path, error))?;
            let length = stamp.length();
            let cold = if cached(&file, length, SAMPLES) * 2 < SAMPLES { length } else { 0 };
            Ok(Region { path: path.clone(), map: Arc::new(map), stamp, cold: AtomicU64::new(cold), file })
        });
        Ok(Mapped { files: files.collect::<Result<_>>()?, recent: Mutex::default() })
    }

    /// The region of a range and the range's place in it.
    fn find(&self, range: ByteRange) -> Result<(&Region, std::ops::Range<usize>)> {
        let region = lookup(&self.files, range)?;
        let end =
            range.end().and_then(|end| usize::try_from(end).ok()).filter(|&end| end <= region.map.len());
        match end {
            Some(end) => Ok((region, end - range.len..end)),
            None => {
                let got = (region.map.len() as u64).saturating_sub(range.offset);
                Err(region.shortened(range, usize::try_from(got).unwrap_or(usize::MAX)))
            }
        }
    }

    /// Counts a chunk's windows as the last ones used, and unmaps those that are far enough behind.
    fn drop_behind(&self, range: ByteRange) {
        if self.find(range).is_err() {
            return; // never lent by this backend
        }
        let gone = lock(&self.recent).used(range);
        // Neighbours go in one call.
        for run in gone.chunk_by(|one, next| one.0 == next.0 && one.1 + 1 == next.1) {
            let (file, first) = run[0];
            self.files[file.0 as usize].unmap(first, run.len());
        }
    }

    fn fill(&self, slot: Slot, range: ByteRange) -> std::result::Result<Filled, Failed> {
        let found = self.find(range).and_then(|(region, place)| {
            region.warm(range)?;
            region.populate(range, &place)?;
            Ok((Arc::clone(&region.map), place))
        });
        match found {
            Ok((map, place)) => Ok(Filled::mapped(range, slot, map, place)),
            Err(error) => Err(Failed { error, slot: Some(slot) }),
        }
    }
}

impl Region {
    fn shortened(&self, range: ByteRange, got: usize) -> Error {
        Error::new(ErrorKind::Shortened, "read")
            .path(&self.path)
            .at(range.offset, range.len, got)
            .note("the file got shorter, or was never whole; fetch it again")
    }

    /// Reads the chunk through if the file was cold when it was opened and has not been walked once since. Reads in order
    /// fill the page cache with large folios; faults bring in small ones, and mapping those in every later pass takes
    /// several times as long.
    fn warm(&self, range: ByteRange) -> Result<()> {
        let cold = self.cold.load(Ordering::Relaxed);
        if cold == 0 {
            return Ok(());
        }
        // Two workers may count from the same number; then a chunk more is read through.
        self.cold.store(cold.saturating_sub(range.len as u64), Ordering::Relaxed);
        let mut scratch = Buffer::new(range.len.min(PIECE))?;
        for done in (0..range.len).step_by(PIECE) {
            let piece = scratch.len().min(range.len - done);
            match read_at(&self.file, &mut scratch[..piece], range.offset + done as u64) {
                Ok(0) => return Err(self.shortened(range, done)),
                Ok(_) => {}
                Err(error) => return Err(self.read_error(range, done, error)),
            }
        }
        Ok(())
    }

    fn read_error(&self, range: ByteRange, got: usize, error: io::Error) -> Error {
        let failed = Error::new(ErrorKind::Read, "read").path(&self.path);
        failed.at(range.offset, range.len, got).caused_by(error)
    }

    /// Brings the pages in now, where the kernel can, so that a missing page is an error here and not a signal later.
    fn populate(&self, range: ByteRange, place: &std::ops::Range<usize>) -> Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::io::Errno;
            loop {
                let Err(error) =
                    self.map.advise_range(memmap2::Advice::PopulateRead, place.start, place.len())
                else {
                    return Ok(());
                };
                match Errno::from_io_error(&error) {
                    Some(Errno::INTR | Errno::AGAIN) => {}
                    Some(Errno::INVAL) => return Ok(()), // before Linux 5.14: faults will bring the pages in
                    Some(Errno::FAULT) => return Err(self.shortened(range, 0)),
                    _ => return Err(self.read_error(range, 0, error)),
                }
            }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (range, place);
            Ok(())
        }
    }

    /// Unmaps the pages of `count` windows from `first` on, as far as the file goes.
    fn unmap(&self, first: u64, count: usize) {
        let start = first as usize * FOLIO;
        let length = (count * FOLIO).min(self.map.len() - start);
        // SAFETY: the mapping is backed by a file and read-only, so the advice loses nothing: a page that somebody still
        // uses is faulted in again from the same file with the same bytes. `start` and `length` lie inside the mapping,
        // because `find` has seen a range in every window. A failure only leaves pages mapped.
        let _ = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, length) };
    }
}

impl Backend for Mapped {
    fn slot(&self, _capacity: usize) -> Result<Slot> {
        Ok(Slot::default())
    }

    fn submit(&self, slot: Slot, range: ByteRange) -> Ticket {
        Ticket::unread(range, slot)
    }

    fn wait(&self, ticket: Ticket) -> std::result::Result<Filled, Failed> {
        ticket.settle(|slot, range| self.fill(slot, range))
    }

    fn release(&self, filled: Filled) -> Slot {
        self.drop_behind(filled.range());
        filled.into_slot()
    }

    fn read(&self, range: ByteRange, into: &mut [u8]) -> Result<Traffic> {
        check_length(range, into)?;
        let (region, _) = self.find(range)?;
        // A read, not a copy from the mapping: it maps no pages that nobody would drop, and a cut file is an error.
        let mut got = 0;
        while got < into.len() {
            match read_at(&region.file, &mut into[got..], range.offset + got as u64) {
                Ok(0) => return Err(region.shortened(range, got)),
                Ok(more) => got += more,
                Err(error) => return Err(region.read_error(range, got, error)),
            }
        }
        Ok(Traffic { bytes: range.len as u64, reads: 1 })
    }

    fn begin_pass(&self) -> Result<()> {
        self.files.iter().try_for_each(|region| region.stamp.check(&region.file, &region.path))
    }

    fn depth(&self) -> usize {
        0
    }

    // 1 MiB, as by default. Two workers, large folios: 512 KiB gives 37.5 GB/s, 1 MiB 39.6, 2 MiB 40.9 for 2 MB more.

    fn maps(&self) -> bool {
        true
    }

    fn mapped_bytes(&self, pass: &[ByteRange], workers: usize) -> u64 {
        let files: u64 = self.files.iter().map(|region| region.map.len() as u64).sum();
        (most_windows(pass, workers) as u64 * FOLIO as u64).min(files)
    }

    fn name(&self) -> &'static str {
        "mmap"
    }

    fn describe(&self) -> String {
        format!("mmap files={} drop_behind=yes", self.files.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(len: usize, count: usize) -> Vec<ByteRange> {
        (0..count).map(|i| ByteRange { file: FileIndex(0), offset: (i * len) as u64, len }).collect()
    }

    #[test]
    fn a_window_is_as_wide_as_the_walk_makes_it() {
        // Three that wait and the one in use; chunks of more workers reach into the next ones.
        assert_eq!(most_windows(&chunks(FOLIO / 4, 100), 1), WAITING + 1);
        assert_eq!(most_windows(&chunks(FOLIO / 4, 100), 2), WAITING + 1);
        assert_eq!(most_windows(&chunks(FOLIO / 4, 100), 4), WAITING + 2);
        assert_eq!(most_windows(&chunks(FOLIO, 100), 2), WAITING + 3);
        // Files that are shorter than the window are mapped whole.
        assert_eq!(most_windows(&chunks(FOLIO / 4, 9), 4), 3);
        assert_eq!(most_windows(&chunks(100, 1), 8), 1);
        assert_eq!(most_windows(&[], 2), 0);
        // A long chunk is mapped whole, wherever it begins.
        let long = [ByteRange { file: FileIndex(0), offset: 5, len: 8 * FOLIO }];
        assert_eq!(most_windows(&long, 1), 9);
    }

    #[test]
    fn windows_go_together_and_the_last_one_stays() {
        let mut recent = Recent::default();
        let walk = chunks(FOLIO, 5);
        let gone: Vec<usize> = walk.iter().map(|range| recent.used(*range).len()).collect();
        assert_eq!(gone, [0, 0, 0, WAITING, 0]);
        assert_eq!(recent.0, [(FileIndex(0), 3), (FileIndex(0), 4)]);
    }
}
