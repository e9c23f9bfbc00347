//! The workers of a session: a fixed team that runs one closure per parallel region.
//!
//! A region is one group of matrices that share their input, or one attention; inside it workers take pieces until none
//! is left, so there is one fork and one join per region and none per chunk. A token of a small model is over a hundred
//! regions of 20 to 100 µs, and waking a sleeping thread takes 5 to 50 of them; so workers spin for a moment before they
//! sleep, and a region does not wait for a worker that has not come by the time that nothing is left to do.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use sluice_loader::sync::{Counts, Mutex, lock};

use crate::error::{Error, Result};

/// How long a worker spins before it sleeps. Between two regions of a pass lie norms, rotations, quantisation and the like, 10
/// to 35 µs for one token of 8 billion weights, and who sleeps by then comes 15 to 35 µs late. Decode against 20 µs, two
/// workers: with 50 to 400 µs SmolLM2 and 8 billion weights are 2 to 3 % faster, 1.1 billion 3 to 6 %; with another busy process
/// on the two cores 20 and 100 µs are alike.
const SPIN: Duration = Duration::from_micros(100);

/// Turns between two looks at the clock, which costs as much as a dozen turns, and at whether somebody else wants the
/// core: without giving way to them, another busy process slows a pass down by more than the spinning gains.
const TURNS: u32 = 32;

/// A fixed number of workers; the thread that calls [`Team::run`] is one of them.
pub struct Team {
    shared: Arc<Shared>,
    /// All workers but the caller.
    others: Vec<JoinHandle<()>>,
    /// One region at a time.
    running: AtomicBool,
}

/// What a region runs: valid while its region is open, and then until the last worker in it has left.
#[derive(Clone)]
struct Job {
    work: *const (dyn Fn(usize) + Sync),
    caller: Thread,
}

struct Shared {
    /// Number of the region in the upper half; in the lower one [`OPEN`] and how many workers are in it.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    /// First panic of a worker in the current region.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    spin: Duration,
    seats: Box<[Seat]>,
}

/// What others see of a worker; on two lines of cache of its own.
#[derive(Default)]
#[repr(align(128))]
struct Seat {
    asleep: AtomicBool,
    /// Locks, wake-ups and sleeps of the worker's thread when it last left a region.
    counts: [AtomicU64; 3],
}

/// The region can be entered.
const OPEN: u64 = 1 << 31;
/// Workers in the region.
const INSIDE: u64 = OPEN - 1;
/// One region further.
const NEXT: u64 = 1 << 32;

// SAFETY: `job` is written only by the thread in `run`, which `running` makes one at a time, and only while the region is
// closed and nobody is inside; workers read it only from inside. Entering (acquire) reads the state that opening (release)
// wrote after the job, and leaving (release) is read by the caller (acquire) before it returns. The pointer in it is to a
// closure that is `Sync`, so it may be called from all of them.
unsafe impl Sync for Shared {}
// SAFETY: as above; a `Shared` that moves between threads is behind an `Arc`, and the pointer is only followed in a region.
unsafe impl Send for Shared {}

