//! What was read and how long workers waited for it.

use std::ops::AddAssign;

/// What one piece of work asked of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that came from the file, the padding of direct reads included.
    pub bytes: u64,
    /// Read operations: system calls, ring completions or mapped chunks.
    pub reads: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.bytes += other.bytes;
        self.reads += other.reads;
    }
}

/// Sums over the life of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Bytes read, padding and on-demand reads included.
    pub bytes_read: u64,
    /// Read operations.
    pub reads: u64,
    /// Seconds that workers spent waiting for bytes, summed over workers. Lazy backends read in this time.
    pub wait_s: f64,
    /// Passes whose every step was given back.
    pub passes: u64,
}
