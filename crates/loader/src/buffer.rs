//! Page-aligned memory for chunks, moved by value while its address stays.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use memmap2::{Advice, MmapMut};

use crate::error::{Error, ErrorKind, Result};

/// Bytes of a huge page on x86-64, and on Arm with the usual small pages.
const HUGE: usize = 2 << 20;

/// What parts of a mapping begin at: a multiple of every smaller page and of what direct reads ask for.
const PAGE: usize = 4096;

/// Anonymous pages of the process, zero until written and not counted until touched.
///
/// The address is a multiple of the page size and does not change when the buffer moves, so that a read in flight may
/// write to it while the owner sits in a queue.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// Where the bytes lie, as long as any buffer of it is left; none: no memory at all, for chunks that lie in a mapping of
    /// the file.
    _pages: Option<Arc<MmapMut>>,
}

// SAFETY: a buffer is the only one that reaches its bytes, which lie in a mapping that it keeps alive and that belongs to no
// thread; `_pages` itself is never read or written through.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared buffer only lends its bytes to be read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `capacity` bytes; none at all when it is 0.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the system has no address space left for it.
    pub fn new(capacity: usize) -> Result<Self> {
        if capacity == 0 {
            return Ok(Buffer::default());
        }
        let pages = map(capacity)?;
        // Huge pages would round every slot up to 2 MiB of memory that is counted and never used. A kernel built
        // without them refuses the advice, and then there is nothing to opt out of.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(Advice::NoHugePage);
        Ok(part(&mut Pages::new(pages), capacity))
    }

    /// `count` buffers of `capacity` bytes side by side, and as many of them as come to whole huge pages in such.
    ///
    /// A direct read into 4 KiB pages is a list of as many addresses, and a disk may be slower for that: the one of this
    /// (virtual) machine brings 1.2 to 1.4 GB/s into small pages and 3.0 to 3.3 into huge ones, 8 reads of 504 KiB in flight.
    ///
    /// # Errors
    /// As [`Buffer::new`].
    pub fn several(capacity: usize, count: usize) -> Result<Vec<Self>> {
        let each = capacity.saturating_add(PAGE - 1) & !(PAGE - 1);
        let total = each.saturating_mul(count);
        if total < HUGE || capacity == 0 {
            return (0..count).map(|_| Self::new(capacity)).collect();
        }
        let pages = map(total.saturating_add(HUGE))?;
        let begin = pages.as_ptr().align_offset(HUGE);
        #[cfg(target_os = "linux")]
        {
            // What is left behind the last whole huge page stays small, so that no more is counted than is used.
            let whole = total / HUGE * HUGE;
            let _ = pages.advise(Advice::NoHugePage);
            let _ = pages.advise_range(Advice::HugePage, begin, whole);
        }
        let mut pages = Pages::new(pages);
        pages.next = begin;
        Ok((0..count).map(|_| part(&mut pages, each)).map(|buffer| buffer.shortened(capacity)).collect())
    }

    fn shortened(self, len: usize) -> Self {
        assert!(len <= self.len, "{len} of {} bytes", self.len);
        Self { len, ..self }
    }
}

/// A mapping that buffers are cut from, one behind the other.
struct Pages {
    start: NonNull<u8>,
    next: usize,
    map: Arc<MmapMut>,
}

impl Pages {
    fn new(mut map: MmapMut) -> Self {
        // The pointer is taken while the mapping is borrowed to be written; afterwards nobody borrows it again.
        let start = NonNull::new(map.as_mut_ptr()).expect("a mapping is somewhere");
        Self { start, next: 0, map: Arc::new(map) }
    }
}

/// The next `len` bytes of a mapping.
fn part(pages: &mut Pages, len: usize) -> Buffer {
    let end = pages.next.checked_add(len).filter(|end| *end <= pages.map.len());
    let end = end.expect("the mapping was made for all of its parts");
    // SAFETY: `next + len` is within the mapping, so this does not leave it.
    let start = unsafe { pages.start.add(pages.next) };
    pages.next = end;
    Buffer { start, len, _pages: Some(Arc::clone(&pages.map)) }
}

fn map(bytes: usize) -> Result<MmapMut> {
    MmapMut::map_anon(bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "reserve memory for a chunk")
            .note(format!("{bytes} bytes were asked for; use smaller chunks"))
            .caused_by(error)
    })
}

impl Default for Buffer {
    fn default() -> Self {
        Self { start: NonNull::dangling(), len: 0, _pages: None }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `part` gave `len` initialised bytes from `start` on to this buffer alone, and `_pages` keeps them mapped; or
        // `len` is 0.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed to be written.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_survives_a_move() {
        let mut buffer = Buffer::new(10_000).unwrap();
        buffer[9_999] = 7;
        let before = buffer.as_ptr();
        let moved = Box::new(buffer);
        assert_eq!((moved.as_ptr(), moved.len(), moved[9_999]), (before, 10_000, 7));
        assert_eq!(before as usize % 4096, 0);
    }

    #[test]
    fn empty_and_absurd() {
        assert!(Buffer::new(0).unwrap().is_empty());
        assert_eq!(Buffer::new(usize::MAX / 2).unwrap_err().kind(), ErrorKind::Unavailable);
        for (capacity, count) in [(usize::MAX / 2, 1), (1 << 40, usize::MAX), (usize::MAX, 3)] {
            assert_eq!(Buffer::several(capacity, count).unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert!(Buffer::several(0, 3).unwrap().iter().all(|buffer| buffer.is_empty()));
        assert!(Buffer::several(4096, 0).unwrap().is_empty());
    }

    /// Few small ones by themselves, many in one mapping; nobody sees another's bytes, and they outlive each other.
    #[test]
    fn several_are_apart() {
        for (capacity, count) in [(5000, 3), (500_001, 10), (3 << 20, 2)] {
            let mut buffers = Buffer::several(capacity, count).unwrap();
            assert_eq!(buffers.len(), count);
            for (i, buffer) in buffers.iter_mut().enumerate() {
                assert_eq!((buffer.len(), buffer.as_ptr() as usize % 4096), (capacity, 0));
                assert!(buffer.iter().all(|byte| *byte == 0));
                buffer.fill(i as u8 + 1);
            }
            let last = buffers.pop().unwrap();
            for (i, buffer) in buffers.iter().enumerate() {
                assert!(buffer.iter().all(|byte| *byte == i as u8 + 1), "{count} of {capacity}");
            }
            drop(buffers);
            assert!(last.iter().all(|byte| *byte == count as u8));
        }
    }
}