impl Team {
    /// A team of `workers` threads, the caller among them; 0 counts as 1.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub fn new(workers: usize) -> Result<Self> {
        // With more workers than cores a spinning one keeps another from its work.
        let spin = if workers <= Self::default_workers() { SPIN } else { Duration::ZERO };
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            spin,
            seats: (0..workers.max(1)).map(|_| Seat::default()).collect(),
        });
        let mut team = Self { shared, others: Vec::new(), running: AtomicBool::new(false) };
        for index in 1..workers {
            let shared = Arc::clone(&team.shared);
            let spawned = thread::Builder::new()
                .name(format!("sluice-{index}"))
                .spawn(move || shared.work(index))
                .map_err(|source| Error::Machine {
                    what: format!("cannot start {workers} worker threads"),
                    source,
                })?;
            team.others.push(spawned);
        }
        Ok(team)
    }

    /// Number of workers, at least 1.
    pub fn workers(&self) -> usize {
        self.others.len() + 1
    }

    /// What the other workers have counted until they last left a region.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for seat in &self.shared.seats {
            let [locks, wakeups, sleeps] = [0, 1, 2].map(|i| seat.counts[i].load(Ordering::Relaxed));
            sum += Counts { locks, wakeups, sleeps };
        }
        sum
    }

    /// One parallel region: `f(0)` on the calling thread, and `f(worker)` on those others that come before it has ended.
    /// So `f` must take pieces of the work until none is left, whoever else does. Returns when all who came are done; a
    /// panic in one of them is passed on then.
    ///
    /// # Panics
    /// When called from within a region of the same team.
    pub fn run(&self, f: impl Fn(usize) + Sync) {
        if self.others.is_empty() {
            return f(0);
        }
        assert!(!self.running.swap(true, Ordering::Acquire), "a region within a region");
        let shared = &*self.shared;
        let work: *const (dyn Fn(usize) + Sync) = &raw const f as *const (dyn Fn(usize) + Sync + '_);
        // SAFETY: only the lifetime changes. Nobody follows the pointer after this call, which closes the region and waits
        // for everybody to leave it, also when `f` panics here.
        let work: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(work) };
        // SAFETY: the last region is closed and empty, and only `run` opens one, see `Shared`.
        unsafe { *shared.job.get() = Some(Job { work, caller: thread::current() }) };
        let before = shared.state.load(Ordering::Relaxed);
        shared.state.store((before & !(NEXT - 1)).wrapping_add(NEXT) | OPEN, Ordering::Release);
        for (worker, seat) in self.others.iter().zip(&shared.seats[1..]) {
            if seat.asleep.swap(false, Ordering::Relaxed) {
                Counts { wakeups: 1, ..Counts::default() }.note();
            }
            worker.thread().unpark();
        }
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        shared.state.fetch_and(!OPEN, Ordering::Relaxed);
        shared.wait_until(0, || shared.state.load(Ordering::Acquire) & INSIDE == 0);
        let theirs = lock(&shared.panic).take();
        self.running.store(false, Ordering::Release);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// One parallel region over `tasks`, which workers take in order until none is left. A single task wakes nobody.
    pub fn share<T: Send>(&self, tasks: impl ExactSizeIterator<Item = T> + Send, work: impl Fn(T) + Sync) {
        if tasks.len() <= 1 || self.others.is_empty() {
            return tasks.for_each(work);
        }
        self.share_with(tasks, || (), |(), task| work(task));
    }

    /// As [`Team::share`], for any number of tasks; each worker makes itself what it works with.
    pub fn share_with<T: Send, S>(
        &self,
        tasks: impl Iterator<Item = T> + Send,
        tools: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, T) + Sync,
    ) {
        let tasks = Mutex::new(tasks);
        self.run(|_| {
            let mut tools = tools();
            loop {
                // A statement of its own, so that the lock is not held during the task.
                let task = lock(&tasks).next();
                let Some(task) = task else { break };
                work(&mut tools, task);
            }
        });
    }

    /// Divides `tokens` for work between products: ranges of as many tokens each (the last may have fewer), which are a
    /// multiple of 16 so that turning works on whole lines. One token, or few, are one range: waking a worker takes longer.
    pub fn tokens_each(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.workers()).next_multiple_of(16)
    }

    /// How many threads are worth starting here: what the affinity mask and the container's quota allow.
    pub fn default_workers() -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for worker in self.others.drain(..) {
            worker.thread().unpark();
            // A worker catches what its jobs throw, so there is nothing to learn from it.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The life of a worker.
    fn work(&self, index: usize) {
        let mut seen = 0;
        while let Some(region) = self.next_region(index, seen) {
            seen = region;
            let enter = |state: u64| (state / NEXT == region && state & OPEN != 0).then_some(state + 1);
            if self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_err() {
                continue; // over already
            }
            // SAFETY: this worker is inside, so the job was written before and stays until it leaves.
            let job = unsafe { (*self.job.get()).clone() };
            let Job { work, caller } = job.expect("an open region has a job");
            // SAFETY: the closure lives until everybody has left, see `Team::run`.
            let work = unsafe { &*work };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(index))) {
                lock(&self.panic).get_or_insert(panic);
            }
            let counts = Counts::of_this_thread();
            for (seat, count) in
                self.seats[index].counts.iter().zip([counts.locks, counts.wakeups, counts.sleeps])
            {
                seat.store(count, Ordering::Relaxed);
            }
            if self.state.fetch_sub(1, Ordering::Release) & (OPEN | INSIDE) == 1 {
                caller.unpark(); // the last one, and the caller may be asleep
            }
        }
    }

    /// Waits for another region than `seen` and returns its number; None when the team is dropped.
    fn next_region(&self, index: usize, seen: u64) -> Option<u64> {
        let region = || self.state.load(Ordering::Acquire) / NEXT;
        self.wait_until(index, || region() != seen || self.stop.load(Ordering::Acquire));
        Some(region()).filter(|region| *region != seen)
    }

    /// Spins, then sleeps, until `done`. Whoever makes it true unparks this thread afterwards.
    fn wait_until(&self, index: usize, done: impl Fn() -> bool) {
        let since = Instant::now();
        while since.elapsed() < self.spin {
            for _ in 0..TURNS {
                if done() {
                    return;
                }
                std::hint::spin_loop();
            }
            thread::yield_now();
        }
        while !done() {
            self.seats[index].asleep.store(true, Ordering::Relaxed);
            Counts { sleeps: 1, ..Counts::default() }.note();
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn every_piece_is_done_once_and_before_the_region_ends() {
        for workers in [0, 1, 2, 3, 7] {
            let team = Team::new(workers).expect("threads");
            assert_eq!(team.workers(), workers.max(1));
            for round in 0..1000 {
                if round % 100 == 0 {
                    thread::sleep(2 * SPIN); // so that some regions find the workers asleep
                }
                let pieces = round % 40;
                let done: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
                let next = AtomicUsize::new(0);
                team.run(|worker| {
                    assert!(worker < workers.max(1));
                    while let Some(piece) = done.get(next.fetch_add(1, Ordering::Relaxed)) {
                        piece.fetch_add(1, Ordering::Relaxed);
                    }
                });
                assert!(
                    done.iter().all(|p| p.load(Ordering::Relaxed) == 1),
                    "{workers} workers, round {round}"
                );
            }
        }
    }

    #[test]
    fn workers_take_part() {
        let team = Team::new(3).expect("threads");
        let inside = AtomicUsize::new(0);
        // Nobody leaves before all are there: this ends only if the others come.
        team.run(|_| {
            inside.fetch_add(1, Ordering::Relaxed);
            while inside.load(Ordering::Relaxed) < 3 {
                thread::yield_now();
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_are_done_and_the_team_lives_on() {
        let team = Team::new(3).expect("threads");
        for culprit in 0..3 {
            let (inside, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                team.run(|worker| {
                    inside.fetch_add(1, Ordering::Relaxed);
                    while inside.load(Ordering::Relaxed) < 3 {
                        thread::yield_now();
                    }
                    assert!(worker != culprit, "worker {worker} gives up");
                    thread::sleep(Duration::from_millis(2));
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }));
            assert!(outcome.is_err(), "worker {culprit}");
            assert_eq!(done.load(Ordering::Relaxed), 2, "the others were waited for");
        }
        let ran = AtomicUsize::new(0);
        team.run(|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert!(ran.into_inner() >= 1);
    }

    #[test]
    #[should_panic(expected = "a region within a region")]
    fn regions_do_not_nest() {
        let team = Team::new(2).expect("threads");
        team.run(|_| team.run(|_| ()));
    }
}
