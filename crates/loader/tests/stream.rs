//! What a stream promises, on random schedules with real threads, and what it says to callers who break its rules.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use common::{STUCK, expected, range, within_limits};
use proptest::prelude::*;
use sluice_loader::sync::Counts;
use sluice_loader::{
    Backend, ByteRange, Error, ErrorKind, Failed, Faults, Filled, Memory, Schedule, Slot, Step, Stream,
    Ticket, Traffic,
};

/// Length of each of the two files in bytes.
const LENGTH: u64 = 5_000;

/// One random case.
#[derive(Clone, Debug)]
struct Plan {
    steps: Vec<Step>,
    passes: Vec<Vec<u32>>,
    kinds: Vec<usize>, // of the passes to announce
    ahead: usize,      // passes announced beyond the current one
    workers: usize,
    depth: usize, // 0 for lazy
    faults: Faults,
}

fn plans() -> impl Strategy<Value = Plan> {
    let step = (0..2u16, 0..LENGTH - 1, 1..600usize, 1..4u32, prop::bool::weighted(0.3));
    let step = step.prop_map(|(file, offset, len, loans, resident)| Step {
        range: range(file, offset, len.min((LENGTH - offset) as usize)),
        loans,
        resident,
    });
    prop::collection::vec(step, 1..12).prop_flat_map(|steps| {
        let pass = prop::collection::vec(0..steps.len() as u32, 1..14);
        let order = (prop::collection::vec(pass, 1..4), prop::collection::vec(0..64usize, 1..5), 0..3usize);
        let shape = (order, 1..4usize, 0..4usize, any::<u64>(), 0..200u64);
        shape.prop_map(move |((passes, kinds, ahead), workers, depth, seed, micros)| Plan {
            steps: steps.clone(),
            kinds: kinds.iter().map(|kind| kind % passes.len()).collect(),
            passes,
            ahead,
            workers,
            depth,
            faults: Faults {
                seed,
                delay: Duration::from_micros(micros),
                split_one_in: 3,
                ..Faults::default()
            },
        })
    })
}

impl Plan {
    fn start(&self) -> (Arc<Memory>, Stream) {
        let files = (0..2).map(|file| expected(range(file, 0, LENGTH as usize))).collect();
        let memory = Memory::new(files);
        let memory = Arc::new(if self.depth == 0 { memory } else { memory.eager(self.depth) });
        memory.set_faults(self.faults.clone());
        let schedule = Schedule::new(self.steps.clone(), self.passes.clone()).unwrap();
        let stream = Stream::new(memory.clone(), schedule, self.workers).unwrap();
        (memory, stream)
    }

