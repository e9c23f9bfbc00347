//! What a stream knows under its lock: announced passes, the window of submitted positions, slots, residents.
//!
//! Nothing here waits or calls a backend; what has to be given back to one is returned to the caller.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Filled, Slot, Ticket};
use crate::error::Error;
use crate::residents::{Resident, Residents};
use crate::schedule::Schedule;
use crate::stats::Traffic;
use crate::sync::Condvar;

pub(crate) struct State {
    pub passes: VecDeque<Pass>,  // announced and not yet done, oldest first
    pub base: u64,               // position of the window's first entry: everything before is done
    pub window: VecDeque<Entry>, // positions that have been submitted, `base` onwards
    pub end: u64,                // first position that nobody has announced
    pub free: Vec<Slot>,         // for streamed steps
    pub made: usize,             // slots for streamed steps, free or not
    pub long: usize,             // memory of a slot for the longest step of all, once there has been one
    pub unread: VecDeque<u64>,   // positions whose ticket nobody waits for yet
    pub in_flight: usize,        // submitted, or about to be, and not there yet
    pub waiters: Vec<Waiter>,    // workers that sleep until they are called
    pub broken: Option<Error>,   // given to everybody until the stream is rewound
    pub traffic: Traffic,
    pub waited: Duration,
    pub passes_done: u64,
    pub limit: u64, // resident bytes that may stay
    residents: Residents,
}

pub(crate) struct Pass {
    pub kind: usize,
    pub first: u64,
}

/// A worker that sleeps until a position is submitted or there.
pub(crate) struct Waiter {
    pub position: u64,
    pub turn: Arc<Condvar>,
}

pub(crate) struct Entry {
    pub step: u32,
    pub granted: u32,
    pub returned: u32,
    pub place: Place,
}

/// Where the bytes of a step are.
pub(crate) enum Place {
    /// A worker is handing them to the backend.
    Submitting,
    Submitted(Box<Ticket>), // by itself, so that all other entries are small: the window is long where residents are many
    /// A worker waits on the backend.
    Awaited,
    Ready(Arc<Filled>),
    /// Not here: done, or failed.
    Gone,
    /// With the residents, under the step.
    Resident,
}

impl State {
    pub fn new(schedule: &Schedule) -> Self {
        State {
            passes: VecDeque::new(),
            base: 0,
            window: VecDeque::new(),
            end: 0,
            free: Vec::new(),
            made: 0,
            long: usize::MAX,
            unread: VecDeque::new(),
            in_flight: 0,
            waiters: Vec::new(),
            broken: None,
            traffic: Traffic::default(),
            waited: Duration::ZERO,
            passes_done: 0,
            limit: u64::MAX,
            residents: Residents::new(schedule),
        }
    }

    /// Wakes those who wait for `position`, or for another one that looks at the same resident. How many.
    pub fn call(&mut self, position: u64) -> usize {
        if self.waiters.is_empty() {
            return 0;
        }
        let step = |position: u64| Some(self.window.get(position.checked_sub(self.base)? as usize)?.step);
        let wanted = step(position);
        let (called, left): (Vec<Waiter>, _) = std::mem::take(&mut self.waiters)
            .into_iter()
            .partition(|w| w.position == position || (wanted.is_some() && step(w.position) == wanted));
        self.waiters = left;
        called.iter().for_each(|waiter| waiter.turn.notify_all());
        called.len()
    }

    /// Wakes who waits for the lowest position.
    pub fn call_first(&mut self) {
        let first = (0..self.waiters.len()).min_by_key(|&i| self.waiters[i].position);
        if let Some(first) = first {
            self.waiters.swap_remove(first).turn.notify_all();
        }
    }

    /// Wakes everybody.
    pub fn call_all(&mut self) {
        self.waiters.drain(..).for_each(|waiter| waiter.turn.notify_all());
    }

    /// Bytes of residents in memory, those on their way included.
    pub fn kept(&self) -> u64 {
        self.residents.kept()
    }

    /// The next position to be submitted and its step; `None` when all that was announced has been.
    pub fn next(&self, schedule: &Schedule) -> Option<(u64, u32)> {
        let position = self.base + self.window.len() as u64;
        if position == self.end {
            return None;
        }
        let pass = self
            .passes
            .iter()
            .rfind(|pass| pass.first <= position)
            .expect("announced passes cover the window");
        Some((position, schedule.pass(pass.kind)[(position - pass.first) as usize]))
    }

    /// Appends the next position to the window.
    pub fn enter(&mut self, step: u32, place: Place) {
        self.window.push_back(Entry { step, granted: 0, returned: 0, place });
    }

    /// As [`State::enter`], when the step is with the residents.
    pub fn enter_resident(&mut self, step: u32) -> bool {
        let Some(resident) = self.residents.get_mut(step) else {
            return false;
        };
        resident.uses += 1;
        self.enter(step, Place::Resident);
        true
    }

    /// Makes room for a step among the residents, and enters it.
    pub fn admit(&mut self, step: u32, schedule: &Schedule) {
        self.residents.admit(step, schedule.steps()[step as usize].range.len);
        self.enter(step, Place::Resident);
    }

    pub fn entry(&mut self, position: u64) -> &mut Entry {
        &mut self.window[(position - self.base) as usize]
    }

