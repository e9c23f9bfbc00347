//! Figures of a record: a row for each cell, its repetitions put together.

use super::record::{Record, Repetition, Status};
use serde_json::Value;

/// What several repetitions gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// The middle one; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
    /// Half the distance between the quartiles over the median; of fewer than four repetitions half the whole range.
    pub spread: f64,
}

impl Stats {
    /// Of at least one number.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = numbers.into_iter().filter(|number| number.is_finite()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let at = |share: f64| {
            let place = share * (sorted.len() - 1) as f64;
            let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        let median = at(0.5);
        let range = if sorted.len() < 4 { max - min } else { at(0.75) - at(0.25) };
        Some(Self { median, min, max, spread: range / 2.0 / median.abs().max(f64::MIN_POSITIVE) })
    }
}

/// What a cell cannot be faster than.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading what is streamed from the disk.
    Disk,
    /// Reading all weights from memory.
    Memory,
}

impl Bound {
    /// Its word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Memory => "memory",
        }
    }
}

/// A cell with its figures.
#[derive(Clone, Debug)]
pub struct Row {
    /// The cell as the record has it.
    pub cell: Value,
    /// `Ok`, or how the first repetition that did not go well ended.
    pub status: Status,
    /// Why.
    pub reason: String,
    /// Tokens per second, or for the loader gigabytes (10^9) per second.
    pub speed: Option<Stats>,
    /// Tokens of the prompt per second.
    pub prefill: Option<Stats>,
    /// VmHWM in bytes.
    pub peak: Option<Stats>,
    /// Bytes that a pass streams.
    pub streamed: f64,
    /// The most that the container was charged with, in bytes.
    pub group_peak: Option<f64>,
    /// The disk's rate beside each repetition, in bytes per second.
    pub disk: Option<Stats>,
    /// Speed over the bound's, repetition by repetition.
    pub share: Option<Stats>,
    /// Which bound that is.
    pub bound: Option<Bound>,
}

impl Row {
    /// A word of the cell: `model`, `engine`, `way`, `budget`, `head`, `cache`, `id`.
    pub fn word(&self, axis: &str) -> &str {
        self.cell[axis].as_str().unwrap_or_default()
    }

    /// Worker threads.
    pub fn threads(&self) -> u64 {
        self.cell["threads"].as_u64().unwrap_or(0)
    }

    /// The container's ceiling in bytes.
    pub fn limit(&self) -> Option<u64> {
        self.cell["limit_bytes"].as_u64()
    }

    /// Whether it generated text, here or elsewhere.
    pub fn generates(&self) -> bool {
        self.word("engine") != "loader"
    }
}

/// The rows of a record, in the order of its cells; cells without a repetition have none.
pub fn rows(record: &Record) -> Vec<Row> {
    let cells = record.run["cells"].as_array().map_or(&[][..], Vec::as_slice);
    cells.iter().filter_map(|cell| row(cell, record)).collect()
}

fn row(cell: &Value, record: &Record) -> Option<Row> {
    let id = cell["id"].as_str()?;
    let all: Vec<&Repetition> = record.repetitions.iter().filter(|r| r.cell == id).collect();
    let good: Vec<&Repetition> = all.iter().copied().filter(|r| r.status == Status::Ok).collect();
    let worst = all.iter().find(|r| r.status != Status::Ok).or(all.first())?;
    let numbers = |pointer: &'static str| good.iter().filter_map(move |r| r.number(pointer));
    let loader = cell["engine"] == "loader";
    let kib = |kib: f64| kib * 1024.0;
    let bounds: Vec<(f64, Bound)> = good.iter().filter_map(|r| share(cell, r)).collect();
    Some(Row {
        cell: cell.clone(),
        status: worst.status,
        reason: worst.reason.clone(),
        speed: Stats::of(numbers(if loader { "/gb_s" } else { "/timings/decode_tok_s" })),
        prefill: Stats::of(numbers("/timings/prefill_tok_s")),
        peak: if loader {
            Stats::of(numbers("/vm_hwm_kb").map(kib))
        } else {
            Stats::of(numbers("/memory/peak_rss_bytes"))
        },
        streamed: numbers("/io/streamed_bytes_per_pass").next().unwrap_or(0.0),
        group_peak: all.iter().filter_map(|r| r.group_peak_bytes).max().map(|bytes| bytes as f64),
        disk: Stats::of(good.iter().filter_map(|r| r.disk_rate)),
        share: Stats::of(bounds.iter().map(|(share, _)| *share)),
        bound: bounds.first().map(|(_, bound)| *bound),
    })
}

/// The share of the bound that a repetition reached, and the bound; `None` where no rate was measured beside it.
///
/// A pass takes at least as long as the disk for what a cold one streams, and as the memory for all weights.
fn share(cell: &Value, r: &Repetition) -> Option<(f64, Bound)> {
    let cold = cell["cache"] == "cold";
    let memory = r.memory_rate?;
    if let Some(rate) = r.number("/gb_s") {
        let (best, bound) = if cold { (r.disk_rate?, Bound::Disk) } else { (memory, Bound::Memory) };
        return Some((rate * 1e9 / best, bound));
    }
    let speed = r.number("/timings/decode_tok_s")?;
    let (streamed, resident) = (r.number("/io/streamed_bytes_per_pass")?, r.number("/io/resident_bytes")?);
    let by_memory = (streamed + resident) / memory;
    let by_disk = if cold { streamed / r.disk_rate? } else { 0.0 };
    let bound = if by_disk > by_memory { Bound::Disk } else { Bound::Memory };
    Some((by_disk.max(by_memory) * speed, bound))
}

