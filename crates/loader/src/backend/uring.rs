//! io_uring: several reads in flight without threads, through the page cache or round it.
//!
//! Two locks. `table` holds what is in flight, and whoever has it may take completions while nobody is in the kernel;
//! `submission` is held to put entries into the submission queue. They are taken in this order. Of the workers that wait,
//! the first enters the kernel, without a lock, and afterwards leaves every outcome it finds with its flight, and wakes whom
//! that is for; when it has its own it wakes one more, to go next. They must not take completions meanwhile: the one on its way into the kernel waits there for a
//! completion to come, and if its own was the last in flight and somebody took it, none ever would.
//!
//! The kernel writes to a buffer until its completion has been taken. Until then the buffer sits in `table`, and dropping
//! the backend waits.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;

use super::file::{Progress, Source, lookup, open_all, room};
use super::flight::Flight;
use super::seats::Registered;
use super::{Backend, Failed, Filled, READ_CHUNK, Slot, Ticket};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::stats::Traffic;
use crate::sync::{Mutex, MutexGuard, lock, pause, wait};
use crate::{ByteRange, FileIndex};

/// Direct reads in flight unless told otherwise: 512 KiB each, 5 MB with what workers hold. The loader alone reads 2.59 GB/s
/// that way here, 2.26 with half as many.
const DIRECT_DEPTH: usize = 8;

/// Direct reads in flight where there is room for more: 2.76 GB/s with 16 and 2.86 with 32 (medians of 6, alternated with the
/// 2.59 of 8).
const MOST_DIRECT: u64 = 32;

/// Direct reads that `room` bytes have place for, at least the usual number.
pub(crate) fn depth_in(room: u64) -> usize {
    (room / READ_CHUNK as u64).clamp(DIRECT_DEPTH as u64, MOST_DIRECT) as usize
}

/// Reads through the page cache in flight unless told otherwise. Cached chunks are copied on submission, so what is ahead
/// only falls out of the cache again: with 1, 2, 4, 8 chunks of 256 KiB ahead 22 to 24 GB/s, with 8 of 4 MiB 16.
const BUFFERED_DEPTH: usize = 2;

/// Most reads ahead that are granted, whatever was asked for: each owns a slot, and no disk needs more.
const MAX_DEPTH: usize = 256;

/// Registered slots beyond those of the reads ahead: each worker holds one. What finds no place is read plainly.
const SEATS_BESIDE: usize = 64;

/// Times that one read is begun again when the kernel gives it up for reasons of its own (an interruption, the end of
/// the thread that submitted it, want of memory); then something is wrong that trying does not mend.
const RETRIES: u32 = 100;

/// Time to wait when the kernel has no resources to take a submission and nothing is in flight that would free some.
const BREATHER: Duration = Duration::from_millis(1);

/// The io_uring backend.
pub struct Uring {
    table: Mutex<Table>,
    submission: Mutex<()>,
    ring: Arc<Registered>,
    files: Vec<Source>,
    depth: usize,
    align: usize,
}

#[derive(Default)]
struct Table {
    reads: Vec<Option<Read>>,      // by user_data
    vacant: Vec<usize>,            // indices into `reads`
    in_ring: usize,                // entries handed to the ring whose completion has not been taken
    backlog: VecDeque<usize>,      // reads that the ring had no room for
    reaping: bool,                 // a waiter is in the kernel
    asleep: VecDeque<Arc<Flight>>, // what other waiters wait for
}

/// A read and the memory it goes to.
struct Read {
    slot: Slot,
    range: ByteRange,
    progress: Progress,
    retries: u32,
    flight: Arc<Flight>,
}

