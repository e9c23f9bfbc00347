//! The loans of a stream under a model checker that tries every order of locking and waking.
//!
//! Only built with `RUSTFLAGS="--cfg loom" cargo test -p sluice-loader --test loom --release`. Every model must end: a
//! lost wake-up or a slot that does not come back is a deadlock, which loom reports. Bytes carry the number of their
//! step, so that a slot that was given away too early shows.
#![cfg(loom)]

use std::sync::Arc as StdArc;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use sluice_loader::{ByteRange, Error, ErrorKind, Faults, FileIndex, Memory, Schedule, Step, Stream};

/// Bytes per step: the content does not matter, only whose it is.
const LEN: usize = 4;

/// Switches between threads that loom inserts where nothing forces one. Most bugs of this kind need no more than
/// two; three is what fits into a minute.
const PREEMPTIONS: usize = 3;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// `count` steps of which those in `residents` stay, lent `loans` times each, and passes of two kinds: all, and every
/// second step.
fn stream(
    depth: usize,
    workers: usize,
    count: u32,
    loans: u32,
    residents: &[u32],
) -> (StdArc<Memory>, Stream) {
    let bytes = (0..count).flat_map(|step| [step as u8; LEN]).collect();
    let memory = StdArc::new(if depth == 0 {
        Memory::new(vec![bytes])
    } else {
        Memory::new(vec![bytes]).eager(depth)
    });
    let steps = (0..count).map(|step| Step {
        range: ByteRange { file: FileIndex(0), offset: u64::from(step) * LEN as u64, len: LEN },
        loans,
        resident: residents.contains(&step),
    });
    let passes = vec![(0..count).collect(), (0..count).step_by(2).collect()];
    let schedule = Schedule::new(steps.collect(), passes).unwrap();
    let stream = Stream::new(memory.clone(), schedule, workers).unwrap();
    (memory, stream)
}

/// Workers take loans in turn until the order is done, as a team that shares a counter does.
fn dealt(
    depth: usize,
    workers: usize,
    count: u32,
    loans: u32,
    residents: &'static [u32],
    kinds: &'static [usize],
) {
    limited(depth, workers, count, loans, residents, kinds, &[]);
}

/// As [`dealt`], while one more thread lets so many residents stay, one limit after the other.
fn limited(
    depth: usize,
    workers: usize,
    count: u32,
    loans: u32,
    residents: &'static [u32],
    kinds: &'static [usize],
    limits: &'static [u64],
) {
    check(move || {
        let (memory, stream) = stream(depth, workers, count, loans, residents);
        let mut order: Vec<u32> = Vec::new();
        for &kind in kinds {
            stream.announce(kind);
            order.extend(stream.schedule().pass(kind));
        }
        let (stream, order, next) = (Arc::new(stream), StdArc::new(order), Arc::new(AtomicU64::new(0)));
        let work = {
            let (stream, order, next) = (stream.clone(), order.clone(), next.clone());
            move || {
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&step) = order.get(turn as usize / loans as usize) else {
                        return;
                    };
                    let loan = stream.loan(turn / u64::from(loans)).unwrap();
                    assert_eq!(*loan, [step as u8; LEN]);
                }
            }
        };
        let others: Vec<_> = (1..workers).map(|_| thread::spawn(work.clone())).collect();
        let limiter = (!limits.is_empty()).then(|| {
            let stream = stream.clone();
            thread::spawn(move || limits.iter().for_each(|limit| stream.keep(limit * LEN as u64)))
        });
        work();
        for other in others.into_iter().chain(limiter) {
            other.join().unwrap();
        }
        assert_eq!(stream.stats().passes, kinds.len() as u64);
        let made = memory.slots_made() as usize;
        let streamed = if residents.len() < count as usize { workers + depth } else { 0 };
        match limits.last() {
            None => assert_eq!(made, streamed + residents.len(), "none was lost"),
            Some(limit) => {
                assert!(stream.kept_bytes() <= limit * LEN as u64, "nothing is over the limit at the end");
                // With every limit the slots for streamed steps and those of residents may be made anew.
                let most = (1 + limits.len()) * (workers + depth + residents.len());
                assert!(made <= most, "{made} slots");
            }
        }
    });
}

/// The limit falls while the worker holds a resident, reads another, or has not come to it.
#[test]
fn one_worker_loses_its_residents() {
    limited(0, 1, 2, 1, &[0, 1], &[0, 0], &[0]);
    limited(1, 1, 3, 1, &[0, 2], &[0, 0], &[1]);
}

#[test]
fn two_workers_lose_their_residents() {
    limited(0, 2, 2, 1, &[0, 1], &[0, 0], &[0]);
}

#[test]
fn two_workers_lose_a_resident_among_streamed_steps() {
    limited(0, 2, 3, 1, &[1], &[0, 0], &[0]);
}

#[test]
fn two_workers_share_what_they_lose() {
    limited(0, 2, 1, 2, &[0], &[0, 0], &[0]);
}

/// All at once, or one by one when they are gone, while the limit falls.
#[test]
fn a_team_loses_its_residents() {
    check(|| {
        let (_, stream) = stream(0, 1, 2, 1, &[0, 1]);
        let stream = Arc::new(stream);
        stream.announce(0);
        (0..2).for_each(|position| drop(stream.loan(position).unwrap()));
        let limiter = {
            let stream = stream.clone();
            thread::spawn(move || stream.keep(0))
        };
        let first = stream.announce(0);
        match stream.loan_residents(first..first + 2).unwrap() {
            Some(loans) => (0..2).for_each(|i| assert_eq!(loans[i], [i as u8; LEN])),
            None => (0..2).for_each(|i| assert_eq!(*stream.loan(first + i).unwrap(), [i as u8; LEN])),
        }
        limiter.join().unwrap();
        assert_eq!((stream.stats().passes, stream.kept_bytes()), (2, 0));
    });
}

