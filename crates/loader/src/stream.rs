//! Walks announced passes through a few slots and lends the bytes of each step to workers.
//!
//! Positions count the steps of all announced passes from 0 and for ever. Reads are submitted in the order of positions,
//! as long as there is a free slot, across the end of a pass into the next announced one. Workers wait for positions;
//! the first to come waits on the backend, the others on the condition variable, or, where the backend is lazy, on the
//! backend for a later position, so that no worker looks on while another copies.
//!
//! Why nobody waits for ever: every worker takes its loans in ascending order of position and holds at most one, and all
//! loans of a pass are taken by somebody. Then the lowest position that is not done either has been submitted, or nothing
//! behind it has, so that all slots are free and it is submitted at once; and nobody who owes it a loan waits for a
//! higher one. `tests/loom.rs` has a model checker try every order.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ByteRange;
use crate::backend::{Backend, Failed, Filled, Slot, Ticket};
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Schedule, Step};
use crate::stats::{Stats, Traffic};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait};

/// A schedule on its way through a backend, shared by workers.
///
/// Positions count the steps of all announced passes from 0 and for ever. So that nobody waits for ever, every worker
/// takes its loans in ascending order of position and holds at most one at a time, and of every announced step somebody
/// takes as many loans as [`Step::loans`] says: a step that is skipped keeps its slot, and everybody behind it waits.
/// A worker that cannot go on calls [`Stream::stop`].
pub struct Stream {
    backend: Arc<dyn Backend>,
    schedule: Schedule,
    slots: usize,    // streamed chunks in memory, and reads in flight, at most
    capacity: usize, // bytes of the longest streamed step
    slot_bytes: u64,
    state: Mutex<State>,
    changed: Condvar, // a read was submitted or is over, or the stream broke
}

#[derive(Default)]
struct State {
    passes: VecDeque<Pass>,  // announced and not yet done, oldest first
    base: u64,               // position of the window's first entry: everything before is done
    window: VecDeque<Entry>, // positions that have been submitted, `base` onwards
    end: u64,                // first position that nobody has announced
    free: Vec<Slot>,
    residents: BTreeMap<u32, Place>, // by step; none until first met
    unread: VecDeque<(u64, u32)>,    // positions and steps whose ticket nobody waits for yet
    in_flight: usize,                // submitted, or about to be, and not there yet
    broken: Option<Error>,           // given to everybody until the stream is rewound
    traffic: Traffic,
    waited: Duration,
    passes_done: u64,
}

struct Pass {
    kind: usize,
    first: u64,
}

struct Entry {
    step: u32,
    granted: u32,
    returned: u32,
    place: Place, // of a resident step: `Gone`, its bytes are with the residents
}

/// Where the bytes of a step are.
enum Place {
    /// A worker is handing them to the backend.
    Submitting,
    Submitted(Ticket),
    /// A worker waits on the backend.
    Awaited,
    Ready(Arc<Filled>),
    /// Not here: done, failed, or resident.
    Gone,
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
        let capacity = schedule.longest_streamed();
        let mut stream = Stream {
            backend,
            schedule,
            slots,
            capacity,
            slot_bytes: 0,
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        stream.rewind()?;
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
            if let Some(Place::Ready(filled)) = step.map(|step| state.place(position, step)) {
                let filled = Some(Arc::clone(filled));
                state.entry(position).granted += 1;
                if let Some(since) = since {
                    state.waited += since.elapsed();
                }
                return Ok(Loan { stream: self, position, filled });
            }
            since.get_or_insert_with(Instant::now);
            // In lazy backends a worker that would only look on while another reads does the next read instead.
            let own = state.unread.iter().position(|&(unread, _)| unread == position);
            let taken = own.or((lazy && !state.unread.is_empty()).then_some(0));
            let taken = taken.and_then(|index| state.unread.remove(index));
            state = match taken {
                Some((position, step)) => self.fetch(state, position, step),
                None => wait(&self.changed, state),
            };
        }
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
        while state.free.len() < self.slots && self.capacity > 0 {
            let slot = self.backend.slot(self.capacity)?;
            state.free.push(slot);
        }
        state.broken = None;
        self.slot_bytes = state.free.iter().map(|slot| slot.capacity() as u64).sum();
        Ok(())
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