    /// Announces passes as the workers come to them and takes all loans, dealt to the workers in turn. The answer is what
    /// every worker ended with.
    fn walk(&self, stream: &Stream) -> Vec<Result<(), Error>> {
        let mut turns: Vec<(u64, u32, usize)> = Vec::new(); // position, step, pass
        let first = stream.announce(self.kinds[0]);
        let mut position = first;
        for (number, &kind) in self.kinds.iter().enumerate() {
            for &step in &self.passes[kind] {
                let loans = self.steps[step as usize].loans;
                turns.extend((0..loans).map(|_| (position, step, number)));
                position += 1;
            }
        }
        let next = AtomicU64::new(0);
        let announced = Mutex::new(1); // passes
        let work = || -> Result<(), Error> {
            loop {
                let turn = next.fetch_add(1, Ordering::Relaxed) as usize;
                let Some(&(position, step, pass)) = turns.get(turn) else {
                    return Ok(());
                };
                let mut announced = announced.lock().unwrap();
                while *announced < self.kinds.len().min(pass + 1 + self.ahead) {
                    stream.announce(self.kinds[*announced]);
                    *announced += 1;
                }
                drop(announced);
                let loan = stream.loan(position)?;
                assert!(*loan == expected(self.steps[step as usize].range), "other bytes at {position}");
                assert_eq!(loan.position(), position);
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.workers).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        })
    }

    /// Steps and bytes that are read: every streamed position, every resident that is met.
    fn reads(&self) -> (u64, u64) {
        let mut positions: Vec<u32> = self.kinds.iter().flat_map(|&kind| self.passes[kind].clone()).collect();
        positions.sort_unstable();
        let residents = |step: &u32| self.steps[*step as usize].resident;
        let streamed = positions.clone().into_iter().filter(|step| !residents(step));
        let mut read: Vec<u32> = streamed.collect();
        positions.dedup();
        read.extend(positions.iter().filter(|step| residents(step)));
        (read.len() as u64, read.iter().map(|&step| self.steps[step as usize].range.len as u64).sum())
    }

    fn residents_met(&self) -> u64 {
        let met = |step: usize| self.kinds.iter().any(|&kind| self.passes[kind].contains(&(step as u32)));
        (0..self.steps.len()).filter(|&step| self.steps[step].resident && met(step)).count() as u64
    }

    /// Slots for streamed steps: none when nothing is streamed.
    fn slots(&self) -> u64 {
        let streamed = self.passes.iter().flatten().any(|&step| !self.steps[step as usize].resident);
        if streamed { (self.workers + self.depth) as u64 } else { 0 }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_loan_sees_its_bytes(plan in plans()) {
        within_limits(move || {
            let (memory, stream) = plan.start();
            for end in plan.walk(&stream) {
                prop_assert!(end.is_ok(), "{:?}", end);
            }
            let stats = stream.stats();
            let (reads, bytes) = plan.reads();
            prop_assert_eq!(stats.passes, plan.kinds.len() as u64);
            prop_assert_eq!(stats.bytes_read, bytes);
            prop_assert!(stats.reads >= reads);
            prop_assert_eq!(memory.slots_made(), plan.slots() + plan.residents_met());
            Ok(())
        })?;
    }

    #[test]
    fn errors_reach_all_and_a_rewound_stream_goes_on(plan in plans(), one_in in 2..20u64) {
        within_limits(move || {
            let (memory, mut stream) = plan.start();
            memory.set_faults(Faults { fail_one_in: one_in, ..plan.faults.clone() });
            let mut passes = 0;
            for _ in 0..5 {
                let ends = plan.walk(&stream);
                for error in ends.iter().filter_map(|end| end.as_ref().err()) {
                    prop_assert_eq!(error.kind(), ErrorKind::Read);
                    prop_assert!(error.to_string().contains("planned"));
                }
                stream.rewind().unwrap();
                passes = stream.stats().passes;
            }
            memory.set_faults(Faults::default());
            let made = memory.slots_made();
            if plan.steps.iter().all(|step| !step.resident) {
                prop_assert_eq!(made, plan.slots());
            }
            for end in plan.walk(&stream) {
                prop_assert!(end.is_ok(), "{:?}", end);
            }
            prop_assert_eq!(stream.stats().passes, passes + plan.kinds.len() as u64);
            // Of the slots for streamed steps none was lost; residents get theirs when they are met.
            prop_assert!(memory.slots_made() - made <= plan.residents_met());
            Ok(())
        })?;
    }

    #[test]
    fn rewinding_in_mid_pass_takes_every_slot_back(plan in plans(), stop_after in 0..20u64) {
        within_limits(move || {
            let (memory, mut stream) = plan.start();
            for _ in 0..3 {
                let first = stream.announce(plan.kinds[0]);
                let kind = &plan.passes[plan.kinds[0]];
                for (position, &step) in (first..).zip(kind).take(stop_after as usize) {
                    let step = plan.steps[step as usize];
                    for _ in 0..step.loans {
                        prop_assert!(*stream.loan(position).unwrap() == expected(step.range));
                    }
                }
                stream.rewind().unwrap();
                prop_assert_eq!(stream.announce(plan.kinds[0]), first + kind.len() as u64);
                stream.rewind().unwrap();
            }
            for end in plan.walk(&stream) {
                prop_assert!(end.is_ok(), "{:?}", end);
            }
            // Residents on their way at a rewind are met anew, so they may take a slot each time; streamed steps never.
            prop_assert!(memory.slots_made() <= plan.slots() + 7 * plan.steps.len() as u64);
            if plan.steps.iter().all(|step| !step.resident) {
                prop_assert_eq!(memory.slots_made(), plan.slots());
            }
            Ok(())
        })?;
    }
}

