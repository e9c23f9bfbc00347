//! Files as the reading backends see them: opening, direct access, and the arithmetic of a read in several pieces.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::io::Errno;

use crate::ByteRange;
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::stats::Traffic;
use crate::sync::{Mutex, lock};

/// Alignment of direct reads where the system does not name one: the largest logical block in use.
const DEFAULT_ALIGN: usize = 4096;

/// Largest alignment believed: a filesystem that says more is not worth reading directly, and buffers stay bounded.
const MAX_ALIGN: usize = 1 << 20;

/// Longest single read. The system stops just short of 2 GiB anyway, at an unaligned place; this keeps pieces aligned.
const MAX_PIECE: usize = 1 << 30;

/// Bounce memory of an on-demand direct read: rows of an embedding table fit, and a longer range takes several turns.
const BOUNCE: usize = 256 << 10;

/// What a file was like when it was opened, to notice when it is written to meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    length: u64,
    changed: Option<SystemTime>, // none where the filesystem keeps no such time
}

impl Stamp {
    pub(crate) fn of(file: &fs::File, path: &Path) -> Result<Self> {
        let metadata = file.metadata().map_err(|error| cannot_open(path, error))?;
        Ok(Stamp { length: metadata.len(), changed: metadata.modified().ok() })
    }

    /// Length of the file in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// An error if the file was written to since: weights of two files would be mixed without a word.
    pub(crate) fn check(&self, file: &fs::File, path: &Path) -> Result<()> {
        let now = Stamp::of(file, path)?;
        if now.length == self.length && now.changed == self.changed {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Changed, "go on with").path(path).note(format!(
            "it was written to while in use: {} bytes at open, {} now; start again",
            self.length, now.length
        )))
    }
}

/// One open file.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    file: fs::File,
    stamp: Stamp,
    align: usize,                      // 1 when reads go through the page cache
    behind: Option<Mutex<Range<u64>>>, // bytes brought into the page cache and not dropped yet; none when they may stay
}

/// Bytes that are dropped from the page cache at a time: dropping waits for other cores, and the system reads ahead this
/// far anyway.
const BEHIND: u64 = 8 << 20;

/// Largest folio of the page cache. One that is only partly in the range stays, so drops reach back this far.
const FOLIO: u64 = 2 << 20;

impl Source {
    /// Opens for reads through the page cache.
    pub(crate) fn buffered(path: &Path) -> Result<Self> {
        let file = open_regular(path)?;
        Ok(Source { path: path.to_owned(), stamp: Stamp::of(&file, path)?, file, align: 1, behind: None })
    }

    /// Opens for reads round the page cache and tries one, since some filesystems refuse only then.
    pub(crate) fn direct(path: &Path) -> Result<Self> {
        let refused = |errno: std::io::Error| {
            Error::new(ErrorKind::NoDirect, "read directly from")
                .path(path)
                .note("its filesystem takes no O_DIRECT reads; turn direct reads off")
                .caused_by(errno)
        };
        let plain = open_regular(path)?;
        let file = match reopen_direct(path) {
            Ok(file) => file,
            Err(error) if is_refusal(&error) => return Err(refused(error)),
            Err(error) => return Err(cannot_open(path, error)),
        };
        let stamp = Stamp::of(&file, path)?;
        let source = Source { path: path.to_owned(), align: alignment(&plain), stamp, file, behind: None };
        if source.align > MAX_ALIGN {
            return Err(refused(Errno::INVAL.into()));
        }
        let mut probe = Buffer::new(source.align)?;
        match read_at(&source.file, &mut probe, 0) {
            Ok(_) => Ok(source),
            Err(error) if is_refusal(&error) => Err(refused(error)),
            Err(error) => Err(source.read_error(0, source.align, 0).caused_by(error)),
        }
    }

    /// From now on drops what is read from the page cache again, for a file that was not in it.
    pub(crate) fn drop_behind(&mut self) {
        self.behind = (self.align == 1).then(Mutex::default);
    }

    /// Whether what is read is dropped from the page cache again.
    pub(crate) fn drops_behind(&self) -> bool {
        self.behind.is_some()
    }

    /// Notes that `range` has been read, and drops what was before it once that is enough to be worth it.
    pub(crate) fn passed(&self, range: ByteRange) {
        let (Some(behind), Some(end)) = (&self.behind, range.end()) else {
            return;
        };
        let gone = {
            let mut behind = lock(behind);
            let near = behind.start.saturating_sub(BEHIND)..=behind.end.saturating_add(BEHIND);
            if near.contains(&range.offset) && behind.end - behind.start < BEHIND {
                *behind = behind.start.min(range.offset)..behind.end.max(end);
                return;
            }
            std::mem::replace(&mut *behind, range.offset..end)
        };
        forget_range(&self.file, gone.start.saturating_sub(FOLIO) / FOLIO * FOLIO..gone.end);
    }

