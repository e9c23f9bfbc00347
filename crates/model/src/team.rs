//! The workers of a session: a fixed team that runs one closure per parallel region.
//!
//! A region is one group of matrices that share their input, or one attention; inside it workers take pieces until none
//! is left, so there is one fork and one join per region and none per chunk. A token of a small model is over a hundred
//! regions of 20 to 100 µs, and waking a sleeping thread takes 5 to 50 of them; so workers spin for a moment before they
//! sleep, and a region does not wait for a worker that has not come by the time that nothing is left to do.
//!
//! A region says how many workers it has use for. Others are not woken and not let in. Those that sleep are woken as a tree:
//! each that comes wakes two more at most, so that no thread wakes all, and fewer are woken where the work is soon gone.
//! Nothing here takes a lock but a panic. `docs/threads.md` has the bounds.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use sluice_loader::sync::{Counts, Mutex, lock};

use crate::error::{Error, Result};
use crate::sync::{
    Arc, AtomicBool, AtomicU64, Builder, JoinHandle, Ordering, Thread, UnsafeCell, current, fence, park,
    spin_loop, yield_now,
};

/// How long a worker spins before it sleeps. Between two regions of a pass lie norms, rotations, quantisation and the like, 10
/// to 35 µs for one token of 8 billion weights, and who sleeps by then comes 15 to 35 µs late. Decode against 20 µs, two
/// workers: with 50 to 400 µs SmolLM2 and 8 billion weights are 2 to 3 % faster, 1.1 billion 3 to 6 %; with another busy process
/// on the two cores 20 and 100 µs are alike.
const SPIN: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 100 });

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
    /// Workers that can compute at the same time.
    cores: usize,
}

/// What a region runs: valid while its region is open, and then until the last worker in it has left.
struct Job {
    work: *const (dyn Fn(usize) + Sync),
    caller: Thread,
}

struct Shared {
    /// Number of the region in the upper half; in the lower one [`OPEN`], how many workers it wants, and how many of the others
    /// are in it.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    /// First panic of a worker in the current region; looked for only when there was one.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    panicked: AtomicBool,
    /// By worker.
    seats: Box<[Seat]>,
    cores: usize,
}

/// What others see of a worker, on two lines of cache of its own.
#[repr(align(128))]
struct Seat {
    /// Set by the worker before it looks for the last time, and taken back by who wakes it.
    asleep: AtomicBool,
    /// Of whom it is to be woken by.
    thread: UnsafeCell<Option<Thread>>,
    /// Locks, wake-ups and sleeps of the worker's thread when it last left a region.
    counts: [AtomicU64; 3],
}

/// The region can be entered.
const OPEN: u64 = 1 << 31;
/// One wanted worker.
const WANTED: u64 = 1 << 16;
/// Most workers that a region can want.
const MOST: u64 = OPEN / WANTED - 1;
/// Workers in the region.
const INSIDE: u64 = WANTED - 1;
/// One region further.
const NEXT: u64 = 1 << 32;

/// How many workers the region of `state` wants.
fn wanted(state: u64) -> usize {
    ((state / WANTED) & MOST) as usize
}

// SAFETY: `job` is written only by the thread in `run`, which `running` makes one at a time, and only while the region is
// closed and nobody is inside; workers read it only from inside. Entering (acquire) reads the state that opening (release)
// wrote after the job, and leaving (release) is read by the caller (acquire) before it returns. The pointer in it is to a
// closure that is `Sync`, so it may be called from all of them. A seat's `thread` is written by `Team::new` before the first
// region opens, and only read afterwards.
unsafe impl Sync for Shared {}
// SAFETY: as above; a `Shared` that moves between threads is behind an `Arc`, and the pointer is only followed in a region.
unsafe impl Send for Shared {}