#[test]
fn residents_come_back() {
    limited(0, 1, 2, 1, &[0, 1], &[0, 0], &[0, 2]);
    limited(1, 1, 2, 1, &[1], &[0, 0], &[0, 1]);
}

#[test]
fn one_worker_reads_ahead_across_passes() {
    dealt(1, 1, 3, 1, &[1], &[0, 1, 0]);
}

#[test]
fn two_lazy_workers_take_turns() {
    dealt(0, 2, 4, 1, &[], &[0]);
}

#[test]
fn two_lazy_workers_share_every_step() {
    dealt(0, 2, 2, 2, &[], &[0]);
}

#[test]
fn two_eager_workers_take_turns() {
    dealt(1, 2, 4, 1, &[], &[0]);
}

#[test]
fn two_workers_and_a_resident_shared_across_passes() {
    dealt(0, 2, 2, 1, &[0], &[0, 0]);
}

/// Residents that are there need no slot: what holds a worker back then is the length of the window.
#[test]
fn two_workers_and_nothing_but_residents() {
    dealt(0, 2, 2, 1, &[0, 1], &[0, 0]);
}

#[test]
fn three_lazy_workers_take_turns() {
    dealt(0, 3, 3, 1, &[], &[0]);
}

/// Every worker takes every step: the fastest waits for a slot that the slowest holds.
#[test]
fn every_worker_walks_the_whole_pass() {
    check(|| {
        let (_, stream) = stream(0, 2, 3, 2, &[]);
        stream.announce(0);
        let stream = Arc::new(stream);
        let work = {
            let stream = stream.clone();
            move || {
                for position in 0..3 {
                    assert_eq!(*stream.loan(position).unwrap(), [position as u8; LEN]);
                }
            }
        };
        let other = thread::spawn(work.clone());
        work();
        other.join().unwrap();
        assert_eq!(stream.stats().passes, 1);
    });
}

/// Passes are announced by one worker while the other is already waiting at the end of what there is.
#[test]
fn announcing_races_with_returning() {
    check(|| {
        let (_, stream) = stream(1, 2, 2, 1, &[]);
        stream.announce(0);
        let stream = Arc::new(stream);
        let other = {
            let stream = stream.clone();
            thread::spawn(move || {
                assert_eq!(*stream.loan(1).unwrap(), [1; LEN]);
            })
        };
        stream.announce(0);
        for position in [0, 2, 3] {
            assert_eq!(*stream.loan(position).unwrap(), [position as u8 % 2; LEN]);
        }
        other.join().unwrap();
        assert_eq!(stream.stats().passes, 2);
    });
}

/// An error reaches every worker that comes after it, and a rewound stream has all its slots.
#[test]
fn an_error_reaches_everybody() {
    for depth in [0, 1] {
        check(move || {
            let (memory, stream) = stream(depth, 2, 4, 1, &[2]);
            let bad = ByteRange { file: FileIndex(0), offset: LEN as u64, len: 1 };
            memory.set_faults(Faults { fail: vec![bad], ..Faults::default() });
            stream.announce(0);
            let (stream, next) = (Arc::new(stream), Arc::new(AtomicU64::new(0)));
            let work = {
                let (stream, next) = (stream.clone(), next.clone());
                move || {
                    loop {
                        let position = next.fetch_add(1, Ordering::Relaxed);
                        if position == 4 {
                            return None; // everything else was taken before the error
                        }
                        match stream.loan(position) {
                            Ok(loan) => assert_eq!(loan[0], position as u8),
                            Err(error) => return Some(error.kind()),
                        }
                    }
                }
            };
            let other = thread::spawn(work.clone());
            let mine = work();
            drop(work);
            let both = [mine, other.join().unwrap()];
            assert!(both.contains(&Some(ErrorKind::Read)), "the worker of step 1 gets its error");
            assert!(
                both.iter().flatten().all(|&kind| kind == ErrorKind::Read),
                "and no other error is to be seen"
            );
            let mut stream = Arc::try_unwrap(stream).ok().expect("the other worker is gone");
            memory.set_faults(Faults::default());
            stream.rewind().unwrap();
            let first = stream.announce(0);
            for step in 0..4 {
                assert_eq!(*stream.loan(first + step).unwrap(), [step as u8; LEN]);
            }
            // Not one new slot for streamed steps; the resident's, when it was on its way, was given up.
            assert!(memory.slots_made() as usize <= 2 + depth + 2);
        });
    }
}

/// Stopping from outside wakes a worker that waits for what will never come.
#[test]
fn stopping_wakes_everybody() {
    check(|| {
        let (_, stream) = stream(0, 1, 2, 1, &[]);
        stream.announce(0);
        let stream = Arc::new(stream);
        let first = stream.loan(0).unwrap();
        let other = {
            let stream = stream.clone();
            // The only slot is taken, so this waits until it is stopped.
            thread::spawn(move || stream.loan(1).err().map(|error| error.kind()))
        };
        stream.stop(Error::new(ErrorKind::Stopped, "go on"));
        drop(first);
        assert_eq!(other.join().unwrap(), Some(ErrorKind::Stopped));
    });
}
