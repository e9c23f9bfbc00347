//! Residents that are given back at run time: what is lent stays right, memory really goes, and comes back as it was.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{expected, range, within_limits};
use proptest::prelude::*;
use sluice_loader::{Faults, Memory, Schedule, Step, Stream};

/// Length of the file in bytes.
const LENGTH: u64 = 5_000;

#[derive(Clone, Debug)]
struct Plan {
    steps: Vec<Step>,
    passes: Vec<Vec<u32>>,
    kinds: Vec<usize>, // of the passes to announce
    workers: usize,
    depth: usize,     // 0 for lazy
    limits: Vec<u64>, // in thousandths of all that is resident, set in turn while workers walk
    last: u64,        // and the one that stays
}

fn plans() -> impl Strategy<Value = Plan> {
    let step = (0..LENGTH - 1, 1..600usize, 1..4u32, prop::bool::weighted(0.7));
    let step = step.prop_map(|(offset, len, loans, resident)| Step {
        range: range(0, offset, len.min((LENGTH - offset) as usize)),
        loans,
        resident,
    });
    prop::collection::vec(step, 1..12).prop_flat_map(|steps| {
        let pass = prop::collection::vec(0..steps.len() as u32, 1..14);
        let order = (prop::collection::vec(pass, 1..4), prop::collection::vec(0..64usize, 1..8));
        let limits = (prop::collection::vec(0..1200u64, 1..6), 0..1200u64);
        (order, 1..4usize, 0..4usize, limits).prop_map(
            move |((passes, kinds), workers, depth, (limits, last))| Plan {
                steps: steps.clone(),
                kinds: kinds.iter().map(|kind| kind % passes.len()).collect(),
                passes,
                workers,
                depth,
                limits,
                last,
            },
        )
    })
}

