//! The primitives that workers wait with: std's, or loom's when the model checker is to try every interleaving. All of ours are
//! taken through here, which counts.

#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
use loom::sync::Condvar as Inner;
#[cfg(not(loom))]
use std::sync::Condvar as Inner;

use std::cell::Cell;
use std::ops::{AddAssign, Sub};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a thread has done so far that others may have had to wait for, or that is a call of the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Locks taken; a wait on a condition variable takes its lock once more.
    pub locks: u64,
    /// Sleeping threads woken: one for each that was asleep.
    pub wakeups: u64,
    /// Times that the thread went to sleep until another woke it.
    pub sleeps: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.locks += other.locks;
        self.wakeups += other.wakeups;
        self.sleeps += other.sleeps;
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            locks: self.locks - other.locks,
            wakeups: self.wakeups - other.wakeups,
            sleeps: self.sleeps - other.sleeps,
        }
    }
}

thread_local! {
    // A number that only its own thread writes costs an addition; one that all write would be a line of cache that they share.
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { locks: 0, wakeups: 0, sleeps: 0 }) };
}

impl Counts {
    /// Those of the calling thread, since it began.
    pub fn of_this_thread() -> Self {
        COUNTS.get()
    }

    /// Adds to those of the calling thread.
    pub fn note(self) {
        COUNTS.with(|counts| {
            let mut sum = counts.get();
            sum += self;
            counts.set(sum);
        });
    }
}

/// One lock.
const LOCK: Counts = Counts { locks: 1, wakeups: 0, sleeps: 0 };

/// Locks, whether or not another worker panicked: state is only changed by code that does not panic, so a poisoned
/// lock still guards consistent state, and the remaining workers must be able to give their loans back.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    LOCK.note();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A condition variable that knows how many wait. Who changes what they wait for does so under the lock that they wait with,
/// and notifies afterwards.
#[derive(Debug)]
pub struct Condvar {
    inner: Inner,
    /// Goes up under the lock, so that who notifies sees everybody who waits for what it changed. After a wake-up that nobody asked
    /// for it is too high by one, until the next that all are woken.
    waiting: AtomicUsize,
}

impl Default for Condvar {
    fn default() -> Self {
        Self { inner: Inner::new(), waiting: AtomicUsize::new(0) }
    }
}

impl Condvar {
    /// Wakes everybody who waits. Where nobody does, that is no call of the system, which would cost more than all else that
    /// is done for a chunk that is here.
    pub fn notify_all(&self) {
        let waiting = self.waiting.swap(0, Ordering::Relaxed);
        if waiting > 0 {
            Counts { wakeups: waiting as u64, ..Counts::default() }.note();
            self.inner.notify_all();
        }
    }

    /// As [`Condvar::notify_all`], for one of them.
    pub fn notify_one(&self) {
        let less = |waiting: usize| waiting.checked_sub(1);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            Counts { wakeups: 1, ..Counts::default() }.note();
            self.inner.notify_one();
        }
    }
}

/// Waits on `condvar`, with the same view of poison as [`lock`].
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    Counts { locks: 1, wakeups: 0, sleeps: 1 }.note();
    condvar.waiting.fetch_add(1, Ordering::Relaxed);
    condvar.inner.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Lets time pass; the model checker, which has none, lets other threads run.
pub(crate) fn pause(time: std::time::Duration) {
    #[cfg(not(loom))]
    std::thread::sleep(time);
    #[cfg(loom)]
    {
        let _ = time;
        loom::thread::yield_now();
    }
}