impl Team {
    /// A team of `workers` threads, the caller among them; 0 counts as 1.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub fn new(workers: usize) -> Result<Self> {
        Self::on_cores(workers, Self::default_workers())
    }

    /// As [`Team::new`], where so many can compute at the same time.
    fn on_cores(workers: usize, cores: usize) -> Result<Self> {
        let seat = || Seat {
            asleep: AtomicBool::new(false),
            thread: UnsafeCell::new(None),
            counts: [0; 3].map(AtomicU64::new),
        };
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            panicked: AtomicBool::new(false),
            seats: (0..workers.max(1)).map(|_| seat()).collect(),
            cores,
        });
        let mut team = Self { shared, others: Vec::new(), running: AtomicBool::new(false), cores };
        for index in 1..workers {
            let shared = Arc::clone(&team.shared);
            let spawned = Builder::new()
                .name(format!("sluice-{index}"))
                .spawn(move || shared.work(index))
                .map_err(|source| Error::Machine {
                    what: format!("cannot start {workers} worker threads"),
                    source,
                })?;
            let thread = Some(spawned.thread().clone());
            // SAFETY: nobody reads it before the first region, see `Shared`.
            team.shared.seats[index].thread.with_mut(|place| unsafe { *place = thread });
            team.others.push(spawned);
        }
        Ok(team)
    }

    /// Number of workers, at least 1.
    pub fn workers(&self) -> usize {
        self.others.len() + 1
    }

    /// How many workers are of use for so many pieces that only have to be computed: with more than there are cores one keeps
    /// another from its work.
    pub fn useful(&self, pieces: usize) -> usize {
        pieces.min(self.cores).min(self.workers()).max(1)
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

    /// One parallel region of at most `workers`: `f(0)` on the calling thread, and `f(worker)` on those of the others up to that
    /// number that come before it has ended. So `f` must take pieces of the work until none is left, whoever else does.
    /// Returns when all who came are done; a panic in one of them is passed on then.
    ///
    /// # Panics
    /// When called from within a region of the same team.
    pub fn run(&self, workers: usize, f: impl Fn(usize) + Sync) {
        let workers = workers.min(self.workers()).min(MOST as usize);
        assert!(!self.running.swap(true, Ordering::Acquire), "a region within a region");
        if workers <= 1 {
            let own = catch_unwind(AssertUnwindSafe(|| f(0)));
            self.running.store(false, Ordering::Release);
            return own.unwrap_or_else(|panic| resume_unwind(panic));
        }
        let shared = &*self.shared;
        let work: *const (dyn Fn(usize) + Sync) = &raw const f as *const (dyn Fn(usize) + Sync + '_);
        // SAFETY: only the lifetime changes. Nobody follows the pointer after this call, which closes the region and waits
        // for everybody to leave it, also when `f` panics here.
        let work: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(work) };
        let job = Some(Job { work, caller: current() });
        // SAFETY: the last region is closed and empty, and only `run` opens one, see `Shared`.
        shared.job.with_mut(|place| unsafe { *place = job });
        let before = shared.state.load(Ordering::Relaxed);
        let open = (before & !(NEXT - 1)).wrapping_add(NEXT) | OPEN | (workers as u64 * WANTED);
        shared.state.store(open, Ordering::Release);
        shared.wake_below(0, workers);
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        shared.state.fetch_and(!OPEN, Ordering::Relaxed);
        let spin = if workers <= self.cores { SPIN } else { Duration::ZERO };
        shared.wait_until(0, spin, || shared.state.load(Ordering::Acquire) & INSIDE == 0);
        let panicked =
            shared.panicked.load(Ordering::Relaxed) && shared.panicked.swap(false, Ordering::Relaxed);
        let theirs = if panicked { lock(&shared.panic).take() } else { None };
        self.running.store(false, Ordering::Release);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Calls the workers that have left this region back into it, where there is work again: those that spin come by themselves,
    /// and one that sleeps is woken. Of use to who is in the region; outside of one it does nothing.
    pub fn call_back(&self) {
        let next = |state: u64| (state & OPEN != 0).then_some(state.wrapping_add(NEXT));
        let called = self.shared.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
        if let Ok(state) = called {
            fence(Ordering::SeqCst);
            (1..wanted(state)).any(|worker| self.shared.wake(worker));
        }
    }

    /// One parallel region over `tasks`, which workers take in order until none is left. A single task wakes nobody.
    pub fn share<T: Send>(&self, tasks: impl ExactSizeIterator<Item = T>, work: impl Fn(T) + Sync) {
        if self.useful(tasks.len()) <= 1 {
            return tasks.for_each(work);
        }
        self.share_with(tasks, || (), |(), task| work(task));
    }

    /// As [`Team::share`], for any number of tasks; each worker makes itself what it works with.
    pub fn share_with<T: Send, S>(
        &self,
        tasks: impl Iterator<Item = T>,
        tools: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, T) + Sync,
    ) {
        let tasks = Deal::new(tasks);
        self.run(self.useful(tasks.left(0)), |_| {
            // Not made by who comes too late.
            let mut first = tasks.take_front(0);
            if first.is_none() {
                return;
            }
            let mut tools = tools();
            while let Some(task) = first.take().or_else(|| tasks.take_front(0)) {
                work(&mut tools, task);
            }
        });
    }

    /// Divides `tokens` for work between products: ranges of as many tokens each (the last may have fewer), which are a
    /// multiple of 16 so that turning works on whole lines. One token, or few, are one range: waking a worker takes longer.
    pub fn tokens_each(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.useful(usize::MAX)).next_multiple_of(16)
    }

    /// How many threads are worth starting here: what the affinity mask and the container's quota allow.
    pub fn default_workers() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
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
        let spin = if index < self.cores { SPIN } else { Duration::ZERO };
        let mut seen = 0;
        while let Some(region) = self.next_region(index, spin, seen) {
            seen = region;
            let enter = |state: u64| (state / NEXT == region && state & OPEN != 0).then_some(state + 1);
            let entered = self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter);
            let Ok(state) = entered else { continue }; // over already, or called back into meanwhile
            self.wake_below(index, wanted(state));
            // SAFETY: this worker is inside, so the job was written before and stays until it leaves.
            let work = self.job.with(|job| unsafe { (*job).as_ref().map(|job| job.work) });
            // SAFETY: the closure lives until everybody has left, see `Team::run`.
            let work = unsafe { &*work.expect("an open region has a job") };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(index))) {
                lock(&self.panic).get_or_insert(panic);
                self.panicked.store(true, Ordering::Relaxed);
            }
            let Counts { locks, wakeups, sleeps } = Counts::of_this_thread();
            for (seat, count) in self.seats[index].counts.iter().zip([locks, wakeups, sleeps]) {
                seat.store(count, Ordering::Relaxed);
            }
            self.leave();
        }
    }

    /// Leaves the region; the last one after it was closed wakes the caller.
    fn leave(&self) {
        let leave = |state: u64| (state & OPEN != 0).then_some(state - 1);
        if self.state.fetch_update(Ordering::Release, Ordering::Relaxed, leave).is_ok() {
            return; // the caller has yet to close it, and looks afterwards
        }
        // SAFETY: still inside; afterwards the job may be another one.
        let caller = self.job.with(|job| unsafe { (*job).as_ref().map(|job| job.caller.clone()) });
        if self.state.fetch_sub(1, Ordering::AcqRel) & INSIDE == 1 {
            fence(Ordering::SeqCst);
            if self.seats[0].asleep.swap(false, Ordering::Relaxed) {
                Counts { wakeups: 1, ..Counts::default() }.note();
                caller.iter().for_each(Thread::unpark);
            }
        }
    }

    /// Wakes those of the workers below this one in the tree that are wanted and asleep. The state that they are to see was
    /// written before.
    fn wake_below(&self, index: usize, wanted: usize) {
        fence(Ordering::SeqCst);
        (2 * index + 1..wanted.min(2 * index + 3)).for_each(|worker| {
            self.wake(worker);
        });
    }

    /// Wakes a worker, if it sleeps. After a fence: either it sees what was written before that, or this sees it asleep.
    fn wake(&self, worker: usize) -> bool {
        let seat = &self.seats[worker];
        if !seat.asleep.load(Ordering::Relaxed) || !seat.asleep.swap(false, Ordering::Relaxed) {
            return false;
        }
        Counts { wakeups: 1, ..Counts::default() }.note();
        // SAFETY: written before the first region, see `Shared`.
        seat.thread.with(|thread| unsafe { (*thread).as_ref().map(Thread::unpark) });
        true
    }

    /// Waits for another region than `seen` that wants this worker, and returns its number; None when the team is dropped.
    fn next_region(&self, index: usize, spin: Duration, seen: u64) -> Option<u64> {
        let region = || {
            let state = self.state.load(Ordering::Acquire);
            (state / NEXT != seen && state & OPEN != 0 && index < wanted(state)).then_some(state / NEXT)
        };
        let mut found = None;
        self.wait_until(index, spin, || {
            found = region();
            found.is_some() || self.stop.load(Ordering::Acquire)
        });
        found
    }

    /// Spins, then sleeps, until `done`. Who makes it true wakes this thread afterwards.
    fn wait_until(&self, index: usize, spin: Duration, mut done: impl FnMut() -> bool) {
        if done() {
            return;
        }
        if !spin.is_zero() {
            let since = Instant::now();
            while since.elapsed() < spin {
                for _ in 0..TURNS {
                    if done() {
                        return;
                    }
                    spin_loop();
                }
                yield_now();
            }
        }
        let asleep = &self.seats[index].asleep;
        loop {
            asleep.store(true, Ordering::Relaxed);
            // Either who makes it true sees that this one sleeps, or this one sees that it is true.
            fence(Ordering::SeqCst);
            if done() {
                break;
            }
            Counts { sleeps: 1, ..Counts::default() }.note();
            park();
        }
        asleep.store(false, Ordering::Relaxed);
    }
}