/// Two workers' worth of slots over steps of 10 bytes, lent `loans` times each.
fn simple(loans: u32, count: u32) -> (Arc<Memory>, Stream) {
    let memory = Arc::new(Memory::new(vec![expected(range(0, 0, LENGTH as usize))]));
    let step = |i| Step { range: range(0, u64::from(i) * 10, 10), loans, resident: false };
    let schedule = Schedule::new((0..count).map(step).collect(), vec![(0..count).collect()]).unwrap();
    let stream = Stream::new(memory.clone(), schedule, 2).unwrap();
    (memory, stream)
}

/// What a closure panics with.
fn panics(call: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("no panic");
    *panic.downcast::<String>().unwrap()
}

#[test]
fn broken_rules_are_named() {
    let (_, stream) = simple(1, 2);
    assert!(panics(|| drop(stream.loan(0))).contains("has not been announced"));
    stream.announce(0);
    let held = stream.loan(1).unwrap();
    assert!(panics(|| drop(stream.loan(1))).contains("has 1 loans and one more"));
    drop(stream.loan(0).unwrap());
    assert!(panics(|| drop(stream.loan(0))).contains("is done"));
    drop(held);
    assert!(panics(|| drop(stream.loan(1))).contains("is done"));
    // None of that harmed the stream.
    let second = stream.announce(0);
    assert_eq!(*stream.loan(second).unwrap(), expected(range(0, 0, 10)));
}