    pub(crate) fn file(&self) -> &fs::File {
        &self.file
    }

    /// Alignment of offsets, lengths and memory in bytes; 1 when reads go through the page cache.
    pub(crate) fn align(&self) -> usize {
        self.align
    }

    /// An error if the file was written to since it was opened.
    pub(crate) fn unchanged(&self) -> Result<()> {
        self.stamp.check(&self.file, &self.path)
    }

    /// An error that names this file and the place.
    pub(crate) fn read_error(&self, offset: u64, wanted: usize, got: usize) -> Error {
        Error::new(ErrorKind::Read, "read").path(&self.path).at(offset, wanted, got)
    }

    /// The plan for reading `range` into memory of `room` bytes.
    pub(crate) fn plan(&self, range: ByteRange, room: usize) -> Result<Progress> {
        Progress::new(range, self.align, room).ok_or_else(|| {
            self.read_error(range.offset, range.len, 0)
                .note(format!("a slot of {room} bytes with alignment {} does not hold it", self.align))
        })
    }

    /// What to say when a read of `range` ended early.
    pub(crate) fn shortened(&self, range: ByteRange, got: usize) -> Error {
        Error::new(ErrorKind::Shortened, "read")
            .path(&self.path)
            .at(range.offset, range.len, got)
            .note("the file got shorter, or was never whole; fetch it again")
    }

    /// Reads `range` into `buffer`, blocking; the answer is where in the buffer the bytes are.
    pub(crate) fn fill(&self, range: ByteRange, buffer: &mut [u8]) -> Result<(Range<usize>, Traffic)> {
        let mut progress = self.plan(range, buffer.len())?;
        while let Some((offset, piece)) = progress.next() {
            match read_at(&self.file, &mut buffer[piece], offset) {
                Ok(got) => {
                    if !progress.advance(got) {
                        return Err(self.shortened(range, progress.got()));
                    }
                }
                Err(error) => {
                    let error = self.read_error(range.offset, range.len, progress.got()).caused_by(error);
                    return Err(self.advise(error));
                }
            }
        }
        Ok((progress.place(), progress.traffic()))
    }

    /// Reads `range` to wherever the caller wants it, through aligned memory when reads are direct.
    pub(crate) fn fetch(&self, range: ByteRange, into: &mut [u8]) -> Result<Traffic> {
        check_length(range, into)?;
        if self.align == 1 {
            return Ok(self.fill(range, into)?.1);
        }
        let mut bounce = Buffer::new(room(range.len.min(BOUNCE), self.align))?;
        let mut traffic = Traffic::default();
        let mut offset = range.offset;
        for piece in into.chunks_mut(BOUNCE) {
            let part = ByteRange { file: range.file, offset, len: piece.len() };
            let (place, cost) = self.fill(part, &mut bounce)?;
            piece.copy_from_slice(&bounce[place]);
            traffic += cost;
            offset += piece.len() as u64;
        }
        Ok(traffic)
    }

    /// Says what helps, where something does.
    pub(crate) fn advise(&self, error: Error) -> Error {
        let refused = error.cause().is_some_and(is_refusal);
        if self.align > 1 && refused {
            error
                .of_kind(ErrorKind::NoDirect)
                .note("the filesystem refuses O_DIRECT here; turn direct reads off")
        } else {
            error
        }
    }
}

/// Opens each path in turn.
pub(crate) fn open_all(paths: &[PathBuf], direct: bool) -> Result<Vec<Source>> {
    paths.iter().map(|path| if direct { Source::direct(path) } else { Source::buffered(path) }).collect()
}

/// The file of a range, or an error for an index that no path was given for.
pub(crate) fn lookup<T>(files: &[T], range: ByteRange) -> Result<&T> {
    files.get(range.file.0 as usize).ok_or_else(|| {
        Error::new(ErrorKind::Usage, "read").at(range.offset, range.len, 0).note(format!(
            "file {} was asked for and {} are open",
            range.file.0,
            files.len()
        ))
    })
}

/// An error unless `into` is as long as the range.
pub(crate) fn check_length(range: ByteRange, into: &[u8]) -> Result<()> {
    if into.len() == range.len {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Usage, "read")
        .at(range.offset, range.len, 0)
        .note(format!("the memory given is {} bytes long", into.len())))
}

