//! The pictures of a record: memory against speed, time against streamed bytes, and what the head costs.

use super::chart::{Axis, Chart, Look, Mark, short};
use super::record::Status;
use super::summary::{Row, Stats, pareto};

/// A picture: what its file's name ends in, what it shows, and the SVG.
pub struct Picture {
    /// Such as `memory-tinyllama_1b-warm`.
    pub name: String,
    /// For those who don't see it.
    pub alt: String,
    /// The file.
    pub svg: String,
}

/// Ways in the order of their colours; what is none of them is drawn in the last.
const WAYS: [&str; 5] = ["mmap", "pread", "uring", "pread+direct", "uring+direct"];

/// Colour of the front, and of lines for bounds: that of text.
const INK: usize = 6;
/// Colour of llama.cpp and of `auto`.
const OTHER: usize = 5;

/// Speeds that differ by more than this factor are drawn on a logarithmic axis.
const WIDE: f64 = 6.0;

/// Every picture that these rows have enough for.
pub fn of(rows: &[Row]) -> Vec<Picture> {
    let good: Vec<&Row> = rows
        .iter()
        .filter(|row| {
            row.status == Status::Ok && row.generates() && row.speed.is_some() && row.peak.is_some()
        })
        .collect();
    let mut models: Vec<&str> = good.iter().map(|row| row.word("model")).collect();
    models.sort_unstable();
    models.dedup();
    let mut pictures = Vec::new();
    for model in models {
        let of_model: Vec<&Row> = good.iter().copied().filter(|row| row.word("model") == model).collect();
        for cache in ["warm", "cold"] {
            let here: Vec<&Row> = of_model.iter().copied().filter(|row| row.word("cache") == cache).collect();
            // Two points are bars, not a front.
            if here.len() > 2 {
                pictures.push(memory(model, cache, &here));
            }
        }
        let streams =
            |row: &&&Row| row.word("cache") == "cold" && row.word("engine") == "sluice" && row.streamed > 0.0;
        // One point says nothing of how time follows the bytes.
        if of_model.iter().filter(streams).count() > 1 {
            pictures.push(passes(model, &of_model));
        }
    }
    pictures.extend(head(&good));
    pictures
}

fn series(row: &Row) -> usize {
    if row.word("engine") != "sluice" {
        return OTHER;
    }
    WAYS.iter().position(|way| *way == row.word("way")).unwrap_or(OTHER)
}

fn mark(row: &Row) -> Mark {
    match row.word("head") {
        "resident" => Mark::Square,
        _ if row.word("engine") != "sluice" => Mark::Triangle,
        _ => Mark::Circle,
    }
}

fn median(stats: Option<Stats>) -> f64 {
    stats.map_or(0.0, |stats| stats.median)
}

/// Peak memory of the process in MB.
fn megabytes(row: &Row) -> f64 {
    median(row.peak) / 1e6
}

/// Whether a row took a good part of its budget, where that is a number: a mapping streams everything whatever part of it
/// may stay, and to call its point by a budget that it has no use for would mislead.
fn used(row: &Row) -> bool {
    let percent = row.word("budget").strip_suffix('%').and_then(|percent| percent.parse::<f64>().ok());
    let file = row.cell["file_bytes"].as_f64().unwrap_or(0.0);
    percent.is_none_or(|percent| median(row.peak) > 0.5 * file * percent / 100.0)
}

/// Adds to the legend what these rows need: colours by way, shapes by head, filling by threads.
fn keys(chart: &mut Chart, rows: &[&Row], most_threads: u64) {
    let look = |series| Look { series, filled: true };
    for (i, way) in WAYS.iter().enumerate() {
        if rows.iter().any(|row| series(row) == i) {
            chart.key(Mark::Circle, look(i), &way.replace('+', ", "));
        }
    }
    if rows.iter().any(|row| row.word("engine") == "sluice" && series(row) == OTHER) {
        chart.key(Mark::Circle, look(OTHER), "auto");
    }
    if rows.iter().any(|row| row.word("engine") != "sluice") {
        chart.key(Mark::Triangle, look(OTHER), "llama.cpp");
    }
    if rows.iter().any(|row| mark(row) == Mark::Square) {
        chart.key(Mark::Circle, look(INK), "head streamed");
        chart.key(Mark::Square, look(INK), "head resident");
    }
    if rows.iter().any(|row| row.threads() < most_threads) {
        chart.key(Mark::Circle, look(INK), &threads_words(most_threads));
        chart.key(Mark::Circle, Look { series: INK, filled: false }, "fewer threads");
    }
}