impl Uring {
    /// Opens the files for reads through the page cache, or round it when `direct`, `depth` of them (1 to 256; unless
    /// given 2 through the cache, 8 round it) ahead of the workers.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with the likely cause when this process may not use io_uring; [`ErrorKind::NoDirect`]
    /// when a filesystem takes no direct reads; when a file cannot be opened.
    pub fn open(paths: &[PathBuf], direct: bool, depth: Option<usize>) -> Result<Self> {
        let depth = depth.unwrap_or(if direct { DIRECT_DEPTH } else { BUFFERED_DEPTH }).clamp(1, MAX_DEPTH);
        // Room for the workers' own reads beside those ahead; what does not fit waits its turn here.
        let entries = (2 * depth).next_power_of_two().max(16);
        let ring = IoUring::new(entries as u32).map_err(unavailable)?;
        let mut probe = Probe::new();
        let probed = ring.submitter().register_probe(&mut probe);
        if probed.is_err() || !probe.is_supported(opcode::Read::CODE) {
            return Err(Error::new(ErrorKind::Unavailable, "use io_uring").note(
                "this kernel's has no plain reads (it is older than Linux 5.6); choose the backend pread",
            ));
        }
        let files = open_all(paths, direct)?;
        let align = files.iter().map(Source::align).max().unwrap_or(1);
        let descriptors: Vec<_> = files.iter().map(|source| source.file().as_raw_fd()).collect();
        let ring = Arc::new(Registered::new(ring, &descriptors, (depth + SEATS_BESIDE) as u16));
        let (table, submission) = (Mutex::default(), Mutex::default());
        Ok(Uring { table, submission, ring, files, depth, align })
    }

    /// From now on drops what is read through the page cache from it again: for files that were not in it and would push
    /// out what others have there. Whatever else of them is cached near a chunk goes too.
    #[must_use]
    pub fn dropping_behind(mut self) -> Self {
        self.files.iter_mut().for_each(Source::drop_behind);
        self
    }

    /// Puts the next piece of a read into the submission queue, or the read into the backlog when the ring is full.
    fn push(&self, table: &mut Table, index: usize) {
        let Some(read) = table.reads[index].as_mut() else {
            return;
        };
        let Some((offset, piece)) = read.progress.next() else {
            return;
        };
        let entry = self.entry(read.range.file, &mut read.slot, piece, offset).user_data(index as u64);
        let alone = lock(&self.submission);
        // SAFETY: `alone` makes this the only use of the submission queue.
        let mut queue = unsafe { self.ring.ring().submission_shared() };
        let full = table.in_ring >= self.ring.ring().params().sq_entries() as usize;
        // SAFETY: the file is open as long as `self`, which also keeps the ring's own handles on it in place. The memory is a mapping of its own whose address does not change; it
        // stays in `table.reads[index]`, untouched, until the completion with this index has been taken.
        if full || unsafe { queue.push(&entry) }.is_err() {
            table.backlog.push_back(index);
        } else {
            table.in_ring += 1;
        }
        drop(queue); // publishes the entry, still alone
        drop(alone);
    }

    /// A read of `piece` of the slot from `offset`, by whatever of it is registered.
    fn entry(&self, file: FileIndex, slot: &mut Slot, piece: Range<usize>, offset: u64) -> squeue::Entry {
        let place = types::Fixed(u32::from(file.0));
        let open = types::Fd(self.files[file.0 as usize].file().as_raw_fd());
        let seat = slot.seat.as_ref().and_then(|seat| seat.index(&self.ring));
        let room = &mut slot.buffer()[piece];
        let (to, len) = (room.as_mut_ptr(), room.len() as u32); // a piece is at most 1 GiB long, which fits
        match (self.ring.files(), seat) {
            (true, Some(seat)) => opcode::ReadFixed::new(place, to, len, seat).offset(offset).build(),
            (true, None) => opcode::Read::new(place, to, len).offset(offset).build(),
            (false, Some(seat)) => opcode::ReadFixed::new(open, to, len, seat).offset(offset).build(),
            (false, None) => opcode::Read::new(open, to, len).offset(offset).build(),
        }
    }

