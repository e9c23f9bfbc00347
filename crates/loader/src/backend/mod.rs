//! How bytes reach a slot: the trait, and what travels through it.
//!
//! | backend | behaviour | for |
//! |---|---|---|
//! | [`mmap`] | lazy, no memory of its own, drops pages behind itself | warm files, everything resident |
//! | [`pread`] | buffered lazy, direct eager on a few threads | warm files; cold ones where io_uring is forbidden |
//! | [`uring`] | eager, several reads in flight, no threads | cold files |
//! | [`memory`] | either, with seeded faults | tests |
//!
//! A slot moves by value: into [`Backend::submit`], through the ticket, out of [`Backend::wait`] inside a [`Filled`],
//! and back through [`Backend::release`]. Whoever loses a ticket loses its memory for other use, but nothing can ever
//! be read and written at once.

#[cfg(not(loom))]
pub(crate) mod file;
#[cfg(not(loom))]
pub(crate) mod flight;
pub mod memory;
#[cfg(not(loom))]
pub mod mmap;
#[cfg(not(loom))]
pub mod pread;
#[cfg(all(not(loom), target_os = "linux"))]
pub(crate) mod seats;
#[cfg(all(not(loom), target_os = "linux"))]
pub mod uring;

use std::fmt;
use std::ops::{Deref, Range};
#[cfg(not(loom))]
use std::sync::Arc;

#[cfg(not(loom))]
use memmap2::Mmap;

use crate::ByteRange;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::stats::Traffic;

/// Length in bytes of the chunks that suit backends with memory of their own. Read directly, eight of them get nine tenths of
/// what 32 get, in 5 MB; longer ones took no less CPU that would count (62 ms per GB, 30 with 1 MiB). Copied from the page cache they
/// stay in a core's own: 36 GB/s with two workers, 33 at 256 KiB and 31 to 33 at 2 MiB and more.
pub const READ_CHUNK: usize = 512 << 10;

/// Brings ranges of files into slots. Shared by all workers.
pub trait Backend: Send + Sync {
    /// Memory for one chunk of at most `capacity` bytes, untouched until used; none for backends that map the file.
    ///
    /// # Errors
    /// When the system has no address space for it.
    fn slot(&self, capacity: usize) -> Result<Slot>;

    /// Memory for `count` such chunks, side by side where that makes reads faster.
    ///
    /// # Errors
    /// As [`Backend::slot`].
    fn slots(&self, capacity: usize, count: usize) -> Result<Vec<Slot>> {
        (0..count).map(|_| self.slot(capacity)).collect()
    }

    /// Asks for `range`. Never fails: an error comes with [`Backend::wait`]. A read in flight owns its memory.
    fn submit(&self, slot: Slot, range: ByteRange) -> Ticket;

    /// Waits until the range is there, or, in lazy backends, reads it here, on the calling worker.
    ///
    /// # Errors
    /// A [`Failed`] with the error and, unless it was lost, the slot.
    fn wait(&self, ticket: Ticket) -> std::result::Result<Filled, Failed>;

    /// Takes the bytes back. Backends that map the file drop the pages here.
    fn release(&self, filled: Filled) -> Slot;

    /// Reads on demand, beside the schedule: what depends on data, such as embedding rows.
    ///
    /// # Errors
    /// When the range ends behind the file, `into` has another length than the range, or the system refuses.
    fn read(&self, range: ByteRange, into: &mut [u8]) -> Result<Traffic>;

    /// Gives a ticket's slot back without its bytes; waits first for a read that is in flight.
    ///
    /// # Errors
    /// `None` when the slot was lost.
    fn cancel(&self, ticket: Ticket) -> Option<Slot> {
        match ticket.into_unread() {
            Ok(slot) => Some(slot),
            Err(ticket) => match self.wait(ticket) {
                Ok(filled) => Some(self.release(filled)),
                Err(failed) => failed.slot,
            },
        }
    }

    /// Called once per announced pass: the place to notice cheaply that a file is no longer the one that was opened.
    ///
    /// # Errors
    /// When a file has changed.
    fn begin_pass(&self) -> Result<()> {
        Ok(())
    }

    /// Reads that this backend wants in flight ahead of the workers; 0 when it is lazy.
    fn depth(&self) -> usize;

    /// Length in bytes of the chunks that suit this backend best.
    fn chunk_bytes(&self) -> usize {
        1 << 20 // what suits a mapping; backends with memory of their own want less
    }

    /// Whether chunks are pages of a mapping of the file, so that slots have no memory.
    fn maps(&self) -> bool {
        false
    }

    /// The most bytes of the files that are mapped at once while `workers` walk `pass` over and over, each holding one of its
    /// ranges; 0 for backends that read.
    fn mapped_bytes(&self, pass: &[ByteRange], workers: usize) -> u64 {
        let _ = (pass, workers);
        0
    }

    /// One word: "mmap", "pread", "uring", "memory".
    fn name(&self) -> &'static str;

    /// Whether reads go round the page cache.
    fn direct(&self) -> bool {
        false
    }

    /// One line for people, such as "uring o_direct qd=8 registered=buffers+files".
    fn describe(&self) -> String;
}

/// Memory for one chunk.
#[derive(Debug, Default)]
pub struct Slot {
    #[cfg(all(not(loom), target_os = "linux"))]
    seat: Option<Box<seats::Seat>>, // before the buffer, so that it is given up before that is unmapped
    buffer: Buffer, // never exchanged: the kernel may know it
}