    /// The step of a position in the window that is about to be lent; `None` before it is submitted.
    pub fn granting(&self, position: u64, schedule: &Schedule) -> Option<u32> {
        let entry = self.window.get((position - self.base) as usize)?;
        let loans = schedule.steps()[entry.step as usize].loans;
        assert!(entry.granted < loans, "position {position} has {loans} loans and one more was asked for");
        Some(entry.step)
    }

    /// Where the bytes of a position in the window are. A resident's place is shared by all positions that look there,
    /// those of later passes included; after its read has failed there is none.
    pub fn place(&mut self, position: u64) -> Option<&mut Place> {
        let entry = &mut self.window[(position - self.base) as usize];
        match entry.place {
            Place::Resident => self.residents.get_mut(entry.step).map(|resident| &mut resident.place),
            _ => Some(&mut entry.place),
        }
    }

    /// Grants all loans of these positions, if each is a resident in memory of which none was granted before. Else nothing
    /// happens.
    pub fn grant_residents(
        &mut self,
        positions: Range<u64>,
        schedule: &Schedule,
    ) -> Option<Vec<Arc<Filled>>> {
        let (first, end) = ((positions.start - self.base) as usize, (positions.end - self.base) as usize);
        if end > self.window.len() {
            return None;
        }
        let entries = self.window.range_mut(first..end);
        let filled: Option<Vec<_>> = entries
            .map(|entry| match (&entry.place, self.residents.get(entry.step)) {
                (Place::Resident, Some(Resident { place: Place::Ready(filled), .. }))
                    if entry.granted == 0 =>
                {
                    Some(Arc::clone(filled))
                }
                _ => None,
            })
            .collect();
        let filled = filled?;
        for entry in self.window.range_mut(first..end) {
            entry.granted = schedule.steps()[entry.step as usize].loans;
        }
        Some(filled)
    }

    /// Takes back what [`State::grant_residents`] gave. The bytes of those that are over the limit by now.
    pub fn return_residents(&mut self, positions: Range<u64>, schedule: &Schedule) -> Vec<Filled> {
        let mut given = Vec::new();
        for position in positions {
            let entry = self.entry(position);
            entry.returned = entry.granted;
            entry.place = Place::Gone;
            let step = entry.step;
            given.extend(self.used(step, schedule));
        }
        given
    }

    /// Takes note that the read of a position failed; true when its slot served a streamed step.
    pub fn fail(&mut self, position: u64, schedule: &Schedule) -> bool {
        let entry = self.entry(position);
        match std::mem::replace(&mut entry.place, Place::Gone) {
            Place::Resident => {
                let step = entry.step;
                self.remove(step, schedule);
                false
            }
            _ => true,
        }
    }

    /// Takes note that a resident was used at a position that is done. Its bytes, if they are over the limit and this was
    /// the last to look there.
    pub fn used(&mut self, step: u32, schedule: &Schedule) -> Option<Filled> {
        let resident = self.residents.get_mut(step)?;
        resident.uses -= 1;
        self.give_back(step, schedule)
    }

    /// The bytes of all residents that are over the limit and that no position in the window needs. What the window's end
    /// holds of residents that nobody has borrowed yet is taken off it first: no read was submitted for it, so that it can
    /// be entered anew, in its turn.
    pub fn give_back_all(&mut self, schedule: &Schedule) -> Vec<Filled> {
        while let Some(Entry { step, granted: 0, place: Place::Resident, .. }) = self.window.back() {
            match self.residents.get_mut(*step) {
                Some(Resident { place: Place::Ready(_), uses, .. }) => *uses -= 1,
                _ => break,
            }
            self.window.pop_back();
        }
        let steps: Vec<u32> = self.residents.iter_mut().map(|resident| resident.step).collect();
        steps.into_iter().filter_map(|step| self.give_back(step, schedule)).collect()
    }

    fn give_back(&mut self, step: u32, schedule: &Schedule) -> Option<Filled> {
        if schedule.stays(step, self.limit) {
            return None;
        }
        match self.residents.get(step)? {
            Resident { place: Place::Ready(_), uses: 0, .. } => {}
            _ => return None,
        }
        match self.remove(step, schedule)? {
            // Shared only when a loan was leaked: then its slot is lost rather than read and written at once.
            Place::Ready(filled) => Arc::try_unwrap(filled).ok(),
            _ => None,
        }
    }

    fn remove(&mut self, step: u32, schedule: &Schedule) -> Option<Place> {
        self.residents.remove(step, schedule.steps()[step as usize].range.len)
    }

    /// Moves the window past everything that is done.
    pub fn retire(&mut self, schedule: &Schedule) {
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

    /// Forgets every announced position that is not done. What the window held, and the residents whose read is not over.
    pub fn forget(&mut self, schedule: &Schedule) -> (Vec<Place>, Vec<Place>) {
        let window = std::mem::take(&mut self.window).into_iter().map(|entry| entry.place).collect();
        let mut unready = Vec::new();
        for resident in self.residents.iter_mut() {
            resident.uses = 0;
            if !matches!(resident.place, Place::Ready(_)) {
                unready.push(resident.step);
            }
        }
        let unready = unready.into_iter().filter_map(|step| self.remove(step, schedule)).collect();
        self.passes.clear();
        self.base = self.end;
        self.in_flight = 0;
        self.unread.clear();
        (window, unready)
    }
}