/// Things that workers take, each once, without a lock. They lie in one row that is divided into spans; who has a span of its
/// own takes from its front, and others from its back.
pub struct Deal<T> {
    items: Box<[UnsafeCell<Option<T>>]>,
    spans: Box<[Span]>,
}

/// The first that is left, and in the upper half the one behind the last. On two lines of cache of its own, since a CPU may
/// fetch them in pairs.
#[repr(align(128))]
struct Span(AtomicU64);

// SAFETY: an item is only touched by who has taken its index out of a span. Spans do not overlap, and both ends of one change
// only by an exchange of the whole word, towards each other, so that an index is taken once. The items were written before
// the deal was shared. What is taken moves to another thread, so it must be `Send`; nobody gets a reference to one.
unsafe impl<T: Send> Sync for Deal<T> {}

impl<T> Deal<T> {
    /// All in one span.
    pub fn new(items: impl Iterator<Item = T>) -> Self {
        let items: Vec<T> = items.collect();
        let end = items.len();
        Self::divided(items, [end])
    }

    /// A span up to each of `ends`, which ascend to the number of items.
    ///
    /// # Panics
    /// When they do not, or for 2^32 items.
    pub fn divided(items: Vec<T>, ends: impl IntoIterator<Item = usize>) -> Self {
        assert!(u32::try_from(items.len()).is_ok(), "{} items", items.len());
        let mut start = 0;
        let span = |end: usize| {
            assert!(start <= end && end <= items.len(), "a span from {start} to {end} of {}", items.len());
            let span = Span(AtomicU64::new(start as u64 | ((end as u64) << 32)));
            start = end;
            span
        };
        let spans: Box<[Span]> = ends.into_iter().map(span).collect();
        assert_eq!(start, items.len(), "the last span ends with the last item");
        Self { items: items.into_iter().map(|item| UnsafeCell::new(Some(item))).collect(), spans }
    }

