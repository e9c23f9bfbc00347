//! Loans: the bytes of a step in the hands of a worker, or of many that stay in those of a team, and what happens when they
//! come back.

use std::ops::{Deref, Index};
use std::sync::Arc;

use crate::backend::Filled;
use crate::state::Place;
use crate::stream::{Stream, panicked};
use crate::sync::lock;

/// The bytes of a step, borrowed by a worker. Dropping the last one of a position gives its slot to the next.
pub struct Loan<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) position: u64,
    pub(crate) filled: Option<Arc<Filled>>, // some until dropped
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
        let (step, place) = (entry.step, std::mem::replace(&mut entry.place, Place::Gone));
        state.retire(&stream.schedule);
        let streamed = !matches!(place, Place::Resident);
        let filled = match place {
            // Shared only when a loan was leaked; then its slot is lost rather than read and written at once.
            Place::Ready(filled) => Arc::try_unwrap(filled).ok(),
            Place::Resident => state.used(step, &stream.schedule),
            _ => None,
        };
        if let Some(filled) = filled {
            drop(state);
            let slot = stream.call(|backend| backend.release(filled));
            if streamed {
                state = lock(&stream.state);
                stream.put_back(&mut state, slot);
            } else {
                drop(slot); // a resident's, over the limit: its memory goes back to the system
                state = lock(&stream.state);
            }
        }
        drop(stream.submit(state));
    }
}

/// The bytes of steps that follow one another, all of them residents in memory; see [`Stream::loan_residents`]. By index, from
/// the first one. Dropping it is the return of every loan of theirs.
pub struct Loans<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) first: u64,
    pub(crate) filled: Vec<Arc<Filled>>,
}

impl Index<usize> for Loans<'_> {
    type Output = [u8];

    fn index(&self, index: usize) -> &[u8] {
        &self.filled[index]
    }
}

impl Drop for Loans<'_> {
    fn drop(&mut self) {
        let stream = self.stream;
        let mut state = lock(&stream.state);
        // Under the lock, as those of a single loan.
        let count = self.filled.len() as u64;
        self.filled.clear();
        if std::thread::panicking() {
            stream.break_off(&mut state, panicked());
        }
        let given = state.return_residents(self.first..self.first + count, &stream.schedule);
        state.retire(&stream.schedule);
        if !given.is_empty() {
            drop(state);
            // Over the limit: their memory goes back to the system.
            given.into_iter().for_each(|filled| drop(stream.call(|backend| backend.release(filled))));
            state = lock(&stream.state);
        }
        drop(stream.submit(state));
    }
}