/// A number of threads in words.
pub fn threads_words(threads: u64) -> String {
    if threads == 1 { "1 thread".into() } else { format!("{threads} threads") }
}

fn hint(row: &Row) -> String {
    format!("{}: {} tok/s, {} MB", row.word("id"), short(median(row.speed)), short(megabytes(row)))
}

/// Memory against tokens per second, the Pareto front marked with the budgets.
fn memory(model: &str, cache: &str, rows: &[&Row]) -> Picture {
    let points: Vec<(f64, f64)> = rows.iter().map(|row| (megabytes(row), median(row.speed))).collect();
    let least = points.iter().map(|(x, _)| *x).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(|(x, _)| *x).fold(0.0, f64::max);
    let fastest = points.iter().map(|(_, y)| *y).fold(0.0, f64::max);
    let threads = rows.iter().map(|row| row.threads()).max().unwrap_or(1);
    let file = rows.first().and_then(|row| row.cell["file_bytes"].as_f64()).unwrap_or(0.0) / 1e6;
    let title = format!("What memory buys: {model}, {cache}");
    let below =
        format!("A file of {} MB. Each point is a cell of the matrix, its repetitions' median.", short(file));
    let x = Axis::log("peak memory of the process (VmHWM), MB", least, most);
    let slowest = points.iter().map(|(_, y)| *y).fold(fastest, f64::min);
    // Where the slow end would lie on the floor, equal ratios are equal distances.
    let y = match fastest / slowest {
        ratio if ratio > WIDE => Axis::log("tokens per second", slowest, fastest),
        _ => Axis::linear("tokens per second", fastest),
    };
    let mut chart = Chart::new([&title, &below], x, y);
    let front = pareto(&points);
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for &i in &front {
        if let Some(&(_, y)) = steps.last() {
            steps.push((points[i].0, y));
        }
        steps.push(points[i]);
    }
    chart.line(&steps, INK, false);
    for (row, &(x, y)) in rows.iter().zip(&points) {
        let look = Look { series: series(row), filled: row.threads() == threads };
        chart.point(x, y, mark(row), look, &hint(row));
    }
    let mut named = Vec::new();
    for &i in &front {
        let budget = match (rows[i].word("budget"), rows[i].limit()) {
            // Without a budget it is the container that decides.
            ("auto", Some(limit)) => format!("auto in {} MiB", limit >> 20),
            (budget, _) => budget.to_string(),
        };
        if rows[i].word("engine") == "sluice" && used(rows[i]) && !named.contains(&budget) {
            chart.note(points[i].0, points[i].1, &budget);
            named.push(budget);
        }
    }
    keys(&mut chart, rows, threads);
    chart.key_line(INK, false, "Pareto front");
    Picture {
        name: format!("memory-{model}-{cache}"),
        alt: format!("{model}, {cache}: peak memory against tokens per second"),
        svg: chart.svg(),
    }
}