    /// Takes every completion there is; true when that put new entries into the queue.
    fn reap(&self, table: &mut Table) -> bool {
        let mut again = false;
        // SAFETY: `table` is borrowed from its lock, which makes this the only use of the completion queue.
        let completions: Vec<(usize, i32)> = unsafe { self.ring.ring().completion_shared() }
            .map(|completion| (completion.user_data() as usize, completion.result()))
            .collect();
        for (index, result) in completions {
            table.in_ring -= 1;
            let Some(read) = table.reads.get_mut(index).and_then(Option::as_mut) else {
                continue;
            };
            match self.book(read, result) {
                None => {
                    self.push(table, index);
                    again = true;
                }
                Some(outcome) => table.land(index, outcome),
            }
        }
        while table.in_ring < self.ring.ring().params().sq_entries() as usize {
            let Some(index) = table.backlog.pop_front() else {
                break;
            };
            self.push(table, index);
            again = true;
        }
        again
    }

    /// Books the result of one piece; `None` when the read goes on.
    fn book(&self, read: &mut Read, result: i32) -> Option<std::result::Result<(), Error>> {
        let source = &self.files[read.range.file.0 as usize];
        let Ok(got) = usize::try_from(result) else {
            let errno = Errno::from_raw_os_error(-result);
            read.retries += 1;
            if matches!(errno, Errno::INTR | Errno::AGAIN | Errno::CANCELED) && read.retries <= RETRIES {
                return None;
            }
            let ByteRange { offset, len, .. } = read.range;
            let error = source.read_error(offset, len, read.progress.got()).caused_by(errno);
            return Some(Err(source.advise(error)));
        };
        if !read.progress.advance(got) {
            return Some(Err(source.shortened(read.range, read.progress.got())));
        }
        match read.progress.next() {
            Some(_) => None,
            None => Some(Ok(())),
        }
    }

    /// Hands the queue to the kernel. What it does not take now stays queued, and the next waiter offers it again.
    fn offer(&self) {
        let _ = self.ring.ring().submit();
    }

    /// One turn of waiting in the kernel, without the lock. Something must be in the ring.
    fn enter<'a>(&'a self, mut table: MutexGuard<'a, Table>) -> (MutexGuard<'a, Table>, io::Result<()>) {
        table.reaping = true;
        drop(table);
        let entered = match self.ring.ring().submit_and_wait(1) {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR) => Ok(()),
                // No resources, or completions that must be taken first. If neither helps by itself, time may.
                Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                    pause(BREATHER);
                    Ok(())
                }
                _ => Err(error),
            },
        };
        table = lock(&self.table);
        table.reaping = false;
        if self.reap(&mut table) {
            self.offer();
        }
        (table, entered)
    }
}

impl Table {
    /// Takes a read out and leaves its outcome for the ticket's holder.
    fn land(&mut self, index: usize, outcome: std::result::Result<(), Error>) {
        let Some(Read { slot, range, progress, flight, .. }) = self.reads[index].take() else {
            return;
        };
        self.vacant.push(index);
        flight.land(match outcome {
            Ok(()) => Ok(Filled::in_slot(range, slot, progress.place(), progress.traffic())),
            Err(error) => Err(Failed { error, slot: Some(slot) }),
        });
        flight.turn.notify_one();
    }

    /// Who has been in the kernel, and need not go again, sends another waiter there.
    fn hand_over(&mut self) {
        if !self.reaping
            && let Some(flight) = self.asleep.pop_front()
        {
            flight.turn.notify_one();
        }
    }
}

impl Uring {
    fn seated(&self, mut buffer: Buffer) -> Slot {
        let seat = self.ring.seat(&mut buffer);
        Slot { seat, buffer }
    }
}

impl Backend for Uring {
    fn slot(&self, capacity: usize) -> Result<Slot> {
        Buffer::new(room(capacity, self.align)).map(|buffer| self.seated(buffer))
    }

    fn slots(&self, capacity: usize, count: usize) -> Result<Vec<Slot>> {
        let buffers = Buffer::several(room(capacity, self.align), count)?;
        Ok(buffers.into_iter().map(|buffer| self.seated(buffer)).collect())
    }