/// Memory needed for a chunk of `len` bytes widened to `align` at both ends.
pub(crate) fn room(len: usize, align: usize) -> usize {
    if align == 1 { len } else { len.saturating_add(2 * align - 2) & !(align - 1) }
}

/// Opens a regular file (or block device) for reading.
pub(crate) fn open_regular(path: &Path) -> Result<fs::File> {
    let file = fs::File::open(path).map_err(|error| cannot_open(path, error))?;
    let kind = file.metadata().map_err(|error| cannot_open(path, error))?.file_type();
    if kind.is_dir() {
        return Err(cannot_open(path, Errno::ISDIR.into()));
    }
    Ok(file)
}

pub(crate) fn cannot_open(path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Open, "open").path(path).caused_by(error)
}

/// One read at an offset; interrupted ones are begun again.
pub(crate) fn read_at(file: &fs::File, into: &mut [u8], offset: u64) -> std::io::Result<usize> {
    loop {
        match rustix::io::pread(file, &mut *into, offset) {
            Err(Errno::INTR) => {}
            result => return result.map_err(Into::into),
        }
    }
}

/// How many of `samples` bytes, spread evenly over a file of `length` bytes, are in the page cache.
pub(crate) fn cached(file: &fs::File, length: u64, samples: u64) -> u64 {
    // The middle of each of equal parts, which is below the length and fits.
    let offset = |sample| (u128::from(length) * (2 * sample + 1) / (2 * u128::from(samples))) as u64;
    let cold: Vec<u64> =
        (0..u128::from(samples)).map(offset).filter(|&offset| !is_cached(file, offset)).collect();
    for &offset in &cold {
        forget(file, offset);
    }
    samples - cold.len() as u64
}

/// Whether the page cache holds the byte at `offset`, or the file ends before it; also true where nobody can tell, since
/// reading through the cache is always right.
#[cfg(target_os = "linux")]
fn is_cached(file: &fs::File, offset: u64) -> bool {
    use rustix::io::{ReadWriteFlags, preadv2};
    let mut byte = [0];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    // A read that would have to wait comes back at once. (mincore says "yes" for any file that one may not write.)
    !matches!(preadv2(file, &mut into, offset, ReadWriteFlags::NOWAIT), Err(Errno::AGAIN))
}

/// Drops the page that asking has brought in: left alone in the cache it would keep a later read from using a large
/// folio there, and mapping small ones takes several times as long.
#[cfg(target_os = "linux")]
fn forget(file: &fs::File, offset: u64) {
    let page = rustix::param::page_size() as u64;
    // A page is only dropped once it is there.
    let _ = read_at(file, &mut [0], offset);
    let _ =
        rustix::fs::fadvise(file, offset / page * page, page.try_into().ok(), rustix::fs::Advice::DontNeed);
}

/// Drops clean pages of a range from the page cache, whoever brought them in. A failure only leaves them there.
#[cfg(target_os = "linux")]
fn forget_range(file: &fs::File, range: Range<u64>) {
    if let Ok(length) = (range.end - range.start).try_into() {
        let _ = rustix::fs::fadvise(file, range.start, Some(length), rustix::fs::Advice::DontNeed);
    }
}

#[cfg(not(target_os = "linux"))]
fn forget_range(_file: &fs::File, _range: Range<u64>) {}

#[cfg(not(target_os = "linux"))]
fn is_cached(_file: &fs::File, _offset: u64) -> bool {
    true
}

#[cfg(not(target_os = "linux"))]
fn forget(_file: &fs::File, _offset: u64) {}

/// Whether an error means "not directly", and not "not at all".
fn is_refusal(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS))
}

#[cfg(target_os = "linux")]
fn reopen_direct(path: &Path) -> std::io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
}

#[cfg(not(target_os = "linux"))]
fn reopen_direct(_path: &Path) -> std::io::Result<fs::File> {
    Err(Errno::OPNOTSUPP.into())
}

/// Alignment that direct reads of this file want, as a power of two.
#[cfg(target_os = "linux")]
fn alignment(file: &fs::File) -> usize {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    // Kernels before 6.1 leave the mask's bit unset; an answer of 0 means that the filesystem takes none, which the
    // trial read will find out. Memory is page-aligned, so only more than a page of it would matter, and none asks that.
    match statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(found) if found.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            let wanted = found.stx_dio_offset_align.max(found.stx_dio_mem_align) as usize;
            // At least a page: smaller pieces gain nothing, and pages are what the block layer moves.
            wanted.max(DEFAULT_ALIGN).next_power_of_two()
        }
        _ => DEFAULT_ALIGN,
    }
}