/// Seconds of a pass against the bytes that it streams, with the disk's line.
fn passes(model: &str, rows: &[&Row]) -> Picture {
    let own: Vec<&Row> = rows.iter().copied().filter(|row| row.word("engine") == "sluice").collect();
    let threads = own.iter().map(|row| row.threads()).max().unwrap_or(1);
    let cold: Vec<&Row> =
        own.iter().copied().filter(|row| row.word("cache") == "cold" && row.threads() == threads).collect();
    let seconds = |row: &Row| 1.0 / median(row.speed);
    let most = cold.iter().map(|row| row.streamed / 1e6).fold(0.0, f64::max);
    let disk = Stats::of(cold.iter().filter_map(|row| row.disk).map(|disk| disk.median));
    let slowest = cold.iter().map(|row| seconds(row)).fold(0.0, f64::max);
    let title = format!("Time follows the bytes: {model}, cold");
    let below =
        format!("Seconds per generated token against what its pass streams; {}.", threads_words(threads));
    let [x, y] = [Axis::linear("streamed in a pass, MB", most), Axis::linear("seconds per token", slowest)];
    let mut chart = Chart::new([&title, &below], x, y);
    if let Some(disk) = disk {
        // Megabytes over bytes per second; the picture's edges cut them off.
        let (most, _) = chart.ends();
        let end = |rate: f64| (most, most * 1e6 / rate);
        chart.fan((0.0, 0.0), end(disk.max), end(disk.min), INK);
        chart.line(&[(0.0, 0.0), end(disk.median)], INK, true);
    }
    for row in &cold {
        let look = Look { series: series(row), filled: true };
        if let Some(speed) = row.speed {
            chart.whisker(row.streamed / 1e6, (1.0 / speed.max, (1.0 / speed.min).min(slowest * 1.08)), look);
        }
        chart.point(row.streamed / 1e6, seconds(row), mark(row), look, &hint(row));
    }
    keys(&mut chart, &cold, threads);
    if let Some(disk) = disk {
        chart.key_line(INK, true, &format!("the disk, {} GB/s", short(disk.median / 1e9)));
    }
    Picture {
        name: format!("passes-{model}"),
        alt: format!("{model}, cold: seconds per token against streamed megabytes, with the disk's line"),
        svg: chart.svg(),
    }
}

/// The two rows of the seed experiment: everything else equal, the head resident and streamed.
pub fn head_pair<'a>(rows: &[&'a Row]) -> Option<[&'a Row; 2]> {
    let [a, b] = rows else {
        return None;
    };
    let equal = ["engine", "model", "way", "budget", "cache"].iter().all(|axis| a.word(axis) == b.word(axis));
    match (a.word("head"), b.word("head")) {
        ("resident", "stream") if equal => Some([a, b]),
        ("stream", "resident") if equal => Some([b, a]),
        _ => None,
    }
}