    fn submit(&self, slot: Slot, range: ByteRange) -> Ticket {
        let planned = lookup(&self.files, range).and_then(|source| source.plan(range, slot.capacity()));
        let progress = match planned {
            Ok(progress) => progress,
            Err(error) => {
                return Ticket::over(range, Err(Failed { error, slot: Some(slot) }));
            }
        };
        if progress.next().is_none() {
            let filled = Filled::in_slot(range, slot, progress.place(), progress.traffic());
            return Ticket::over(range, Ok(filled));
        }
        let flight = Arc::new(Flight::default());
        let read = Read { slot, range, progress, retries: 0, flight: Arc::clone(&flight) };
        {
            let mut table = lock(&self.table);
            let index = table.vacant.pop().unwrap_or(table.reads.len());
            if index == table.reads.len() {
                table.reads.push(None);
            }
            table.reads[index] = Some(read);
            self.push(&mut table, index);
        }
        // Without a lock: a chunk that is in the page cache is copied in this call.
        self.offer();
        Ticket::flying(range, flight)
    }

    fn wait(&self, ticket: Ticket) -> std::result::Result<Filled, Failed> {
        let range = ticket.range();
        let flight = match ticket.into_flight() {
            Ok(flight) => flight,
            Err(ticket) => {
                let unread = |slot, _| {
                    let error = Error::new(ErrorKind::Usage, "read").note("the ticket is another backend's");
                    Err(Failed { error, slot: Some(slot) })
                };
                return ticket.settle(unread);
            }
        };
        let mut table = lock(&self.table);
        if !table.reaping && self.reap(&mut table) {
            self.offer();
        }
        loop {
            if let Some(outcome) = flight.take() {
                table.hand_over();
                return outcome;
            }
            if table.reaping {
                table.asleep.push_back(Arc::clone(&flight));
                table = wait(&flight.turn, table);
                table.asleep.retain(|other| !Arc::ptr_eq(other, &flight));
                continue;
            }
            let failed = if table.in_ring == 0 {
                // Never waits for nothing: what is not in the ring will not come out of it.
                Some(Error::new(ErrorKind::Usage, "read").note("the ticket is another backend's"))
            } else {
                let (back, entered) = self.enter(table);
                table = back;
                entered.err().map(|error| Error::new(ErrorKind::Read, "wait for io_uring").caused_by(error))
            };
            if let Some(error) = failed {
                // The kernel may still write to the slot, so it stays in the table and is lost to the caller.
                let error = error.at(range.offset, range.len, 0);
                table.hand_over();
                return flight.take().unwrap_or(Err(Failed { error, slot: None }));
            }
        }
    }

    fn release(&self, filled: Filled) -> Slot {
        if let Ok(source) = lookup(&self.files, filled.range()) {
            source.passed(filled.range());
        }
        filled.into_slot()
    }

    fn read(&self, range: ByteRange, into: &mut [u8]) -> Result<Traffic> {
        lookup(&self.files, range)?.fetch(range, into)
    }

    fn begin_pass(&self) -> Result<()> {
        self.files.iter().try_for_each(Source::unchanged)
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn chunk_bytes(&self) -> usize {
        READ_CHUNK
    }

    fn name(&self) -> &'static str {
        "uring"
    }

    fn direct(&self) -> bool {
        self.align > 1
    }

    fn describe(&self) -> String {
        let how = if self.direct() { "o_direct" } else { "buffered" };
        let drops = if self.files.iter().any(Source::drops_behind) { " drop_behind=yes" } else { "" };
        format!("uring {how} qd={} registered={}{drops}", self.depth, self.ring.describe())
    }
}

impl Drop for Uring {
    /// Waits for reads in flight. Should the kernel refuse to say when they are over, their memory is leaked, since it may
    /// still be written to.
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        table.backlog.clear();
        while table.in_ring > 0 {
            let (back, entered) = self.enter(table);
            table = back;
            if entered.is_err() {
                std::mem::forget(std::mem::take(&mut table.reads));
                return;
            }
        }
    }
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring")
            .field("files", &self.files)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

