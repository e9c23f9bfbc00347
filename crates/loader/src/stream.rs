//! Walks announced passes through a few slots and lends the bytes of each step to workers.
//!
//! Positions count the steps of all announced passes from 0 and for ever. Reads are submitted in the order of positions,
//! as long as there is a free slot, across the end of a pass into the next announced one. Workers wait for positions;
//! the first to come waits on the backend, the others on a condition variable of their own, or, where the backend is lazy, on
//! the backend for a later position, so that no worker looks on while another copies. A submission wakes those who wait for
//! its position, or one other where the backend is lazy; a read that is over wakes those who wait for it; only an error wakes
//! everybody.
//!
//! Why nobody waits for ever: every worker takes its loans in ascending order of position and holds at most one, and all
//! loans of a pass are taken by somebody. Then the lowest position that is not done either has been submitted, or nothing
//! behind it has, so that all slots are free and it is submitted at once; and nobody who owes it a loan waits for a
//! higher one. `tests/loom.rs` has a model checker try every order.
//!
//! A limit on what stays, [`Stream::keep`], changes nothing of that. Whether a step is read into a slot of its own or into
//! an ordinary one is decided when its position is submitted, in the order of positions. When the limit falls, residents
//! that no position in the window looks at go at once; positions at the window's end for which nothing was read are taken
//! out of it again, and submitted anew, in their turn, by whoever lowered the limit or returns a loan before. The others
//! go with the last loan of the last position that looks at them. So a submitted position stays submitted, or has nothing
//! submitted behind it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::ByteRange;
use crate::backend::{Backend, Failed, Filled, Slot};
use crate::error::{Error, ErrorKind, Result};
use crate::loan::{Loan, Loans};
use crate::schedule::{Schedule, Step};
use crate::state::{Pass, Place, State, Waiter};
use crate::stats::Stats;
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait};

/// A schedule on its way through a backend, shared by workers.
///
/// Positions count the steps of all announced passes from 0 and for ever. So that nobody waits for ever, every worker
/// takes its loans in ascending order of position and holds at most one at a time, and of every announced step somebody
/// takes as many loans as [`Step::loans`] says: a step that is skipped keeps its slot, and everybody behind it waits.
/// A worker that cannot go on calls [`Stream::stop`].
pub struct Stream {
    backend: Arc<dyn Backend>,
    pub(crate) schedule: Schedule,
    slots: usize,    // streamed chunks in memory, and reads in flight, at most
    capacity: usize, // bytes of the longest streamed step
    longest: usize,  // bytes of the longest step of all: residents over the limit are streamed too
    slot_bytes: u64,
    resident_bytes: u64,
    pub(crate) state: Mutex<State>,
}

impl Stream {
    /// A stream over `schedule`, for `workers` threads that hold a loan each. It has workers + [`Backend::depth`] slots,
    /// each as long as the longest streamed step; their memory is touched when they are first used.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for no workers; or the backend's error when there is no memory for the slots.
    pub fn new(backend: Arc<dyn Backend>, schedule: Schedule, workers: usize) -> Result<Self> {
        if workers == 0 {
            return Err(Error::new(ErrorKind::Usage, "start a stream").note("0 workers; wanted at least 1"));
        }
        let slots = workers.saturating_add(backend.depth());
        let (capacity, longest) = (schedule.longest_streamed(), schedule.longest());
        let resident_bytes = schedule.resident_bytes();
        let mut stream = Stream {
            backend,
            state: Mutex::new(State::new(&schedule)),
            schedule,
            slots,
            capacity,
            longest,
            slot_bytes: 0,
            resident_bytes,
        };
        stream.rewind()?;
        stream.slot_bytes = lock(&stream.state).free.iter().map(|slot| slot.capacity() as u64).sum();
        Ok(stream)
    }

    /// Appends one pass of this kind to the order and starts reading it as slots permit. Announce a pass before its
    /// predecessor ends, and reading goes on across the border.
    ///
    /// Returns the position of its first step; the others follow one by one. A backend that finds a file changed breaks
    /// the stream: the next loan says so.
    ///
    /// # Panics
    /// When the schedule has no such kind.
    pub fn announce(&self, kind: usize) -> u64 {
        let length = self.schedule.pass(kind).len() as u64;
        let begun = self.backend.begin_pass();
        let mut state = lock(&self.state);
        if let Err(error) = begun {
            self.break_off(&mut state, error);
        }
        let first = state.end;
        state.passes.push_back(Pass { kind, first });
        state.end += length;
        drop(self.submit(state));
        first
    }