/// Indices of the points (memory, speed) that no other beats in both: by memory, each faster than the one before.
pub fn pareto(points: &[(f64, f64)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|&a, &b| points[a].0.total_cmp(&points[b].0).then(points[b].1.total_cmp(&points[a].1)));
    let mut fastest = f64::NEG_INFINITY;
    order.retain(|&i| {
        let better = points[i].1 > fastest;
        fastest = fastest.max(points[i].1);
        better
    });
    order
}

/// For each engine and budget of the rows, in their order, the fastest that went well.
pub fn fastest_by_budget<'a>(rows: &[&'a Row]) -> Vec<&'a Row> {
    let mut best: Vec<&Row> = Vec::new();
    for row in rows.iter().filter(|row| row.status == Status::Ok && row.speed.is_some()) {
        let speed = |row: &Row| row.speed.map_or(0.0, |speed| speed.median);
        // Without a budget of ours the container decides what is taken, so that each is a case of its own.
        let container = |row: &Row| {
            let alone = row.word("budget") == "auto" || row.word("engine") == "llama-cpp-python";
            if alone { row.limit() } else { None }
        };
        let key =
            |row: &Row| (row.word("engine").to_string(), row.word("budget").to_string(), container(row));
        let alike = |other: &&mut &Row| key(other) == key(row);
        match best.iter_mut().find(alike) {
            Some(other) if speed(other) < speed(row) => *other = row,
            Some(_) => {}
            None => best.push(row),
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::repetition;
    use serde_json::json;

    fn record(cache: &str, repetitions: Vec<Repetition>) -> Record {
        let cell = json!({"id": "a", "engine": "sluice", "cache": cache, "budget": "min"});
        let run = json!({"kind": "run", "cells": [cell, {"id": "never run"}]});
        Record { run, repetitions, disks: vec![], end: None }
    }

    #[test]
    fn medians_quartiles_and_ranges() {
        let stats = Stats::of([4.0, 1.0, 2.0, 3.0, 10.0]).unwrap();
        assert_eq!((stats.median, stats.min, stats.max), (3.0, 1.0, 10.0));
        assert!((stats.spread - 1.0 / 3.0).abs() < 1e-12, "half of 4 - 2 over 3: {}", stats.spread);
        assert_eq!(Stats::of([2.0, 4.0]).unwrap().median, 3.0);
        assert!((Stats::of([9.0, 10.0, 12.0]).unwrap().spread - 0.15).abs() < 1e-12);
        assert_eq!(Stats::of([f64::NAN]), None);
    }

    #[test]
    fn a_warm_cell_is_bound_by_memory_and_a_cold_one_by_what_it_streams() {
        // 500 MB at 40 GB/s are 12.5 ms; at 2 GB/s 250 ms.
        let warm = &rows(&record("warm", vec![repetition("a", 0, 40.0)]))[0];
        assert_eq!((warm.bound, warm.share.unwrap().median), (Some(Bound::Memory), 0.5));
        let cold = Repetition { disk_rate: Some(2e9), ..repetition("a", 0, 3.6) };
        let cold = &rows(&record("cold", vec![cold]))[0];
        assert_eq!(cold.bound, Some(Bound::Disk));
        assert!((cold.share.unwrap().median - 0.9).abs() < 1e-12);
    }

    #[test]
    fn a_bad_repetition_marks_the_row_and_counts_in_no_figure() {
        let bad = Repetition {
            status: Status::Failed,
            reason: "not cold".into(),
            report: Value::Null,
            ..repetition("a", 1, 0.0)
        };
        let rows = rows(&record("warm", vec![repetition("a", 0, 40.0), bad]));
        assert_eq!(rows.len(), 1, "a cell that never ran has no row");
        assert_eq!((rows[0].status, rows[0].reason.as_str()), (Status::Failed, "not cold"));
        assert_eq!(rows[0].speed.unwrap().min, 40.0);
        assert!(fastest_by_budget(&[&rows[0]]).is_empty());
    }

    #[test]
    fn the_peer_in_another_container_is_another_case() {
        let cell = |id: &str, engine: &str, limit: u64| json!({"id": id, "engine": engine, "cache": "cold", "budget": "all", "limit_bytes": limit});
        let peer = "llama-cpp-python";
        let cells = [cell("a", "sluice", 1), cell("b", "sluice", 2), cell("c", peer, 1), cell("d", peer, 2)];
        let repetitions = ["a", "b", "c", "d"].map(|id| repetition(id, 0, 40.0)).to_vec();
        let run = json!({"kind": "run", "cells": cells});
        let rows = rows(&Record { run, repetitions, disks: vec![], end: None });
        let fastest = fastest_by_budget(&rows.iter().collect::<Vec<_>>());
        let ids: Vec<&str> = fastest.iter().map(|row| row.word("id")).collect();
        assert_eq!(ids, ["a", "c", "d"]);
    }

    #[test]
    fn the_front_is_what_nothing_beats() {
        let points = [(20.0, 5.0), (10.0, 3.0), (30.0, 4.0), (40.0, 6.0), (10.0, 2.0), (50.0, 6.0)];
        assert_eq!(pareto(&points), [1, 0, 3]);
        assert!(pareto(&[]).is_empty());
    }
}