/// Says why there is no ring, as far as the error and the machine's settings tell.
fn unavailable(error: io::Error) -> Error {
    let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let cause = match (Errno::from_io_error(&error), sysctl.trim()) {
        (Some(Errno::PERM | Errno::ACCESS), "1" | "2") => "sysctl kernel.io_uring_disabled forbids it",
        (Some(Errno::PERM | Errno::ACCESS), _) => {
            "most likely the container's seccomp profile forbids it, or sysctl kernel.io_uring_disabled"
        }
        (Some(Errno::NOSYS), _) => "the kernel was built without it, or a sandbox hides it",
        (Some(Errno::NOMEM), _) => "the limit on locked memory (ulimit -l) is too small, or memory is short",
        _ => "the kernel would not set it up",
    };
    Error::new(ErrorKind::Unavailable, "use io_uring")
        .note(format!("{cause}; choose the backend pread"))
        .caused_by(error)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// A waiter on its way into the kernel waits there for a completion. Were another to take what has come meanwhile,
    /// and were that all there was in flight, it would sleep for ever.
    #[test]
    fn nobody_takes_completions_from_a_waiter_on_its_way_into_the_kernel() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 8192]).unwrap();
        let Ok(backend) = Uring::open(&[file.path().to_owned()], false, None) else {
            return; // forbidden here; the contract tests say so
        };
        let read = |offset| {
            let file = FileIndex(0);
            let len = 4096;
            backend.submit(backend.slot(len).unwrap(), ByteRange { file, offset, len })
        };
        // Both completions are there or will be soon; the first waiter has decided to go and get them.
        let (first, second) = (read(0), read(4096));
        lock(&backend.table).reaping = true;
        thread::scope(|scope| {
            let (say, hear) = mpsc::channel();
            let backend = &backend;
            scope.spawn(move || say.send(backend.wait(second).is_ok()));
            let early = hear.recv_timeout(Duration::from_millis(100)).is_ok();
            let in_ring = lock(&backend.table).in_ring;
            // Before any assertion, as a scope joins its threads: the first waiter arrives in the kernel.
            if in_ring > 0 {
                let (table, entered) = backend.enter(lock(&backend.table));
                drop(table);
                entered.unwrap();
            }
            assert!(!early && in_ring == 2, "the second waiter took completions: {in_ring} of 2 left");
            assert!(backend.wait(first).is_ok());
            assert!(hear.recv().unwrap());
        });
    }
    /// A seat stands for one buffer only: it is given up with its slot, means nothing to another ring, and may outlive its
    /// backend. Bytes are right all the same.
    #[test]
    fn seats_come_and_go_with_slots() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 8192]).unwrap();
        let open = || Uring::open(&[file.path().to_owned()], false, Some(1));
        let (Ok(one), Ok(other)) = (open(), open()) else {
            return; // forbidden here; the contract tests say so
        };
        let vacant = || one.ring.vacant();
        let places = vacant();
        let mut slots: Vec<Slot> = (0..places + 3).map(|_| one.slot(4096).unwrap()).collect();
        let seated = slots.iter().filter(|slot| slot.seat.is_some()).count();
        assert_eq!(places - vacant(), seated, "{}", one.describe());
        let range = ByteRange { file: FileIndex(0), offset: 1, len: 4096 };
        for backend in [&one, &other] {
            for slot in &mut slots {
                slot.buffer().fill(0);
                let filled = backend.wait(backend.submit(std::mem::take(slot), range)).unwrap();
                assert!(filled.iter().all(|&byte| byte == 7));
                *slot = backend.release(filled);
            }
        }
        slots.truncate(1);
        assert_eq!(vacant(), places - slots.iter().filter(|slot| slot.seat.is_some()).count());
        drop(one);
        drop(slots);
    }
}
