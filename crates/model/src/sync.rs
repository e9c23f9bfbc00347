//! What a team is made of: std's, or loom's when the model checker is to try every interleaving.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    thread::{Builder, JoinHandle, Thread, current, park, yield_now},
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    thread::{Builder, JoinHandle, Thread, current, park, yield_now},
};

/// std's, with the interface of loom's: a pointer is not kept beyond the closure.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