impl Plan {
    /// Takes all loans of all passes, dealt to the workers in turn, while the limit changes all the time.
    fn walk(&self, stream: &Stream, limits: &[u64]) {
        let firsts: Vec<u64> = self.kinds.iter().map(|&kind| stream.announce(kind)).collect();
        let first = firsts[0];
        let order = self.kinds.iter().flat_map(|&kind| &self.passes[kind]);
        let turns: Vec<(u64, u32)> = (first..)
            .zip(order)
            .flat_map(|(position, &step)| (0..self.steps[step as usize].loans).map(move |_| (position, step)))
            .collect();
        let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.workers)
                .map(|_| {
                    scope.spawn(|| {
                        while let Some(&(position, step)) =
                            turns.get(next.fetch_add(1, Ordering::Relaxed) as usize)
                        {
                            let loan = stream.loan(position).unwrap();
                            assert!(*loan == expected(self.steps[step as usize].range), "at {position}");
                            thread::sleep(Duration::from_micros(20));
                            assert!(*loan == expected(self.steps[step as usize].range), "while lent");
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                for &limit in limits.iter().cycle() {
                    stream.keep(limit);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::sleep(Duration::from_micros(30));
                }
            });
            let ends: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            over.store(true, Ordering::Relaxed);
            assert!(ends.into_iter().all(|end| end.is_ok()));
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn limits_do_not_show_in_what_is_lent(plan in plans()) {
        within_limits(move || {
            let memory = Memory::new(vec![expected(range(0, 0, LENGTH as usize))]);
            let memory = Arc::new(if plan.depth == 0 { memory } else { memory.eager(plan.depth) });
            memory.set_faults(Faults { delay: Duration::from_micros(40), ..Faults::default() });
            let schedule = Schedule::new(plan.steps.clone(), plan.passes.clone()).unwrap();
            let mut stream = Stream::new(memory.clone(), schedule.clone(), plan.workers).unwrap();
            let part = |thousandths: u64| schedule.resident_bytes() * thousandths / 1000;
            let limits: Vec<u64> = plan.limits.iter().map(|&limit| part(limit)).collect();
            plan.walk(&stream, &limits);
            stream.keep(part(plan.last));
            prop_assert!(stream.kept_bytes() <= part(plan.last), "{} kept", stream.kept_bytes());
            plan.walk(&stream, &[part(plan.last)]);
            let there = (0..plan.steps.len() as u32).filter(|step| {
                plan.kinds.iter().any(|&kind| plan.passes[kind].contains(step)) && schedule.stays(*step, part(plan.last))
            });
            let wanted: u64 = there.map(|step| plan.steps[step as usize].range.len as u64).sum();
            prop_assert!(stream.kept_bytes() >= wanted, "what may stay does");
            prop_assert!(stream.kept_bytes() <= part(plan.last));
            // In mid-pass, with reads in flight and nobody to take them.
            stream.announce(plan.kinds[0]);
            stream.keep(0);
            stream.rewind().unwrap();
            prop_assert_eq!(stream.kept_bytes(), 0);
            // With no limit everything is as if there had never been one: residents are read once, the others every time.
            stream.keep(u64::MAX);
            plan.walk(&stream, &[u64::MAX]);
            let before = stream.stats();
            plan.walk(&stream, &[u64::MAX]);
            let order = plan.kinds.iter().flat_map(|&kind| &plan.passes[kind]);
            let streamed = order.map(|&step| &plan.steps[step as usize]).filter(|step| !step.resident);
            let bytes: u64 = streamed.map(|step| step.range.len as u64).sum();
            prop_assert_eq!(stream.stats().bytes_read - before.bytes_read, bytes);
            Ok(())
        })?;
    }
}

/// `count` residents of 10 bytes.
fn residents(count: u32, workers: usize) -> (Arc<Memory>, Stream) {
    let memory = Arc::new(Memory::new(vec![expected(range(0, 0, LENGTH as usize))]));
    let step = |i| Step { range: range(0, u64::from(i) * 10, 10), loans: 1, resident: true };
    let schedule = Schedule::new((0..count).map(step).collect(), vec![(0..count).collect()]).unwrap();
    (memory.clone(), Stream::new(memory, schedule, workers).unwrap())
}

fn walk(stream: &Stream) {
    walk_from(stream, stream.announce(0));
}

fn walk_from(stream: &Stream, first: u64) {
    let count = stream.schedule().pass(0).len() as u64;
    (0..count).for_each(|i| assert_eq!(*stream.loan(first + i).unwrap(), expected(range(0, i * 10, 10))));
}

#[test]
fn what_is_lent_goes_when_it_comes_back() {
    let (_, stream) = residents(4, 2);
    walk(&stream);
    assert_eq!((stream.kept_bytes(), stream.limit()), (40, u64::MAX));
    let first = stream.announce(0);
    let held = stream.loan(first + 1).unwrap();
    stream.keep(0);
    // The one before it is in the window as well: nothing can be taken off the middle.
    assert_eq!((stream.kept_bytes(), stream.limit()), (20, 0));
    assert_eq!(*held, expected(range(0, 10, 10)));
    drop(held);
    assert_eq!(stream.kept_bytes(), 10);
    drop(stream.loan(first).unwrap());
    assert_eq!(stream.kept_bytes(), 0);
    for i in 2..4 {
        assert_eq!(*stream.loan(first + i).unwrap(), expected(range(0, i * 10, 10)));
    }
    assert_eq!(stream.kept_bytes(), 0);
}

#[test]
fn many_are_lent_at_once_or_none() {
    let (memory, stream) = residents(4, 2);
    let first = stream.announce(0);
    assert!(stream.loan_residents(first..first + 4).unwrap().is_none(), "none is here yet");
    drop(stream.loan(first).unwrap());
    assert!(stream.loan_residents(first + 1..first + 4).unwrap().is_none(), "one is, and is done");
    (1..4).for_each(|i| drop(stream.loan(first + i).unwrap()));
    let reads = stream.stats().reads;

    let first = stream.announce(0);
    let all = stream.loan_residents(first..first + 4).unwrap().expect("all are here");
    (0..4).for_each(|i| assert_eq!(all[i], expected(range(0, i as u64 * 10, 10))));
    assert!(stream.loan_residents(first + 1..first + 2).unwrap().is_none(), "lent already");
    // Lent bytes stay as they are, and go when they come back.
    stream.keep(0);
    assert_eq!(stream.kept_bytes(), 40);
    (0..4).for_each(|i| assert_eq!(all[i], expected(range(0, i as u64 * 10, 10))));
    drop(all);
    assert_eq!((stream.kept_bytes(), stream.stats().passes, stream.stats().reads), (0, 2, reads));

    let first = stream.announce(0);
    assert!(stream.loan_residents(first..first + 4).unwrap().is_none(), "none may stay");
    assert!(stream.loan_residents(first..first).unwrap().is_some(), "no steps are no steps");
    walk_from(&stream, first);
    memory.set_faults(Faults { fail: vec![range(0, 20, 1)], ..Faults::default() });
    let first = stream.announce(0);
    assert!((0..4).any(|i| stream.loan(first + i).is_err()));
    assert!(stream.loan_residents(first + 3..first + 4).is_err(), "the stream is broken");
}

/// Groups of a pass, some with a streamed step among them, are lent whole or step by step, while limits change.
#[test]
fn limits_do_not_show_in_what_is_lent_at_once() {
    within_limits(|| {
        let memory = Arc::new(Memory::new(vec![expected(range(0, 0, LENGTH as usize))]));
        let step =
            |i: u32| Step { range: range(0, u64::from(i) * 10, 10), loans: 1 + i % 2, resident: i % 8 != 3 };
        let schedule = Schedule::new((0..24).map(step).collect(), vec![(0..24).collect()]).unwrap();
        let stream = Stream::new(memory, schedule, 1).unwrap();
        let (mut at_once, over) = (0, AtomicBool::new(false));
        thread::scope(|scope| {
            let limiter = scope.spawn(|| {
                for limit in [u64::MAX, 0, 100, 210, 50, u64::MAX].into_iter().cycle() {
                    stream.keep(limit);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::sleep(Duration::from_micros(300));
                }
            });
            for _ in 0..2000 {
                let first = stream.announce(0);
                for group in (0..24).step_by(4) {
                    let right = |bytes: &[u8], i: u64| assert_eq!(*bytes, expected(range(0, i * 10, 10)));
                    match stream.loan_residents(first + group..first + group + 4).unwrap() {
                        Some(loans) => {
                            at_once += 1;
                            (0..4).for_each(|i| right(&loans[i], group + i as u64));
                            thread::yield_now();
                            (0..4).for_each(|i| right(&loans[i], group + i as u64));
                        }
                        None => {
                            let loans = (group..group + 4).flat_map(|i| (0..1 + i % 2).map(move |_| i));
                            loans.for_each(|i| right(&stream.loan(first + i).unwrap(), i));
                        }
                    }
                }
            }
            over.store(true, Ordering::Relaxed);
            limiter.join().unwrap();
        });
        assert!((1..3 * 2000).contains(&at_once), "{at_once} of 6000 groups: both ways are to be seen");
        assert_eq!(stream.stats().passes, 2000);
        stream.keep(0);
        assert_eq!(stream.kept_bytes(), 0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn every_other_one_is_read_again() {
    let (memory, stream) = residents(100, 1);
    walk(&stream);
    stream.keep(500);
    assert_eq!(stream.kept_bytes(), 500);
    let reads = || stream.stats().reads;
    let before = reads();
    walk(&stream);
    assert_eq!(reads() - before, 50);
    stream.keep(u64::MAX);
    walk(&stream);
    assert_eq!((reads() - before, stream.kept_bytes()), (100, 1000), "those fifty once more, to stay");
    walk(&stream);
    assert_eq!(reads() - before, 100);
    assert_eq!(memory.slots_made(), 100 + 1 + 50, "one slot was enough for what was over the limit");
}

/// The memory of a resident is the system's again when `keep` returns, by the kernel's own count.
#[test]
#[cfg(target_os = "linux")]
fn memory_goes_back_to_the_system() {
    use std::io::Write;

    use sluice_loader::{Choice, Direct, Options, open};

    const CHUNK: usize = 1 << 20; // as long as a real one
    const COUNT: u32 = 48;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for chunk in 0..COUNT {
        file.write_all(&vec![chunk as u8; CHUNK]).unwrap();
    }
    let anon = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    for backend in [Choice::Pread, Choice::Uring] {
        let options = Options { backend, direct: Direct::Off, workers: 1, ..Options::default() };
        let Ok(opened) = open(&[file.path().to_owned()], &options) else {
            assert_eq!(backend, Choice::Uring, "pread is always to be had");
            continue; // forbidden here
        };
        let step =
            |i: u32| Step { range: range(0, u64::from(i) * CHUNK as u64, CHUNK), loans: 1, resident: true };
        let schedule = Schedule::new((0..COUNT).map(step).collect(), vec![(0..COUNT).collect()]).unwrap();
        let stream = Stream::new(opened.backend, schedule, 1).unwrap();
        let pass = || {
            let first = stream.announce(0);
            for i in 0..COUNT {
                let loan = stream.loan(first + u64::from(i)).unwrap();
                assert!(loan.iter().all(|&byte| byte == i as u8));
            }
        };
        pass();
        let (most, part) = (stream.resident_bytes(), stream.resident_bytes() / 4);
        // Other tests of this process take and give memory too, much less than that.
        let slack = 8 << 20;
        let full = anon();
        stream.keep(part);
        let fallen = full.saturating_sub(anon());
        assert!(fallen + slack > most - part, "{backend:?}: {fallen} bytes came back of {}", most - part);
        pass();
        assert!(full.saturating_sub(anon()) + slack > most - part, "{backend:?}: and stay away");
        stream.keep(most);
        pass();
        assert!(anon() + slack > full, "{backend:?}: all are here again");
    }
}
