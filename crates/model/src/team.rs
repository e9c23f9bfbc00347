//! The workers of a session: a fixed team that runs one closure per parallel region.
//!
//! A region is one group of matrices that share their input, or one attention; inside it workers take pieces
//! until none is left, so there is one fork and one join per region and none per chunk.

use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};

/// A fixed number of workers, the calling thread among them once inside [`Team::enter`].
pub struct Team {
    /// None for a team of one: then nothing is forked at all.
    pool: Option<rayon::ThreadPool>,
}

impl Team {
    /// A team of `workers` threads.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub fn new(workers: usize) -> Result<Self> {
        if workers <= 1 {
            return Ok(Self { pool: None });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(workers)
            .thread_name(|i| format!("sluice-{i}"))
            .build()
            .map_err(|e| Error::Machine {
                what: format!("cannot start {workers} worker threads"),
                source: std::io::Error::other(e),
            })?;
        Ok(Self { pool: Some(pool) })
    }

    /// Number of workers, at least 1.
    pub fn workers(&self) -> usize {
        self.pool.as_ref().map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `f` on one of the workers, so that the regions it opens wake only the others.
    pub fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            None => f(),
            Some(pool) => pool.install(f),
        }
    }

    /// One parallel region: `f(worker)` on every worker at once; returns when all are back.
    pub fn run(&self, f: impl Fn(usize) + Sync) {
        match &self.pool {
            None => f(0),
            Some(pool) => {
                pool.broadcast(|context| f(context.index()));
            }
        }
    }

    /// One parallel region over `tasks`, which workers take in order until none is left. A single task wakes nobody.
    pub fn share<T: Send>(&self, tasks: impl ExactSizeIterator<Item = T> + Send, work: impl Fn(T) + Sync) {
        if tasks.len() <= 1 || self.pool.is_none() {
            return tasks.for_each(work);
        }
        let tasks = Mutex::new(tasks);
        self.run(|_| {
            loop {
                // A statement of its own, so that the lock is not held during the task.
                let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(task) = task else { break };
                work(task);
            }
        });
    }

    /// Divides `tokens` for work between products: ranges of as many tokens each (the last may have fewer), which are a
    /// multiple of 16 so that turning works on whole lines. One token, or few, are one range: waking a worker takes longer.
    pub fn tokens_each(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.workers()).next_multiple_of(16)
    }

    /// How many threads are worth starting here: what the affinity mask allows.
    pub fn default_workers() -> usize {
        // The standard library looks at the affinity mask and at cgroup CPU quotas.
        std::thread::available_parallelism().map_or(1, usize::from)
    }
}
