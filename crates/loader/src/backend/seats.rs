//! Buffers that the kernel knows beforehand: slots registered with an io_uring, so that a read need not look their pages
//! up and pin them.
//!
//! The kernel holds on to the pages of a registered buffer, so it never writes to memory that has been given to somebody
//! else; but a buffer that took the place of a registered one, at the same address, would never see the bytes. So a slot
//! owns its [`Seat`] beside its buffer, the buffer of a slot cannot be exchanged, and the seat is given up before the
//! buffer is unmapped. A seat keeps the ring alive; once its backend is gone nothing is submitted to that any more.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::IoUring;

use crate::buffer::Buffer;
use crate::sync::{Mutex, lock};

/// A ring and its tables of registered files and buffers.
pub(crate) struct Registered {
    ring: IoUring,
    files: bool,
    vacant: Mutex<Vec<u16>>, // places in the table of buffers
    places: usize,
    refused: AtomicBool, // the kernel would not take a buffer: the limit on locked memory, most likely
}

/// A slot's place in the table of buffers.
pub(crate) struct Seat {
    index: u16,
    ring: Arc<Registered>,
}

impl Registered {
    /// Registers `files`, which must stay open as long as this, and room for as many buffers, as far as the kernel goes
    /// along: files since Linux 5.1, a table that begins empty since 5.19.
    pub(crate) fn new(ring: IoUring, files: &[RawFd], places: u16) -> Self {
        let files = ring.submitter().register_files(files).is_ok();
        let places = match ring.submitter().register_buffers_sparse(u32::from(places)) {
            Ok(()) => places,
            Err(_) => 0,
        };
        let vacant = Mutex::new((0..places).rev().collect());
        Registered { ring, files, vacant, places: usize::from(places), refused: AtomicBool::new(places == 0) }
    }

    pub(crate) fn ring(&self) -> &IoUring {
        &self.ring
    }

    /// Whether reads name files by their place in the list of paths.
    pub(crate) fn files(&self) -> bool {
        self.files
    }

    /// Registers `buffer`; `None` when the table is full or the kernel refuses. The caller keeps the two together, and
    /// drops the seat first.
    pub(crate) fn seat(self: &Arc<Self>, buffer: &mut Buffer) -> Option<Box<Seat>> {
        if buffer.is_empty() {
            return None;
        }
        let index = lock(&self.vacant).pop()?;
        let memory = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        if self.update(index, memory) {
            return Some(Box::new(Seat { index, ring: Arc::clone(self) }));
        }
        self.refused.store(true, Ordering::Relaxed);
        lock(&self.vacant).push(index);
        None
    }

    fn update(&self, index: u16, memory: libc::iovec) -> bool {
        // SAFETY: `memory` is null, or the whole of a `Buffer`, borrowed by the caller for the length of the call. The
        // kernel pins its pages here; they stay the kernel's to write to, even unmapped, until the place is updated again.
        unsafe { self.ring.submitter().register_buffers_update(u32::from(index), &[memory], None) }.is_ok()
    }

    /// Places without a buffer.
    #[cfg(test)]
    pub(crate) fn vacant(&self) -> usize {
        lock(&self.vacant).len()
    }

    /// For people: "buffers+files", and why less.
    pub(crate) fn describe(&self) -> &'static str {
        let buffers = lock(&self.vacant).len() < self.places;
        match (buffers, self.files) {
            (true, true) => "buffers+files",
            (true, false) => "buffers",
            (false, true) if self.refused.load(Ordering::Relaxed) => {
                "files (buffers: not within the limit on locked memory)"
            }
            (false, true) => "files",
            (false, false) => "no",
        }
    }
}

impl Seat {
    /// Its place in the table of the ring it belongs to; `None` for another ring.
    pub(crate) fn index(&self, ring: &Arc<Registered>) -> Option<u16> {
        Arc::ptr_eq(&self.ring, ring).then_some(self.index)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // A place that cannot be cleared is not used again: it still means the old pages.
        if self.ring.update(self.index, nothing) {
            lock(&self.ring.vacant).push(self.index);
        }
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Seat").field(&self.index).finish()
    }
}