    /// Borrows the bytes of the step at `position`, waiting for them if need be.
    ///
    /// # Errors
    /// When the read failed, or another one has since the last [`Stream::rewind`]: after an error the order cannot be kept
    /// up, so every worker gets it, and only a rewind helps.
    ///
    /// # Panics
    /// When the position has not been announced, is done, or more loans are taken than the step declares.
    pub fn loan(&self, position: u64) -> Result<Loan<'_>> {
        let mut state = lock(&self.state);
        assert!(position < state.end, "position {position} has not been announced; {} have", state.end);
        let lazy = self.backend.depth() == 0;
        let mut since: Option<Instant> = None;
        loop {
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            assert!(position >= state.base, "position {position} is done; the stream is at {}", state.base);
            let step = state.granting(position, &self.schedule);
            if let Some(Place::Ready(filled)) = step.and_then(|_| state.place(position)) {
                let filled = Some(Arc::clone(filled));
                state.entry(position).granted += 1;
                if let Some(since) = since {
                    state.waited += since.elapsed();
                }
                return Ok(Loan { stream: self, position, filled });
            }
            since.get_or_insert_with(Instant::now);
            // In lazy backends a worker that would only look on while another reads does the next read instead.
            let own = state.unread.iter().position(|&unread| unread == position);
            let taken = own.or((lazy && !state.unread.is_empty()).then_some(0));
            let taken = taken.and_then(|index| state.unread.remove(index));
            state = match taken {
                Some(position) => self.fetch(state, position),
                None => {
                    let turn = Arc::new(Condvar::default());
                    state.waiters.push(Waiter { position, turn: Arc::clone(&turn) });
                    let mut state = wait(&turn, state);
                    // Still there only after a wake-up that nobody meant.
                    state.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.turn, &turn));
                    state
                }
            };
        }
    }

    /// Borrows the bytes of all these steps at once, and every loan of theirs: when each of them is a resident that is in
    /// memory and of which nobody has a loan in this pass. `None` when that is not so, and nothing is borrowed then. Nobody
    /// waits here. Taken and returned one by one they cost two workers 1.3 to 1.6 µs a chunk when this was measured, and a token
    /// of 8 billion resident weights has 4,400.
    ///
    /// # Errors
    /// As [`Stream::loan`].
    ///
    /// # Panics
    /// When a position has not been announced, or is done.
    pub fn loan_residents(&self, positions: Range<u64>) -> Result<Option<Loans<'_>>> {
        let mut state = lock(&self.state);
        let (first, end) = (positions.start, positions.end);
        assert!(end <= state.end, "positions to {end} have not been announced; {} have", state.end);
        assert!(first >= state.base, "position {first} is done; the stream is at {}", state.base);
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let filled = state.grant_residents(positions, &self.schedule);
        Ok(filled.map(|filled| Loans { stream: self, first, filled }))
    }

    /// Reads `range` now, beside the schedule: what depends on data. `into` must be as long as the range.
    ///
    /// # Errors
    /// Those of [`Backend::read`].
    pub fn read(&self, range: ByteRange, into: &mut [u8]) -> Result<()> {
        let traffic = self.backend.read(range, into)?;
        lock(&self.state).traffic += traffic;
        Ok(())
    }

    /// Forgets every announced position that is not done, after the end of a text or an error in mid-pass: waits for reads
    /// in flight, takes all slots back and mends a broken stream. Residents that are there stay. Announce starts afresh;
    /// positions go on counting.
    ///
    /// # Errors
    /// When slots were lost with leaked loans and there is no memory for new ones.
    pub fn rewind(&mut self) -> Result<()> {
        self.drain();
        let mut state = lock(&self.state);
        state.made = state.free.len();
        if self.capacity > 0 {
            let slots = self.backend.slots(self.capacity, self.slots.saturating_sub(state.made))?;
            slots.iter().for_each(|slot| self.count(&mut state, slot, self.capacity));
            state.free.extend(slots);
        }
        state.broken = None;
        Ok(())
    }

    /// Lets at most `bytes` of the residents stay in memory from now on, and those spread evenly over the pass
    /// ([`Schedule::stays`]). The others are given back to the system, at once unless a position on its way needs them, and
    /// streamed through ordinary slots, which may be made longer for it. When the limit rises again they are kept again as
    /// they are met. May be called at any time, from any thread; what is lent stays as it is.
    pub fn keep(&self, bytes: u64) {
        let mut state = lock(&self.state);
        if state.limit == bytes {
            return;
        }
        state.limit = bytes;
        let given = state.give_back_all(&self.schedule);
        let (fit, long) =
            std::mem::take(&mut state.free).into_iter().partition(|slot| !self.too_long(&state, slot));
        state.free = fit;
        state.made -= Vec::len(&long);
        drop(self.submit(state));
        // Unmapping takes a while: without the lock, and after those who wait for what was taken off the window's end.
        drop::<Vec<Slot>>(long);
        for filled in given {
            drop(self.call(|backend| backend.release(filled)));
        }
    }

    /// What [`Stream::keep`] was last told; 2^64 - 1 before that.
    pub fn limit(&self) -> u64 {
        lock(&self.state).limit
    }

    /// Bytes of residents that are in memory now, or on their way.
    pub fn kept_bytes(&self) -> u64 {
        lock(&self.state).kept()
    }

    /// Breaks the stream from outside, so that workers who wait for loans get `error` instead: a worker failed at
    /// something else, or the user interrupted. [`Stream::rewind`] mends it.
    pub fn stop(&self, error: Error) {
        self.break_off(&mut lock(&self.state), error);
    }

    /// What has been read and waited for so far.
    pub fn stats(&self) -> Stats {
        let state = lock(&self.state);
        Stats {
            bytes_read: state.traffic.bytes,
            reads: state.traffic.reads,
            wait_s: state.waited.as_secs_f64(),
            passes: state.passes_done,
        }
    }

    /// The order this stream keeps to.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// How bytes arrive.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// [`Backend::describe`] and the slots, for people.
    pub fn describe(&self) -> String {
        format!("{} slots={}x{}", self.backend.describe(), self.slots, self.capacity)
    }

    /// Bytes of memory of all slots for streamed steps, alignment included; 0 for backends that map the file. Slots that
    /// [`Stream::keep`] makes longer for a while are counted as they were.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Bytes that stay for the whole run, unless [`Stream::keep`] says less.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Bytes that every pass of this kind reads, without padding.
    ///
    /// # Panics
    /// When the schedule has no such kind.
    pub fn streamed_bytes(&self, kind: usize) -> u64 {
        self.schedule.streamed_bytes(kind)
    }

    /// Waits on the backend for a position that was taken from the unread ones, without the lock.
    fn fetch<'a>(&'a self, mut state: MutexGuard<'a, State>, position: u64) -> MutexGuard<'a, State> {
        let place = state.place(position).map(|place| std::mem::replace(place, Place::Awaited));
        if let Some(Place::Submitted(ticket)) = place {
            drop(state);
            let outcome = self.call(|backend| backend.wait(*ticket));
            state = lock(&self.state);
            self.land(&mut state, position, outcome);
        }
        self.submit(state)
    }

    /// Submits positions in order while there are slots, without the lock: a submission may copy a whole chunk that is in
    /// the page cache, and meanwhile the others go on.
    pub(crate) fn submit<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        loop {
            match self.next(&mut state) {
                Ok(Some((position, slot, range))) => {
                    drop(state);
                    let ticket = self.call(|backend| backend.submit(slot, range));
                    state = lock(&self.state);
                    *state.place(position).expect("nobody else finishes it") =
                        Place::Submitted(Box::new(ticket));
                    state.unread.push_back(position);
                    // Whoever waits for it reads it; with a lazy backend another one may.
                    if state.call(position) == 0 && self.backend.depth() == 0 {
                        state.call_first();
                    }
                }
                Ok(None) => return state,
                Err(error) => {
                    self.break_off(&mut state, error);
                    return state;
                }
            }
        }
    }

    /// The next position to submit, entered into the window; `None` when there is nothing to do or no room.
    fn next(&self, state: &mut State) -> Result<Option<(u64, Slot, ByteRange)>> {
        loop {
            // Residents that are there need no slot, so only this bounds the window. One pass ahead is as far as bytes of
            // this pass can lie.
            let room = state.window.len() < self.schedule.longest_pass();
            let Some((position, step)) = state.next(&self.schedule) else {
                return Ok(None);
            };
            if !room || state.broken.is_some() {
                return Ok(None);
            }
            let Step { range, .. } = self.schedule.steps()[step as usize];
            let stays = self.schedule.stays(step, state.limit);
            if stays && state.enter_resident(step) {
                // A waiter may have come before this position was in the window.
                state.call(position);
                continue;
            }
            if state.in_flight >= self.slots {
                return Ok(None);
            }
            let slot = if stays {
                let slot = self.backend.slot(range.len)?;
                state.admit(step, &self.schedule);
                slot
            } else {
                let Some(slot) = self.free_slot(state, range.len)? else {
                    return Ok(None);
                };
                state.enter(step, Place::Submitting);
                slot
            };
            state.in_flight += 1;
            return Ok(Some((position, slot, range)));
        }
    }

    /// A free slot for a streamed step of `len` bytes; `None` while all are in use. Steps longer than any that is streamed
    /// for good come when residents are over the limit: only then slots are made that long, one after the other.
    fn free_slot(&self, state: &mut State, len: usize) -> Result<Option<Slot>> {
        let ordinary = len <= self.capacity;
        match state.free.pop() {
            Some(slot) if ordinary || slot.capacity() >= state.long => return Ok(Some(slot)),
            Some(_) => state.made -= 1, // too short
            None if state.made >= self.slots => return Ok(None),
            None => {}
        }
        self.make(state, if ordinary { self.capacity } else { self.longest }).map(Some)
    }

    fn make(&self, state: &mut State, capacity: usize) -> Result<Slot> {
        let slot = self.backend.slot(capacity)?;
        self.count(state, &slot, capacity);
        Ok(slot)
    }

    /// Counts a slot that was made for `capacity` bytes.
    fn count(&self, state: &mut State, slot: &Slot, capacity: usize) {
        state.made += 1;
        if capacity == self.longest {
            state.long = slot.capacity();
        }
    }

    /// Whether a slot was made for residents over the limit, and there are none any more.
    fn too_long(&self, state: &State, slot: &Slot) -> bool {
        self.longest > self.capacity && slot.capacity() >= state.long && state.limit >= self.resident_bytes
    }

    /// Takes back a slot that served a streamed step.
    pub(crate) fn put_back(&self, state: &mut State, slot: Slot) {
        if self.too_long(state, &slot) {
            state.made -= 1;
        } else {
            state.free.push(slot);
        }
    }

    /// Books the outcome of the read of `position` and wakes those who wait for it.
    fn land(&self, state: &mut State, position: u64, outcome: std::result::Result<Filled, Failed>) {
        state.in_flight -= 1;
        match outcome {
            Ok(filled) => {
                state.traffic += filled.traffic();
                *state.place(position).expect("nobody else finishes it") = Place::Ready(Arc::new(filled));
                state.call(position);
            }
            Err(Failed { error, slot }) => {
                // A resident's slot goes too: a rewound stream makes a new one.
                if state.fail(position, &self.schedule)
                    && let Some(slot) = slot
                {
                    self.put_back(state, slot);
                }
                self.break_off(state, error);
            }
        }
    }

    /// Calls the backend, without the lock. Should it panic, the stream breaks: nobody would finish this read, and the
    /// others would wait for it for ever.
    pub(crate) fn call<R>(&self, call: impl FnOnce(&dyn Backend) -> R) -> R {
        let _unwinding = Unwinding(self);
        call(&*self.backend)
    }

    /// The first error stays: later ones are mostly its consequences.
    pub(crate) fn break_off(&self, state: &mut State, error: Error) {
        state.broken.get_or_insert(error);
        state.call_all();
    }

    /// Empties the window and the order; every slot that is not lost is free afterwards. Needs every worker gone.
    fn drain(&mut self) {
        let mut state = lock(&self.state);
        let (window, unready) = state.forget(&self.schedule);
        for place in window {
            let slot = match place {
                Place::Submitted(ticket) => self.backend.cancel(*ticket),
                // Not the only owner: a leaked loan still points there, so this slot is lost.
                Place::Ready(filled) => {
                    Arc::try_unwrap(filled).ok().map(|filled| self.backend.release(filled))
                }
                _ => None,
            };
            if let Some(slot) = slot {
                self.put_back(&mut state, slot);
            }
        }
        for place in unready {
            if let Place::Submitted(ticket) = place {
                drop(self.backend.cancel(*ticket));
            }
        }
        for filled in state.give_back_all(&self.schedule) {
            drop(self.backend.release(filled));
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("backend", &self.backend.describe()).finish_non_exhaustive()
    }
}

impl Drop for Stream {
    /// Waits for reads in flight.
    fn drop(&mut self) {
        self.drain();
    }
}

/// Breaks the stream when it goes out of scope in a panic.
struct Unwinding<'a>(&'a Stream);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_off(&mut lock(&self.0.state), panicked());
        }
    }
}

pub(crate) fn panicked() -> Error {
    Error::new(ErrorKind::Stopped, "go on with the pass").note("a worker panicked")
}
