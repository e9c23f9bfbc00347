//! `--compare A B`: which cells of B differ from those of A by more than their own spread.

use super::rates;
use super::record::{Record, Status};
use super::summary::{Row, Stats, rows};
use crate::sh::Result;
use std::path::Path;

/// What became of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Same,
    Better,
    /// It moved, by less than the threshold.
    Worse,
    Regression,
}

/// One figure of a cell in both records.
#[derive(Debug)]
struct Moved {
    id: String,
    what: &'static str,
    before: f64,
    after: f64,
    /// Change as a share, positive when better.
    gain: f64,
    spread: f64,
    verdict: Verdict,
}

/// Compares the records and prints what moved.
///
/// # Errors
/// When a cell, or all together, lost more than `threshold` (a share) of the speed, or a cell takes more memory by as much,
/// and by more than both records' spread; or when a cell that ran in A does not in B.
pub fn compare(before: &Path, after: &Path, threshold: f64) -> Result {
    let (a, b) = (Record::read(before)?, Record::read(after)?);
    for (path, record) in [(before, &a), (after, &b)] {
        if record.end.is_none() {
            return Err(format!("{}: interrupted; run it again with the same flags first", path.display()));
        }
    }
    let (mut of_a, mut of_b) = (rows(&a), rows(&b));
    let known = |record: &Record| record.disks.iter().all(rates::is_known);
    if known(&a) != known(&b) {
        println!(
            "the disk was measured in other ways: cold cells are compared by speed, not by their share of its rate"
        );
        of_a.iter_mut().chain(&mut of_b).for_each(|row| row.share = None);
    }
    let (mut found, lost) = moved(&of_a, &of_b, threshold);
    found.extend(together(&found, threshold));
    found.sort_by(|a, b| a.gain.total_cmp(&b.gain));
    if found.is_empty() {
        return Err("no cell is in both records".into());
    }
    for it in found.iter().filter(|it| it.verdict != Verdict::Same) {
        println!(
            "{:<10} {:<70} {}: {:.2} to {:.2}, {:+.1} % (spread {:.1} %)",
            match it.verdict {
                Verdict::Regression => "REGRESSION",
                Verdict::Worse => "worse",
                _ => "better",
            },
            it.id,
            it.what,
            it.before,
            it.after,
            100.0 * (it.after / it.before - 1.0),
            100.0 * it.spread
        );
    }
    lost.iter().for_each(|id| println!("REGRESSION {id}: ran before, and does not now"));
    let count = |verdict| found.iter().filter(|it| it.verdict == verdict).count();
    let regressions = count(Verdict::Regression) + lost.len();
    println!(
        "{} figures: {} the same, {} better, {} worse, {regressions} regressions of more than {:.0} %",
        found.len(),
        count(Verdict::Same),
        count(Verdict::Better),
        count(Verdict::Worse),
        100.0 * threshold
    );
    if regressions == 0 { Ok(()) } else { Err(format!("{regressions} regressions")) }
}

/// Every figure that both have, and the cells that run in `before` only.
fn moved(before: &[Row], after: &[Row], threshold: f64) -> (Vec<Moved>, Vec<String>) {
    let (mut found, mut lost) = (Vec::new(), Vec::new());
    for old in before.iter().filter(|row| row.status == Status::Ok) {
        let id = old.word("id");
        let Some(new) = after.iter().find(|row| row.word("id") == id) else {
            continue;
        };
        if new.status != Status::Ok {
            lost.push(id.to_string());
            continue;
        }
        // The disk's rate changes from minute to minute: what counts of a cold cell is its share of it.
        let (what, speeds) = match (old.share, new.share) {
            (Some(a), Some(b)) if old.word("cache") == "cold" => ("share of the bound", Some((a, b))),
            _ => ("speed", old.speed.zip(new.speed)),
        };
        let figures = [(what, speeds, 1.0), ("peak memory, MB", old.peak.zip(new.peak), -1.0)];
        for (what, stats, sign) in figures {
            let unit = if sign < 0.0 { 1e6 } else { 1.0 };
            found.extend(stats.map(|(a, b)| judge(id, what, a, b, sign, unit, threshold)));
        }
    }
    (found, lost)
}

fn judge(id: &str, what: &'static str, a: Stats, b: Stats, sign: f64, unit: f64, threshold: f64) -> Moved {
    let gain = sign * (b.median / a.median - 1.0);
    // Each median may be off by its own spread.
    let spread = a.spread + b.spread;
    let verdict = if gain.abs() <= spread || gain.abs() < SEEN {
        Verdict::Same
    } else if gain > 0.0 {
        Verdict::Better
    } else if -gain > threshold {
        Verdict::Regression
    } else {
        Verdict::Worse
    };
    Moved { id: id.into(), what, before: a.median / unit, after: b.median / unit, gain, spread, verdict }
}