    /// How many spans there are.
    pub fn spans(&self) -> usize {
        self.spans.len()
    }

    /// How many are left in a span, or were a moment ago.
    pub fn left(&self, span: usize) -> usize {
        let [start, end] = halves(self.spans[span].0.load(Ordering::Relaxed));
        end - start
    }

    /// The first that is left in a span.
    pub fn take_front(&self, span: usize) -> Option<T> {
        self.take(span, |word| word + 1, |[start, _]| start)
    }

    /// The last one.
    pub fn take_back(&self, span: usize) -> Option<T> {
        self.take(span, |word| word - (1 << 32), |[_, end]| end - 1)
    }

    fn take(&self, span: usize, less: impl Fn(u64) -> u64, which: impl Fn([usize; 2]) -> usize) -> Option<T> {
        let some = |word: u64| {
            let [start, end] = halves(word);
            (start < end).then(|| less(word))
        };
        let word = self.spans[span].0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, some).ok()?;
        // SAFETY: this index was in the span, and by the exchange it is out of it, see `Sync`.
        self.items[which(halves(word))].with_mut(|item| unsafe { (*item).take() })
    }
}

fn halves(word: u64) -> [usize; 2] {
    [word as u32 as usize, (word >> 32) as usize]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

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
                team.run(usize::MAX, |worker| {
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
        team.run(usize::MAX, |_| {
            inside.fetch_add(1, Ordering::Relaxed);
            while inside.load(Ordering::Relaxed) < 3 {
                yield_now();
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_are_done_and_the_team_lives_on() {
        let team = Team::new(3).expect("threads");
        for culprit in 0..3 {
            let (inside, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                team.run(usize::MAX, |worker| {
                    inside.fetch_add(1, Ordering::Relaxed);
                    while inside.load(Ordering::Relaxed) < 3 {
                        yield_now();
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
        team.run(usize::MAX, |_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert!(ran.into_inner() >= 1);
    }

    #[test]
    fn no_more_workers_come_than_are_wanted_and_none_beyond_the_cores_is_of_use() {
        let team = Team::on_cores(7, 3).expect("threads");
        assert_eq!([0, 1, 2, 5, 100].map(|pieces| team.useful(pieces)), [1, 1, 2, 3, 3]);
        for round in 0..2000 {
            let wanted = round % 9;
            let most = AtomicUsize::new(0);
            team.run(wanted, |worker| {
                most.fetch_max(worker, Ordering::Relaxed);
            });
            assert!(most.into_inner() < wanted.clamp(1, 7), "{wanted} wanted");
        }
    }

    #[test]
    fn nobody_wakes_more_than_sleep_and_are_wanted() {
        let team = Team::on_cores(16, 2).expect("threads");
        let counts = || {
            let mut counts = team.counts();
            counts += Counts::of_this_thread();
            counts
        };
        for wanted in [1, 2, 5, 16] {
            thread::sleep(2 * SPIN);
            let before = counts();
            team.run(wanted, |_| ());
            let Counts { wakeups, locks, .. } = counts() - before;
            // The others, and the caller by the last of them.
            let most = if wanted > 1 { wanted as u64 } else { 0 };
            assert!(wakeups <= most, "{wakeups} for {wanted}");
            assert_eq!(locks, 0);
        }
    }

    #[test]
    fn a_worker_that_has_left_is_called_back() {
        let team = Team::on_cores(2, 2).expect("threads");
        let (came, next) = (AtomicUsize::new(0), AtomicUsize::new(0));
        team.run(2, |worker| {
            if worker == 1 {
                came.fetch_add(1, Ordering::Relaxed);
                return;
            }
            for round in 1..=20 {
                while came.load(Ordering::Relaxed) < round {
                    yield_now();
                }
                if round % 5 == 0 {
                    thread::sleep(2 * SPIN); // so that it sleeps by then
                }
                team.call_back();
                next.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(next.into_inner(), 20);
        team.call_back(); // outside of a region that is nothing
    }

    #[test]
    fn dealt_things_are_taken_once_from_either_end() {
        let deal = Deal::divided((0..10_000).collect(), [3_000, 3_000, 10_000]);
        assert_eq!([0, 1, 2].map(|span| deal.left(span)), [3_000, 0, 7_000]);
        assert_eq!((deal.take_front(0), deal.take_back(0), deal.take_front(1)), (Some(0), Some(2_999), None));
        let taken: Vec<AtomicUsize> = (0..10_000).map(|_| AtomicUsize::new(0)).collect();
        thread::scope(|scope| {
            for worker in 0..4 {
                let (deal, taken) = (&deal, &taken);
                scope.spawn(move || {
                    for span in [0, 2, 1] {
                        let take =
                            || if worker % 2 == 0 { deal.take_front(span) } else { deal.take_back(span) };
                        while let Some(item) = take() {
                            let item: usize = item;
                            taken[item].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(taken.iter().map(|n| n.load(Ordering::Relaxed)).sum::<usize>(), 9_998);
        assert!(taken.iter().all(|n| n.load(Ordering::Relaxed) <= 1));
    }

    #[test]
    #[should_panic(expected = "a region within a region")]
    fn regions_do_not_nest() {
        let team = Team::new(2).expect("threads");
        team.run(usize::MAX, |_| team.run(usize::MAX, |_| ()));
    }
}