    /// Bytes of memory of all slots for streamed steps, alignment included; 0 for backends that map the file.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Bytes that stay for the whole run.
    pub fn resident_bytes(&self) -> u64 {
        self.schedule.resident_bytes()
    }

    /// Bytes that every pass of this kind reads, without padding.
    ///
    /// # Panics
    /// When the schedule has no such kind.
    pub fn streamed_bytes(&self, kind: usize) -> u64 {
        self.schedule.streamed_bytes(kind)
    }

    /// Waits on the backend for a position that was taken from the unread ones, without the lock.
    fn fetch<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        position: u64,
        step: u32,
    ) -> MutexGuard<'a, State> {
        if let Place::Submitted(ticket) = std::mem::replace(state.place(position, step), Place::Awaited) {
            drop(state);
            let outcome = self.call(|backend| backend.wait(ticket));
            state = lock(&self.state);
            self.land(&mut state, position, step, outcome);
        }
        self.submit(state)
    }

    /// Submits positions in order while there are slots, without the lock: a submission may copy a whole chunk that is in
    /// the page cache, and meanwhile the others go on.
    fn submit<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        loop {
            match self.next(&mut state) {
                Ok(Some((position, step, slot, range))) => {
                    drop(state);
                    let ticket = self.call(|backend| backend.submit(slot, range));
                    state = lock(&self.state);
                    *state.place(position, step) = Place::Submitted(ticket);
                    state.unread.push_back((position, step));
                    self.changed.notify_all();
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
    fn next(&self, state: &mut State) -> Result<Option<(u64, u32, Slot, ByteRange)>> {
        loop {
            let position = state.base + state.window.len() as u64;
            // Residents that are there need no slot, so only this bounds the window. One pass ahead is as far as bytes of
            // this pass can lie.
            let room = state.window.len() < self.schedule.longest_pass();
            if position == state.end || !room || state.broken.is_some() {
                return Ok(None);
            }
            let step = state.step_at(position, &self.schedule);
            let Step { range, resident, .. } = self.schedule.steps()[step as usize];
            let met = resident && state.residents.contains_key(&step);
            let slot = if met {
                None
            } else if state.in_flight >= self.slots {
                return Ok(None);
            } else if resident {
                Some(self.backend.slot(range.len)?)
            } else {
                match state.free.pop() {
                    Some(slot) => Some(slot),
                    None => return Ok(None),
                }
            };
            let place = if resident { Place::Gone } else { Place::Submitting };
            state.window.push_back(Entry { step, granted: 0, returned: 0, place });
            if let Some(slot) = slot {
                if resident {
                    state.residents.insert(step, Place::Submitting);
                }
                state.in_flight += 1;
                return Ok(Some((position, step, slot, range)));
            }
            // A waiter may have come before this position was in the window.
            self.changed.notify_all();
        }
    }

    /// Books the outcome of the read of `position` and wakes everybody who waits for it.
    fn land(
        &self,
        state: &mut State,
        position: u64,
        step: u32,
        outcome: std::result::Result<Filled, Failed>,
    ) {
        state.in_flight -= 1;
        match outcome {
            Ok(filled) => {
                state.traffic += filled.traffic();
                *state.place(position, step) = Place::Ready(Arc::new(filled));
                self.changed.notify_all();
            }
            Err(Failed { error, slot }) => {
                *state.place(position, step) = Place::Gone;
                if self.schedule.steps()[step as usize].resident {
                    state.residents.remove(&step); // its slot goes too: a rewound stream makes a new one
                } else {
                    state.free.extend(slot);
                }
                self.break_off(state, error);
            }
        }
    }

    /// Calls the backend, without the lock. Should it panic, the stream breaks: nobody would finish this read, and the
    /// others would wait for it for ever.
    fn call<R>(&self, call: impl FnOnce(&dyn Backend) -> R) -> R {
        let _unwinding = Unwinding(self);
        call(&*self.backend)
    }

    /// The first error stays: later ones are mostly its consequences.
    fn break_off(&self, state: &mut State, error: Error) {
        state.broken.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Empties the window and the order; every slot that is not lost is free afterwards. Needs every worker gone.
    fn drain(&mut self) {
        let mut state = lock(&self.state);
        for entry in std::mem::take(&mut state.window) {
            let slot = match entry.place {
                Place::Submitted(ticket) => self.backend.cancel(ticket),
                // Not the only owner: a leaked loan still points there, so this slot is lost.
                Place::Ready(filled) => {
                    Arc::try_unwrap(filled).ok().map(|filled| self.backend.release(filled))
                }
                Place::Submitting | Place::Awaited | Place::Gone => None,
            };
            state.free.extend(slot);
        }
        for (step, place) in std::mem::take(&mut state.residents) {
            match place {
                Place::Submitted(ticket) => drop(self.backend.cancel(ticket)),
                Place::Ready(_) => drop(state.residents.insert(step, place)),
                Place::Submitting | Place::Awaited | Place::Gone => {}
            }
        }
        state.passes.clear();
        state.base = state.end;
        state.in_flight = 0;
        state.unread.clear();
    }
}

impl State {
    /// The step at an announced position that is not done.
    fn step_at(&self, position: u64, schedule: &Schedule) -> u32 {
        let pass = self
            .passes
            .iter()
            .rfind(|pass| pass.first <= position)
            .expect("announced passes cover the window");
        schedule.pass(pass.kind)[(position - pass.first) as usize]
    }

    fn entry(&mut self, position: u64) -> &mut Entry {
        &mut self.window[(position - self.base) as usize]
    }

    /// The step of a position in the window that is about to be lent; `None` before it is submitted.
    fn granting(&self, position: u64, schedule: &Schedule) -> Option<u32> {
        let entry = self.window.get((position - self.base) as usize)?;
        let loans = schedule.steps()[entry.step as usize].loans;
        assert!(entry.granted < loans, "position {position} has {loans} loans and one more was asked for");
        Some(entry.step)
    }

    /// Where the bytes of a position in the window are.
    fn place(&mut self, position: u64, step: u32) -> &mut Place {
        // A resident's place is shared by all positions of its step, those of later passes included.
        match self.residents.get_mut(&step) {
            Some(place) => place,
            None => &mut self.window[(position - self.base) as usize].place,
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

/// The bytes of a step, borrowed by a worker. Dropping the last one of a position gives its slot to the next.
pub struct Loan<'a> {
    stream: &'a Stream,
    position: u64,
    filled: Option<Arc<Filled>>, // some until dropped
}

impl Loan<'_> {
    /// The position these bytes were borrowed for.
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl Deref for Loan<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.filled.as_deref().map_or(&[], |filled| filled)
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let stream = self.stream;
        let mut state = lock(&stream.state);
        // Under the lock, so that whoever finds the step done also finds the bytes its own.
        self.filled = None;
        if std::thread::panicking() {
            stream.break_off(&mut state, panicked());
        }
        let entry = state.entry(self.position);
        entry.returned += 1;
        if entry.returned < stream.schedule.steps()[entry.step as usize].loans {
            return;
        }
        let place = std::mem::replace(&mut entry.place, Place::Gone);
        state.retire(&stream.schedule);
        if let Place::Ready(filled) = place {
            // Shared only when a loan was leaked; then its slot is lost rather than read and written at once.
            if let Ok(filled) = Arc::try_unwrap(filled) {
                drop(state);
                let slot = stream.call(|backend| backend.release(filled));
                state = lock(&stream.state);
                state.free.push(slot);
            }
        }
        drop(stream.submit(state));
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

fn panicked() -> Error {
    Error::new(ErrorKind::Stopped, "go on with the pass").note("a worker panicked")
}

impl State {
    /// Moves the window past everything that is done.
    fn retire(&mut self, schedule: &Schedule) {
        while let Some(entry) = self.window.front() {
            if entry.returned < schedule.steps()[entry.step as usize].loans {
                break;
            }
            self.window.pop_front();
            self.base += 1;
        }
        while let Some(pass) = self.passes.front() {
            if pass.first + schedule.pass(pass.kind).len() as u64 > self.base {
                break;
            }
            self.passes.pop_front();
            self.passes_done += 1;
        }
    }
}
