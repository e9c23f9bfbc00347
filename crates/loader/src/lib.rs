//! Hand out the chunks of files in a fixed cyclic order through a few slots of memory.
//!
//! The order is known ahead of time: a [`Schedule`] lists the steps (byte ranges) and, for every kind of pass, the order
//! in which they come. A [`Stream`] walks announced passes, reads steps through a [`Backend`] into a few [`Slot`]s and
//! lends the bytes to workers as [`Loan`]s; when the last loan of a step comes back, its slot takes the next step,
//! across the end of the pass into the next one. Nothing is looked up, cached or evicted.
//!
//! The crate knows byte ranges and slots. It knows no tensor names, no model and no number format.
//!
//! ```
//! use std::sync::Arc;
//! use sluice_loader::{ByteRange, FileIndex, Memory, Schedule, Step, Stream};
//!
//! let file: Vec<u8> = (0..100).collect();
//! let step = |offset, len| Step { range: ByteRange { file: FileIndex(0), offset, len }, loans: 1, resident: false };
//! let schedule = Schedule::new(vec![step(0, 60), step(60, 40)], vec![vec![0, 1]])?;
//! let stream = Stream::new(Arc::new(Memory::new(vec![file])), schedule, 1)?;
//! let first = stream.announce(0);
//! assert_eq!(stream.loan(first)?[59], 59);
//! assert_eq!(stream.loan(first + 1)?.len(), 40);
//! # Ok::<(), sluice_loader::Error>(())
//! ```
//!
//! To open files, see [`open()`]; the backends are described in [`backend`].

pub mod backend;
mod buffer;
mod error;
mod loan;
#[cfg(not(loom))]
mod open;
mod residents;
mod schedule;
mod state;
mod stats;
mod stream;
pub mod sync;

#[cfg(all(not(loom), target_os = "linux"))]
pub use backend::uring::Uring;
pub use backend::{
    Backend, Failed, Filled, READ_CHUNK, Slot, Ticket,
    memory::{Faults, Memory},
};
#[cfg(not(loom))]
pub use backend::{mmap::Mapped, pread::Pread};
pub use buffer::Buffer;
pub use error::{Error, ErrorKind, Result};
pub use loan::{Loan, Loans};
#[cfg(not(loom))]
pub use open::{Choice, Direct, Opened, Options, open};
pub use schedule::{Schedule, Step, spread};
pub use stats::{Stats, Traffic};
pub use stream::Stream;

/// Which file of those that a backend was opened with: its place in the list of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIndex(pub u16);

/// A run of bytes in one of the backend's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// The file.
    pub file: FileIndex,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
}

impl ByteRange {
    /// Offset of the byte after the last one; `None` when it does not fit into 64 bits.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len as u64)
    }
}
