//! The team's regions under a model checker that tries every order of waking and falling asleep.
//!
//! Only built with `RUSTFLAGS="--cfg loom" cargo test -p sluice-model --test loom --release`. Every model must end: a lost
//! wake-up is a deadlock, which loom reports; and who touches a job or a piece that another may touch is reported too. Workers
//! never spin here.
#![cfg(loom)]
#![allow(dead_code, reason = "a part of the crate by itself")]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/team.rs"]
mod team;

/// As much of the crate's as a team speaks of.
mod error {
    #[derive(Debug)]
    pub enum Error {
        Machine { what: String, source: std::io::Error },
    }

    pub type Result<T> = std::result::Result<T, Error>;
}

use team::{Deal, Team};

/// Switches between threads that loom inserts where nothing forces one; three is what fits into a minute.
const PREEMPTIONS: usize = 3;

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A region in which so many workers take so many pieces; all are taken when it has ended.
fn region(team: &Team, workers: usize, pieces: usize) {
    let deal = Deal::new(0..pieces);
    let done = AtomicUsize::new(0);
    team.run(workers, |worker| {
        assert!(worker < workers.max(1));
        while deal.take_front(0).is_some() {
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), pieces);
}

#[test]
fn two_workers_and_regions_one_after_the_other() {
    check(PREEMPTIONS, || {
        let team = Team::new(2).unwrap();
        region(&team, 2, 2);
        region(&team, 2, 1);
    });
}

#[test]
fn a_worker_that_is_not_wanted_sleeps_on() {
    check(PREEMPTIONS, || {
        let team = Team::new(2).unwrap();
        region(&team, 1, 1);
        region(&team, 2, 1);
        region(&team, 1, 1);
    });
}

/// Two for the caller to wake; the first has nobody below.
#[test]
fn three_workers() {
    check(2, || {
        let team = Team::new(3).unwrap();
        region(&team, 3, 2);
    });
}

/// The last is woken by the second, if that comes.
#[test]
fn a_worker_wakes_those_below() {
    check(1, || {
        let team = Team::new(4).unwrap();
        region(&team, 4, 2);
    });
}

/// A worker that has left, or is about to, or has not come yet.
#[test]
fn calling_back_races_with_leaving() {
    check(PREEMPTIONS, || {
        let team = Team::new(2).unwrap();
        let deal = Deal::divided(vec![0, 1, 2], [1, 3]);
        let (open, done) = (AtomicUsize::new(1), AtomicUsize::new(0));
        team.run(2, |worker| {
            let take = || {
                for span in 0..open.load(Ordering::Acquire) {
                    while deal.take_front(span).is_some() {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            };
            take();
            if worker == 0 {
                open.store(2, Ordering::Release);
                team.call_back();
                take();
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn each_thing_is_taken_once() {
    check(PREEMPTIONS, || {
        let deal = Arc::new(Deal::new(0..3));
        let other = {
            let deal = deal.clone();
            loom::thread::spawn(move || [deal.take_back(0), deal.take_back(0)])
        };
        let mut all: Vec<usize> = [deal.take_front(0), deal.take_front(0)].into_iter().flatten().collect();
        all.extend(other.join().unwrap().into_iter().flatten());
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    });
}