#[test]
fn no_workers_is_an_error() {
    let schedule = simple(1, 1).1.schedule().clone();
    let error = Stream::new(Arc::new(Memory::new(vec![])), schedule, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[test]
fn a_panicking_worker_frees_the_others() {
    let (_, mut stream) = simple(2, 4);
    stream.announce(0);
    thread::scope(|scope| {
        let other = scope.spawn(|| (0..4).try_for_each(|position| stream.loan(position).map(drop)));
        let broken = scope.spawn(|| {
            let _held = stream.loan(0).unwrap();
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(broken.join().is_err());
        // Without the other half of the loans it would wait for ever.
        assert_eq!(other.join().unwrap().unwrap_err().kind(), ErrorKind::Stopped);
    });
    stream.rewind().unwrap();
    let first = stream.announce(0);
    assert_eq!(*stream.loan(first).unwrap(), expected(range(0, 0, 10)));
}

/// A lazy backend that panics when it comes to its third read; others wait meanwhile.
struct Faulty {
    memory: Memory,
    reads: AtomicU64,
}

impl Backend for Faulty {
    fn slot(&self, capacity: usize) -> sluice_loader::Result<Slot> {
        self.memory.slot(capacity)
    }

    fn submit(&self, slot: Slot, range: ByteRange) -> Ticket {
        self.memory.submit(slot, range)
    }

    fn wait(&self, ticket: Ticket) -> Result<Filled, Failed> {
        if self.reads.fetch_add(1, Ordering::Relaxed) == 2 {
            // Long enough for the other worker to finish its own read and to wait for this one.
            thread::sleep(Duration::from_millis(20));
            std::panic::resume_unwind(Box::new(()));
        }
        self.memory.wait(ticket)
    }

    fn release(&self, filled: Filled) -> Slot {
        self.memory.release(filled)
    }

    fn read(&self, range: ByteRange, into: &mut [u8]) -> sluice_loader::Result<Traffic> {
        self.memory.read(range, into)
    }

    fn depth(&self) -> usize {
        0
    }

    fn name(&self) -> &'static str {
        "faulty"
    }

    fn describe(&self) -> String {
        "faulty".to_owned()
    }
}

#[test]
fn a_panic_in_a_backend_frees_the_others() {
    let memory = Memory::new(vec![expected(range(0, 0, LENGTH as usize))]);
    let step = |i: u32| Step { range: range(0, u64::from(i) * 10, 10), loans: 2, resident: i == 3 };
    let schedule = Schedule::new((0..4).map(step).collect(), vec![(0..4).collect()]).unwrap();
    let faulty = Faulty { memory, reads: AtomicU64::new(0) };
    let stream = Arc::new(Stream::new(Arc::new(faulty), schedule, 2).unwrap());
    stream.announce(0);
    let (say, hear) = mpsc::channel();
    let workers = [0, 1].map(|_| {
        let (stream, say) = (Arc::clone(&stream), say.clone());
        thread::spawn(move || {
            let walk = || (0..4).try_for_each(|position| stream.loan(position).map(drop));
            let end = catch_unwind(AssertUnwindSafe(walk));
            say.send(end.map(|end| end.map_err(|error| error.kind())).map_err(drop)).unwrap();
        })
    });
    let mut ends = [0, 1].map(|_| hear.recv_timeout(STUCK).expect("nobody waits for ever"));
    ends.sort_by_key(Result::is_err);
    assert_eq!(ends, [Ok(Err(ErrorKind::Stopped)), Err(())]);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let mut stream = Arc::into_inner(stream).expect("the workers are gone");
    stream.rewind().unwrap();
    let first = stream.announce(0);
    assert_eq!(*stream.loan(first).unwrap(), expected(range(0, 0, 10)));
}

#[test]
fn the_memory_of_a_leaked_loan_is_never_lent_again() {
    let (memory, mut stream) = simple(1, 4);
    let first = stream.announce(0);
    let leaked = stream.loan(first).unwrap();
    let address = leaked.as_ptr();
    std::mem::forget(leaked);
    stream.rewind().unwrap();
    let first = stream.announce(0);
    for position in first..first + 4 {
        assert_ne!(stream.loan(position).unwrap().as_ptr(), address);
    }
    assert_eq!(memory.slots_made(), 3, "one for the leaked");
}

/// A lazy backend whose every odd read is over only when the next one has begun.
struct Paired {
    memory: Memory,
    begun: Mutex<u64>,
    more: Condvar,
}

impl Backend for Paired {
    fn slot(&self, capacity: usize) -> sluice_loader::Result<Slot> {
        self.memory.slot(capacity)
    }

    fn submit(&self, slot: Slot, range: ByteRange) -> Ticket {
        self.memory.submit(slot, range)
    }

    fn wait(&self, ticket: Ticket) -> Result<Filled, Failed> {
        let mut begun = self.begun.lock().unwrap();
        *begun += 1;
        self.more.notify_all();
        let even = begun.next_multiple_of(2);
        let (begun, end) = self.more.wait_timeout_while(begun, STUCK, |begun| *begun < even).unwrap();
        assert!(!end.timed_out(), "nobody began read {even}");
        drop(begun);
        self.memory.wait(ticket)
    }

    fn release(&self, filled: Filled) -> Slot {
        self.memory.release(filled)
    }

    fn read(&self, range: ByteRange, into: &mut [u8]) -> sluice_loader::Result<Traffic> {
        self.memory.read(range, into)
    }

    fn depth(&self) -> usize {
        0
    }

    fn name(&self) -> &'static str {
        "paired"
    }

    fn describe(&self) -> String {
        "paired".to_owned()
    }
}

#[test]
fn two_workers_on_one_step_read_two() {
    let memory = Memory::new(vec![expected(range(0, 0, LENGTH as usize))]);
    let paired = Paired { memory, begun: Mutex::new(0), more: Condvar::new() };
    let step = |i: u32| Step { range: range(0, u64::from(i) * 10, 10), loans: 2, resident: i == 3 };
    let schedule = Schedule::new((0..4).map(step).collect(), vec![(0..4).collect()]).unwrap();
    let stream = Stream::new(Arc::new(paired), schedule, 2).unwrap();
    stream.announce(0);
    // Both want the same step all the time; one that looked on while the other reads would never begin the second read.
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..4).for_each(|position| drop(stream.loan(position).unwrap())));
        }
    });
    assert_eq!(stream.stats().reads, 4);
}

