//! Files that are vectors, with faults on request: what streams and models are tested with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Backend, Failed, Filled, Slot, Ticket};
use crate::ByteRange;
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::stats::Traffic;
use crate::sync::pause;

/// What goes wrong, and how often. The same seed and the same order of reads give the same faults; the default is none.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Where the dice start.
    pub seed: u64,
    /// Every read takes a random time up to this.
    pub delay: Duration,
    /// One read in so many comes in two pieces; 0 for never.
    pub split_one_in: u64,
    /// One read in so many fails; 0 for never.
    pub fail_one_in: u64,
    /// Reads that touch one of these ranges fail.
    pub fail: Vec<ByteRange>,
    /// Every file ends after so many bytes.
    pub cut: Option<u64>,
}

/// A backend over vectors.
#[derive(Debug)]
pub struct Memory {
    files: Vec<Vec<u8>>,
    depth: usize,
    faults: Mutex<Faults>,
    reads: AtomicU64, // throws of the dice so far
    slots: AtomicU64,
}

impl Memory {
    /// A lazy backend without faults: waiting copies.
    pub fn new(files: Vec<Vec<u8>>) -> Self {
        let (reads, slots) = (AtomicU64::new(0), AtomicU64::new(0));
        Memory { files, depth: 0, faults: Mutex::new(Faults::default()), reads, slots }
    }

    /// Makes it eager, `depth` reads ahead: submitting copies, waiting takes the delay.
    #[must_use]
    pub fn eager(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// Sets what goes wrong from now on; `Faults::default()` heals.
    pub fn set_faults(&self, faults: Faults) {
        *self.lock_faults() = faults;
    }

    /// Slots handed out so far. A stream that loses none asks for as many as it needs at its start and never again.
    pub fn slots_made(&self) -> u64 {
        self.slots.load(Ordering::Relaxed)
    }

    fn lock_faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the range, or fails, as the dice say.
    fn copy(&self, range: ByteRange, into: &mut [u8]) -> Result<Traffic> {
        let faults = self.lock_faults();
        let throw = mix(faults.seed ^ mix(self.reads.fetch_add(1, Ordering::Relaxed)));
        let hits = |one_in: u64, salt: u64| one_in > 0 && mix(throw ^ salt).is_multiple_of(one_in);
        let failed = |kind, got| Error::new(kind, "read").at(range.offset, range.len, got);
        if hits(faults.fail_one_in, 1) || faults.fail.iter().any(|bad| overlap(bad, &range)) {
            return Err(
                failed(ErrorKind::Read, 0).note(format!("a fault was planned in file {}", range.file.0))
            );
        }
        let Some(file) = self.files.get(range.file.0 as usize) else {
            return Err(failed(ErrorKind::Usage, 0).note(format!("there is no file {}", range.file.0)));
        };
        let length =
            faults.cut.map_or(file.len(), |cut| file.len().min(usize::try_from(cut).unwrap_or(usize::MAX)));
        let start = usize::try_from(range.offset).unwrap_or(usize::MAX).min(length);
        let there = &file[start..length];
        if there.len() < range.len {
            return Err(failed(ErrorKind::Shortened, there.len()).note("the file got shorter"));
        }
        into.copy_from_slice(&there[..range.len]);
        Ok(Traffic { bytes: range.len as u64, reads: 1 + u64::from(hits(faults.split_one_in, 2)) })
    }

    fn fill(&self, mut slot: Slot, range: ByteRange) -> std::result::Result<Filled, Failed> {
        let outcome = match slot.buffer().get_mut(..range.len) {
            Some(room) => self.copy(range, room),
            None => Err(Error::new(ErrorKind::Usage, "read")
                .at(range.offset, range.len, 0)
                .note(format!("the slot holds {} bytes", slot.capacity()))),
        };
        match outcome {
            Ok(traffic) => Ok(Filled::in_slot(range, slot, 0..range.len, traffic)),
            Err(error) => Err(Failed { error, slot: Some(slot) }),
        }
    }

    fn delay(&self) {
        let (longest, seed) = {
            let faults = self.lock_faults();
            (faults.delay, faults.seed)
        };
        if longest > Duration::ZERO {
            let part = mix(seed ^ mix(!self.reads.load(Ordering::Relaxed))) % 1000; // in thousandths
            pause(longest.mul_f64(part as f64 / 1000.0));
        }
    }
}

impl Backend for Memory {
    fn slot(&self, capacity: usize) -> Result<Slot> {
        self.slots.fetch_add(1, Ordering::Relaxed);
        Buffer::new(capacity).map(Slot::new)
    }

    fn submit(&self, slot: Slot, range: ByteRange) -> Ticket {
        if self.depth == 0 {
            return Ticket::unread(range, slot);
        }
        Ticket::over(range, self.fill(slot, range))
    }

    fn wait(&self, ticket: Ticket) -> std::result::Result<Filled, Failed> {
        self.delay();
        ticket.settle(|slot, range| self.fill(slot, range))
    }

    fn release(&self, filled: Filled) -> Slot {
        filled.into_slot()
    }

    fn read(&self, range: ByteRange, into: &mut [u8]) -> Result<Traffic> {
        if into.len() != range.len {
            return Err(Error::new(ErrorKind::Usage, "read")
                .at(range.offset, range.len, 0)
                .note(format!("the memory given is {} bytes long", into.len())));
        }
        self.copy(range, into)
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn name(&self) -> &'static str {
        "memory"
    }

    fn describe(&self) -> String {
        format!("memory files={} depth={}", self.files.len(), self.depth)
    }
}

fn overlap(a: &ByteRange, b: &ByteRange) -> bool {
    let end = |range: &ByteRange| range.offset.saturating_add(range.len as u64);
    a.file == b.file && a.offset < end(b) && b.offset < end(a)
}

/// Scatters a number over 64 bits: the finaliser of splitmix64 (Steele, Lea and Flood, 2014).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