#[cfg(not(target_os = "linux"))]
fn alignment(_file: &fs::File) -> usize {
    DEFAULT_ALIGN
}

/// How far a read has come: the chunk widened to the alignment, filled from the front in pieces.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    start: u64,   // where in the file the widened read begins
    lead: usize,  // bytes before the range
    need: usize,  // bytes from `start` that must arrive: up to the range's last
    whole: usize, // the same, widened at the end
    have: usize,  // bytes from `start` that have arrived; a multiple of `align` until done
    align: usize,
    traffic: Traffic,
}

impl Progress {
    /// `None` when the widened range does not fit into `room` bytes, or its end not into 63 bits.
    fn new(range: ByteRange, align: usize, room: usize) -> Option<Self> {
        let end = range.end().filter(|&end| end <= i64::MAX as u64 - align as u64)?;
        let start = range.offset & !(align as u64 - 1);
        let lead = (range.offset - start) as usize;
        let need = usize::try_from(end - start).ok()?;
        let whole = need.checked_next_multiple_of(align)?;
        let progress = Progress { start, lead, need, whole, have: 0, align, traffic: Traffic::default() };
        (whole <= room).then_some(progress)
    }

    /// The next read: offset in the file and place in the buffer. `None` when all is there.
    pub(crate) fn next(&self) -> Option<(u64, Range<usize>)> {
        let wanted = self.lead < self.need && self.have < self.need;
        wanted.then(|| (self.start + self.have as u64, self.have..self.whole.min(self.have + MAX_PIECE)))
    }

    /// Books `got` bytes; false when that was no progress, which means the file ends there.
    pub(crate) fn advance(&mut self, got: usize) -> bool {
        self.traffic += Traffic { bytes: got as u64, reads: 1 };
        let have = self.have + got;
        if have >= self.need {
            self.have = have;
            return true;
        }
        // A direct read that goes on must go on at an aligned place; the odd bytes are read again.
        let kept = have & !(self.align - 1);
        let moved = kept > self.have;
        self.have = if moved { kept } else { have };
        moved
    }

    /// Bytes of the range itself that have arrived.
    pub(crate) fn got(&self) -> usize {
        self.have.min(self.need).saturating_sub(self.lead)
    }

    /// Where in the buffer the range's bytes are.
    pub(crate) fn place(&self) -> Range<usize> {
        self.lead..self.need
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileIndex;

    fn range(offset: u64, len: usize) -> ByteRange {
        ByteRange { file: FileIndex(0), offset, len }
    }

    #[test]
    fn widened_at_both_ends() {
        let progress = Progress::new(range(5000, 100), 4096, 4096).unwrap();
        assert_eq!(progress.next(), Some((4096, 0..4096)));
        assert_eq!(progress.place(), 904..1004);
        assert!(Progress::new(range(4095, 2), 4096, 4096).is_none());
        assert_eq!(room(2, 4096), 8192);
        assert!(Progress::new(range(4095, 2), 4096, room(2, 4096)).is_some());
    }

    #[test]
    fn short_direct_reads_go_on_aligned_and_end() {
        let mut progress = Progress::new(range(10, 9000), 4096, 1 << 20).unwrap();
        assert!(progress.advance(5000));
        assert_eq!(progress.next(), Some((4096, 4096..12288)));
        assert!(!progress.advance(100), "no whole block more: the file ends");
        assert_eq!(progress.got(), 4186);
        assert_eq!(progress.traffic(), Traffic { bytes: 5100, reads: 2 });
    }

    #[test]
    fn buffered_reads_take_any_piece() {
        let mut progress = Progress::new(range(7, 10), 1, 10).unwrap();
        assert!(progress.advance(3));
        assert_eq!(progress.next(), Some((10, 3..10)));
        assert!(progress.advance(7));
        assert_eq!((progress.next(), progress.place()), (None, 0..10));
        assert!(!Progress::new(range(7, 10), 1, 10).unwrap().advance(0));
    }

    #[test]
    fn nothing_wraps() {
        assert!(Progress::new(range(u64::MAX, 1), 4096, usize::MAX).is_none());
        assert!(Progress::new(range(i64::MAX as u64, 1), 1, usize::MAX).is_none());
        assert_eq!(Progress::new(range(5, 0), 4096, 4096).unwrap().next(), None, "no bytes, no read");
        assert_eq!(room(usize::MAX, 4096), usize::MAX & !4095);
    }
}