impl Slot {
    /// A slot around `buffer`, for implementors of [`Backend`].
    pub fn new(buffer: Buffer) -> Self {
        Slot { buffer, ..Slot::default() }
    }

    /// The whole memory, for implementors of [`Backend`].
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Bytes of memory, alignment included; 0 for backends that map the file.
    pub fn capacity(&self) -> usize {
        self.buffer.len()
    }
}

/// A range that was asked for. Redeem it with [`Backend::wait`] or [`Backend::cancel`] of the same backend; dropping it
/// gives its memory up once the read is over.
#[derive(Debug)]
#[must_use = "a dropped ticket gives its slot up"]
pub struct Ticket {
    range: ByteRange,
    state: TicketState,
}

#[derive(Debug)]
enum TicketState {
    /// Nothing has happened yet: the waiter will read.
    Unread(Slot),
    /// Over already.
    Over(std::result::Result<Filled, Failed>),
    /// Somewhere between the backend and the kernel.
    #[cfg(not(loom))]
    Flying(Arc<flight::Flight>),
}

impl Ticket {
    /// A ticket whose range is read by whoever waits for it.
    pub fn unread(range: ByteRange, slot: Slot) -> Self {
        Ticket { range, state: TicketState::Unread(slot) }
    }

    /// A ticket whose outcome is known.
    pub fn over(range: ByteRange, outcome: std::result::Result<Filled, Failed>) -> Self {
        Ticket { range, state: TicketState::Over(outcome) }
    }

    #[cfg(not(loom))]
    pub(crate) fn flying(range: ByteRange, flight: Arc<flight::Flight>) -> Self {
        Ticket { range, state: TicketState::Flying(flight) }
    }

    /// What was asked for.
    pub fn range(&self) -> ByteRange {
        self.range
    }

    /// The slot of a ticket that nobody has begun to read, or the ticket back.
    ///
    /// # Errors
    /// The ticket itself, when its read is over or in flight.
    #[allow(clippy::result_large_err, reason = "what comes back is the ticket itself, and no error")]
    pub fn into_unread(self) -> std::result::Result<Slot, Ticket> {
        match self.state {
            TicketState::Unread(slot) => Ok(slot),
            state => Err(Ticket { state, ..self }),
        }
    }

    /// Where the outcome will be left, when the read is in flight; otherwise the ticket back.
    #[cfg(not(loom))]
    #[allow(clippy::result_large_err, reason = "what comes back is the ticket itself, and no error")]
    pub(crate) fn into_flight(self) -> std::result::Result<Arc<flight::Flight>, Ticket> {
        match self.state {
            TicketState::Flying(flight) => Ok(flight),
            state => Err(Ticket { state, ..self }),
        }
    }

    /// The outcome, for backends whose reads never fly: `read` fills the slot of a ticket that is still unread.
    ///
    /// # Panics
    /// With a ticket of another backend, whose read is in flight.
    pub fn settle(
        self,
        read: impl FnOnce(Slot, ByteRange) -> std::result::Result<Filled, Failed>,
    ) -> std::result::Result<Filled, Failed> {
        match self.state {
            TicketState::Unread(slot) => read(slot, self.range),
            TicketState::Over(outcome) => outcome,
            #[cfg(not(loom))]
            TicketState::Flying(_) => panic!("a ticket was taken to another backend"),
        }
    }
}

/// The bytes of a range: derefs to exactly those.
pub struct Filled {
    range: ByteRange,
    slot: Slot,
    bytes: Bytes,
    traffic: Traffic,
}

enum Bytes {
    /// In the slot's own memory, which may begin earlier for the sake of alignment.
    InSlot(Range<usize>),
    /// In a mapping of the file.
    #[cfg(not(loom))]
    Mapped(Arc<Mmap>, Range<usize>),
}

impl Filled {
    /// Bytes that were read into `slot` at `place`, at a cost of `traffic`.
    ///
    /// # Panics
    /// When `place` is not as long as the range or lies outside the slot: the backend is at fault.
    pub fn in_slot(range: ByteRange, slot: Slot, place: Range<usize>, traffic: Traffic) -> Self {
        assert!(place.len() == range.len && place.end <= slot.buffer.len(), "bytes outside their slot");
        Filled { range, slot, bytes: Bytes::InSlot(place), traffic }
    }

    #[cfg(not(loom))]
    pub(crate) fn mapped(range: ByteRange, slot: Slot, map: Arc<Mmap>, place: Range<usize>) -> Self {
        assert!(place.len() == range.len && place.end <= map.len(), "bytes outside their mapping");
        let traffic = Traffic { bytes: range.len as u64, reads: 1 };
        Filled { range, slot, bytes: Bytes::Mapped(map, place), traffic }
    }

    /// Which bytes these are.
    pub fn range(&self) -> ByteRange {
        self.range
    }

    /// What it took to get them.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Gives the bytes up, for implementors of [`Backend::release`].
    pub fn into_slot(self) -> Slot {
        self.slot
    }
}

impl Deref for Filled {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::InSlot(place) => &self.slot.buffer[place.clone()],
            #[cfg(not(loom))]
            Bytes::Mapped(map, place) => &map[place.clone()],
        }
    }
}

impl fmt::Debug for Filled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filled")
            .field("range", &self.range)
            .field("traffic", &self.traffic)
            .finish_non_exhaustive()
    }
}

/// A read that went wrong, with the slot for further use.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// The slot, unless it had to be given up.
    pub slot: Option<Slot>,
}
