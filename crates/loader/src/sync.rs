//! The primitives that a stream waits with: std's, or loom's when the model checker is to try every interleaving.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

use std::sync::PoisonError;

/// Locks, whether or not another worker panicked: state is only changed by code that does not panic, so a poisoned
/// lock still guards consistent state, and the remaining workers must be able to give their loans back.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condvar`, with the same view of poison as [`lock`].
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
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
