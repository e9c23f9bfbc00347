//! Where the outcome of a read in flight is left for the holder of its ticket.

use super::{Failed, Filled};
use crate::sync::{Condvar, Mutex, lock, wait};

type Outcome = Result<Filled, Failed>;

/// Shared by a ticket and whoever carries the read out. When the ticket is dropped the outcome, slot included, goes
/// with the last owner, so lost tickets do not pile up.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    outcome: Mutex<Option<Outcome>>,
    landed: Condvar,
    /// For backends whose waiters take completions for one another, under a lock of theirs: the outcome is here, or it is this
    /// one's turn to take them.
    pub turn: Condvar,
}

impl Flight {
    /// Leaves the outcome and wakes the waiter.
    pub(crate) fn land(&self, outcome: Outcome) {
        *lock(&self.outcome) = Some(outcome);
        self.landed.notify_one();
    }

    /// The outcome, if it is there.
    pub(crate) fn take(&self) -> Option<Outcome> {
        lock(&self.outcome).take()
    }

    /// Waits for the outcome.
    pub(crate) fn wait(&self) -> Outcome {
        let mut outcome = lock(&self.outcome);
        loop {
            match outcome.take() {
                Some(outcome) => return outcome,
                None => outcome = wait(&self.landed, outcome),
            }
        }
    }
}