#[test]
fn residents_do_not_all_fly_at_once() {
    let memory = Arc::new(Memory::new(vec![expected(range(0, 0, LENGTH as usize))]).eager(3));
    let step = |i: u32| Step { range: range(0, u64::from(i) * 10, 10), loans: 1, resident: true };
    let schedule = Schedule::new((0..20).map(step).collect(), vec![(0..20).collect()]).unwrap();
    let stream = Stream::new(memory.clone(), schedule, 2).unwrap();
    let first = stream.announce(0);
    assert_eq!(memory.slots_made(), 5, "as many as there are workers and reads ahead");
    let held = stream.loan(first).unwrap();
    assert_eq!(memory.slots_made(), 6, "one has landed, one more was sent off");
    drop(held);
    for position in first + 1..first + 20 {
        drop(stream.loan(position).unwrap());
    }
    assert_eq!(memory.slots_made(), 20);
}

#[test]
fn on_demand_reads_count() {
    let (_, stream) = simple(1, 2);
    let mut row = [0; 7];
    stream.read(range(0, 100, 7), &mut row).unwrap();
    assert_eq!(row[..], expected(range(0, 100, 7)));
    assert_eq!((stream.stats().bytes_read, stream.stats().reads), (7, 1));
    assert!(stream.read(range(0, LENGTH, 1), &mut [0]).is_err());
}

#[test]
fn stopped_until_rewound() {
    let (_, mut stream) = simple(1, 2);
    let first = stream.announce(0);
    stream.stop(Error::new(ErrorKind::Stopped, "go on"));
    stream.stop(Error::new(ErrorKind::Usage, "do anything else"));
    assert_eq!(stream.loan(first).err().unwrap().kind(), ErrorKind::Stopped, "the first reason stays");
    stream.rewind().unwrap();
    let first = stream.announce(0);
    assert!(stream.loan(first).is_ok());
}

/// Sixteen wait for one position each while the only slot is lent. Every submission and every read that is over wakes one of
/// them, and not all.
#[test]
fn who_waits_for_one_position_is_not_woken_for_another() {
    const WAITING: u64 = 16;
    for depth in [0, 1] {
        let memory = Memory::new(vec![vec![7; 100]]);
        let memory = Arc::new(if depth == 0 { memory } else { memory.eager(depth) });
        let step = |i| Step { range: range(0, i, 1), loans: 1, resident: false };
        let first = depth as u64 + 1; // positions that have slots at once
        let steps: Vec<Step> = (0..first + WAITING).map(step).collect();
        let pass = (0..steps.len() as u32).collect();
        let stream = Stream::new(memory, Schedule::new(steps, vec![pass]).unwrap(), 1).unwrap();
        stream.announce(0);
        let total = Mutex::new(Counts::default());
        thread::scope(|scope| {
            let lent = stream.loan(0).unwrap();
            for position in first..first + WAITING {
                let (stream, total) = (&stream, &total);
                scope.spawn(move || {
                    drop(stream.loan(position).unwrap());
                    *total.lock().unwrap() += Counts::of_this_thread();
                });
            }
            thread::sleep(Duration::from_millis(50)); // so that most of them sleep; with fewer less is counted
            drop(lent);
            (1..first).for_each(|position| drop(stream.loan(position).unwrap()));
        });
        let Counts { wakeups, sleeps, .. } = total.into_inner().unwrap();
        assert!(wakeups <= 2 * WAITING && sleeps <= 2 * WAITING, "depth {depth}: {wakeups} and {sleeps}");
    }
}