/// Bars for memory and for speed, with the head resident and streamed.
fn head(rows: &[&Row]) -> Option<Picture> {
    let own: Vec<&Row> = rows.iter().copied().filter(|row| row.word("engine") == "sluice").collect();
    let pair = head_pair(&own)?;
    let [resident, streamed] = pair;
    // Both in per cent of the resident row, so that one axis serves: the figures themselves stand on the bars.
    let figures = |row: &Row, of: &Row| {
        let part = |stats: Option<Stats>, base: Option<Stats>| {
            let base = median(base) / 100.0;
            stats.map_or((0.0, 0.0, 0.0), |s| (s.min / base, s.median / base, s.max / base))
        };
        [part(row.peak, of.peak), part(row.speed, of.speed)]
    };
    let all = [figures(resident, resident), figures(streamed, resident)];
    let high = all.iter().flatten().map(|(_, _, high)| *high).fold(0.0, f64::max);
    let model = resident.word("model");
    let title = format!("What streaming the head saves and costs: {model}");
    let below = format!(
        "Layers streamed, {} page cache, {}; bars are medians, strokes the range.",
        resident.word("cache"),
        threads_words(resident.threads())
    );
    let y = Axis::linear("per cent of the run with a resident head", high);
    let mut chart = Chart::new([&title, &below], Axis::bars(4.2), y);
    for (i, (row, parts)) in pair.iter().zip(all).enumerate() {
        let look = Look { series: i, filled: true };
        let words = [format!("{} MB", short(megabytes(row))), format!("{} tok/s", short(median(row.speed)))];
        for (group, (part, words)) in parts.into_iter().zip(words).enumerate() {
            let x = 0.8 + 2.2 * group as f64 + 0.8 * i as f64;
            chart.bar(x, 0.7, part, look, &words);
        }
        chart.key(Mark::Square, look, ["head resident", "head streamed"][i]);
    }
    for (x, words) in [(1.2, "peak memory (VmHWM)"), (3.4, "generated tokens per second")] {
        chart.below(x, words);
    }
    Some(Picture {
        name: "head".into(),
        alt: format!("{model}: peak memory and speed with the head resident and streamed"),
        svg: chart.svg(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::{Record, Repetition, tests::repetition};
    use crate::bench::summary;
    use serde_json::json;

    /// Cells (way, budget, head, cache) with memory, speed and streamed bytes.
    fn rows(cells: &[(&str, &str, &str, &str, f64, f64, f64)]) -> Vec<Row> {
        let mut list = Vec::new();
        let mut repetitions = Vec::new();
        for (way, budget, head, cache, memory, speed, streamed) in cells {
            let id = format!("m {way} {budget} {head} {cache}");
            list.push(json!({"id": id, "engine": "sluice", "model": "m", "way": way, "budget": budget, "head": head, "threads": 2, "cache": cache, "file_bytes": 668e6}));
            let mut one =
                Repetition { disk_rate: (*cache == "cold").then_some(2e9), ..repetition(&id, 0, *speed) };
            one.report["memory"]["peak_rss_bytes"] = (memory * 1e6).into();
            one.report["io"]["streamed_bytes_per_pass"] = (streamed * 1e6).into();
            repetitions.push(one);
        }
        let run = json!({"kind": "run", "cells": list});
        summary::rows(&Record { run, repetitions, disks: vec![], end: None })
    }

    #[test]
    fn a_matrix_gets_its_fronts_and_its_line() {
        let all = rows(&[
            ("mmap", "min", "stream", "warm", 20.0, 50.0, 600.0),
            ("mmap", "75%", "stream", "warm", 22.0, 54.0, 300.0),
            ("uring", "50%", "stream", "warm", 300.0, 55.0, 300.0),
            ("pread", "50%", "stream", "warm", 310.0, 40.0, 300.0),
            ("uring+direct", "min", "stream", "cold", 20.0, 3.0, 600.0),
            ("uring+direct", "50%", "resident", "cold", 300.0, 6.0, 300.0),
            ("uring+direct", "all", "resident", "cold", 650.0, 60.0, 0.0),
        ]);
        let pictures = of(&all);
        let names: Vec<&str> = pictures.iter().map(|picture| picture.name.as_str()).collect();
        assert_eq!(names, ["memory-m-warm", "memory-m-cold", "passes-m"]);
        let warm = &pictures[0].svg;
        assert!(warm.contains(">min<") && warm.contains(">50%<") && warm.contains(">Pareto front<"));
        assert!(!warm.contains(">75%<"), "a budget that the run had no use for");
        assert_eq!(warm.matches("tok/s, ").count(), 4, "every cell is a point with a hint");
        assert!(!warm.contains(">head resident<"), "no key for what is not there");
        assert!(pictures[2].svg.contains("the disk, 2 GB/s"));
        let nothing_streamed =
            ["auto", "mmap", "pread"].map(|way| (way, "all", "auto", "cold", 650.0, 60.0, 0.0));
        assert_eq!(of(&rows(&nothing_streamed)).len(), 1, "memory only");
        assert!(pictures.iter().all(|picture| !picture.svg.contains("NaN") && !picture.svg.contains("inf")));
    }

    #[test]
    fn the_seed_gets_its_bars() {
        let pair = rows(&[
            ("auto", "stream", "resident", "warm", 70.0, 52.0, 500.0),
            ("auto", "stream", "stream", "warm", 20.0, 50.0, 550.0),
        ]);
        let pictures = of(&pair);
        assert_eq!(pictures.len(), 1);
        for words in [">70 MB<", ">20 MB<", ">52 tok/s<", ">50 tok/s<"] {
            assert!(pictures[0].svg.contains(words), "{words}");
        }
        assert!(of(&[]).is_empty());
    }
}
