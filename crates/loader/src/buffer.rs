//! Page-aligned memory for one chunk, moved by value while its address stays.

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use crate::error::{Error, ErrorKind, Result};

/// Anonymous pages of the process, zero until written and not counted until touched.
///
/// The address is a multiple of the page size and does not change when the buffer moves, so that a read in flight may
/// write to it while the owner sits in a queue.
#[derive(Debug, Default)]
pub struct Buffer {
    map: Option<MmapMut>, // none: no memory at all, for chunks that lie in a mapping of the file
}

impl Buffer {
    /// `capacity` bytes; none at all when it is 0.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the system has no address space left for it.
    pub fn new(capacity: usize) -> Result<Self> {
        if capacity == 0 {
            return Ok(Buffer::default());
        }
        let map = MmapMut::map_anon(capacity).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "reserve memory for a chunk")
                .note(format!("{capacity} bytes were asked for; use smaller chunks"))
                .caused_by(error)
        })?;
        // Huge pages would round every slot up to 2 MiB of memory that is counted and never used. A kernel built
        // without them refuses the advice, and then there is nothing to opt out of.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::NoHugePage);
        Ok(Buffer { map: Some(map) })
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().unwrap_or_default()
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
    }
}
