//! Plain positional reads. Through the page cache they are lazy: the worker that takes a chunk copies it into its slot,
//! and with it into its own core's cache. Direct ones are eager: a few threads keep several reads in flight.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::file::{Source, lookup, open_all, room};
use super::flight::Flight;
use super::{Backend, Failed, Filled, READ_CHUNK, Slot, Ticket};
use crate::ByteRange;
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::stats::Traffic;
use crate::sync::{Condvar, Mutex, lock, wait};

/// Direct reads in flight unless told otherwise: with 512 KiB each as fast as the disk, in 5 MB.
const DEFAULT_DEPTH: usize = 8;

/// Most threads that are started, whatever was asked for: each costs a stack, and no disk needs more.
const MAX_DEPTH: usize = 256;

/// Stack of an I/O thread in bytes: it holds a few locals and the error of a failed read.
const STACK: usize = 128 << 10;

/// The reading backend.
#[derive(Debug)]
pub struct Pread {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>, // none when lazy
    align: usize,
}

#[derive(Debug)]
struct Shared {
    files: Vec<Source>,
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

#[derive(Debug)]
struct Job {
    slot: Slot,
    range: ByteRange,
    flight: Arc<Flight>,
}

impl Pread {
    /// Opens the files for lazy reads through the page cache.
    ///
    /// # Errors
    /// When a file cannot be opened.
    pub fn buffered(paths: &[PathBuf]) -> Result<Self> {
        let shared = Arc::new(Shared::new(open_all(paths, false)?));
        Ok(Pread { shared, threads: Vec::new(), align: 1 })
    }

    /// From now on drops what is read through the page cache from it again: for files that were not in it and would push
    /// out what others have there. Whatever else of them is cached near a chunk goes too.
    #[must_use]
    pub fn dropping_behind(mut self) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.files.iter_mut().for_each(Source::drop_behind); // direct files have nothing to drop, and threads
        }
        self
    }

    /// Opens the files for direct reads, `depth` (8 unless given, 1 to 256) of them in flight on as many threads.
    ///
    /// # Errors
    /// When a file cannot be opened or its filesystem takes no direct reads ([`ErrorKind::NoDirect`]), or when the
    /// system starts no thread.
    pub fn direct(paths: &[PathBuf], depth: Option<usize>) -> Result<Self> {
        let files = open_all(paths, true)?;
        let align = files.iter().map(Source::align).max().unwrap_or(1);
        let mut backend = Pread { shared: Arc::new(Shared::new(files)), threads: Vec::new(), align };
        for number in 0..depth.unwrap_or(DEFAULT_DEPTH).clamp(1, MAX_DEPTH) {
            let shared = Arc::clone(&backend.shared);
            let builder = thread::Builder::new().name(format!("read-{number}")).stack_size(STACK);
            // On an error the threads that run already are joined by the drop of `backend`.
            let started = builder.spawn(move || shared.work()).map_err(|error| {
                Error::new(ErrorKind::NoDirect, "start an I/O thread")
                    .note("ask for a smaller depth, or turn direct reads off")
                    .caused_by(error)
            })?;
            backend.threads.push(started);
        }
        Ok(backend)
    }
}

impl Shared {
    fn new(files: Vec<Source>) -> Self {
        Shared { files, queue: Mutex::new(Queue::default()), filled: Condvar::default() }
    }

    fn fill(&self, mut slot: Slot, range: ByteRange) -> std::result::Result<Filled, Failed> {
        match lookup(&self.files, range).and_then(|source| source.fill(range, slot.buffer())) {
            Ok((place, traffic)) => Ok(Filled::in_slot(range, slot, place, traffic)),
            Err(error) => Err(Failed { error, slot: Some(slot) }),
        }
    }

    /// What an I/O thread does until the backend is dropped.
    fn work(&self) {
        loop {
            let job = {
                let mut queue = lock(&self.queue);
                loop {
                    if queue.closed {
                        return;
                    }
                    match queue.jobs.pop_front() {
                        Some(job) => break job,
                        None => queue = wait(&self.filled, queue),
                    }
                }
            };
            job.flight.land(self.fill(job.slot, job.range));
        }
    }
}

impl Backend for Pread {
    fn slot(&self, capacity: usize) -> Result<Slot> {
        Buffer::new(room(capacity, self.align)).map(Slot::new)
    }

    fn slots(&self, capacity: usize, count: usize) -> Result<Vec<Slot>> {
        let buffers = Buffer::several(room(capacity, self.align), count)?;
        Ok(buffers.into_iter().map(Slot::new).collect())
    }

    fn submit(&self, slot: Slot, range: ByteRange) -> Ticket {
        if self.threads.is_empty() {
            return Ticket::unread(range, slot);
        }
        let flight = Arc::new(Flight::default());
        lock(&self.shared.queue).jobs.push_back(Job { slot, range, flight: Arc::clone(&flight) });
        self.shared.filled.notify_one();
        Ticket::flying(range, flight)
    }

    fn wait(&self, ticket: Ticket) -> std::result::Result<Filled, Failed> {
        match ticket.into_flight() {
            Ok(flight) => flight.wait(),
            Err(ticket) => ticket.settle(|slot, range| self.shared.fill(slot, range)),
        }
    }

    fn release(&self, filled: Filled) -> Slot {
        if let Ok(source) = lookup(&self.shared.files, filled.range()) {
            source.passed(filled.range());
        }
        filled.into_slot()
    }

    fn read(&self, range: ByteRange, into: &mut [u8]) -> Result<Traffic> {
        lookup(&self.shared.files, range)?.fetch(range, into)
    }

    fn begin_pass(&self) -> Result<()> {
        self.shared.files.iter().try_for_each(Source::unchanged)
    }

    fn depth(&self) -> usize {
        self.threads.len()
    }

    fn chunk_bytes(&self) -> usize {
        READ_CHUNK
    }

    fn name(&self) -> &'static str {
        "pread"
    }

    fn direct(&self) -> bool {
        self.align > 1
    }

    fn describe(&self) -> String {
        if self.direct() {
            format!("pread o_direct threads={} align={}", self.threads.len(), self.align)
        } else {
            let drops = self.shared.files.iter().any(Source::drops_behind);
            if drops { "pread buffered drop_behind=yes" } else { "pread buffered" }.to_owned()
        }
    }
}

impl Drop for Pread {
    /// Waits for reads in flight; those still queued are given up, since their tickets can no longer be redeemed.
    fn drop(&mut self) {
        let abandoned = {
            let mut queue = lock(&self.shared.queue);
            queue.closed = true;
            std::mem::take(&mut queue.jobs)
        };
        self.shared.filled.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing in flight any more.
            let _ = thread.join();
        }
        drop(abandoned);
    }
}