/// The speed of all cells as one figure: what slows every cell a little shows here before it shows in any of them.
fn together(found: &[Moved], threshold: f64) -> Option<Moved> {
    let speeds: Vec<&Moved> = found.iter().filter(|it| !it.what.starts_with("peak")).collect();
    let count = speeds.len() as f64;
    if speeds.len() < 2 {
        return None;
    }
    let mean = |of: &dyn Fn(&Moved) -> f64| speeds.iter().map(|it| of(it)).sum::<f64>() / count;
    let ratio = mean(&|it| (it.after / it.before).ln()).exp();
    // Cells are measured independently of each other, so the spread of their mean shrinks with the root of their number.
    let spread = mean(&|it| it.spread) / count.sqrt();
    let stats = |median: f64, spread: f64| Stats { median, min: median, max: median, spread };
    let id = format!("all {} cells", speeds.len());
    Some(judge(&id, "mean speed", stats(1.0, 0.0), stats(ratio, spread), 1.0, 1.0, threshold))
}

/// Less is not worth a line, however steady a cell is: peak memory repeats to the page.
const SEEN: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::{Repetition, tests::repetition};
    use serde_json::json;

    fn of(cache: &str, speeds: &[f64], disk: Option<f64>) -> Vec<Row> {
        let cell = json!({"id": "a", "engine": "sluice", "cache": cache});
        let one = |(round, speed): (usize, &f64)| Repetition {
            disk_rate: disk,
            ..repetition("a", round as u32, *speed)
        };
        let repetitions = speeds.iter().enumerate().map(one).collect();
        rows(&Record { run: json!({"kind": "run", "cells": [cell]}), repetitions, disks: vec![], end: None })
    }

    fn verdict(a: &[Row], b: &[Row]) -> Verdict {
        let (found, lost) = moved(a, b, 0.05);
        assert!(lost.is_empty() && found.len() == 2);
        assert_eq!(found[1].verdict, Verdict::Same, "memory is the same");
        assert!((found[0].gain < 0.0) == (found[0].after < found[0].before));
        found[0].verdict
    }

    #[test]
    fn a_tenth_is_found_and_noise_is_not() {
        let before = of("warm", &[50.0, 51.0, 49.5, 50.5, 50.2], None);
        let slower =
            |factor: f64| of("warm", &[50.1, 49.8, 51.2, 50.4, 49.9].map(|speed| speed * factor), None);
        assert_eq!(verdict(&before, &slower(1.0)), Verdict::Same);
        assert_eq!(verdict(&before, &slower(0.9)), Verdict::Regression);
        assert_eq!(verdict(&before, &slower(0.97)), Verdict::Worse);
        assert_eq!(verdict(&before, &slower(1.1)), Verdict::Better);
        // The same loss in cells that jump about as much is none.
        let wild =
            |factor: f64| of("warm", &[40.0, 62.0, 50.0, 45.0, 56.0].map(|speed| speed * factor), None);
        assert_eq!(verdict(&wild(1.0), &wild(0.9)), Verdict::Same);
    }

    #[test]
    fn a_little_less_everywhere_is_found_in_all_together() {
        let one = |factor: f64| Moved {
            id: "a".into(),
            what: "speed",
            before: 50.0,
            after: 50.0 * factor,
            gain: factor - 1.0,
            spread: 0.12,
            verdict: Verdict::Same,
        };
        let all = |factors: [f64; 4]| together(&factors.map(one), 0.05).unwrap().verdict;
        assert_eq!(all([0.9, 0.88, 0.93, 0.89]), Verdict::Regression);
        assert_eq!(all([1.04, 0.97, 0.95, 1.03]), Verdict::Same);
        assert!(together(&[one(0.5)], 0.05).is_none(), "one cell speaks for itself");
    }

    #[test]
    fn a_slower_disk_is_not_our_fault() {
        let fast = of("cold", &[3.6, 3.61, 3.59, 3.6], Some(2e9));
        let slow = of("cold", &[1.8, 1.81, 1.79, 1.8], Some(1e9));
        assert_eq!(verdict(&fast, &slow), Verdict::Same);
    }

    #[test]
    fn a_cell_that_fails_now_is_lost() {
        let before = of("warm", &[50.0], None);
        let mut after = of("warm", &[50.0], None);
        after[0].status = Status::Failed;
        assert_eq!(moved(&before, &after, 0.05).1, ["a"]);
    }
}
