//! The report of a record in Markdown, with its pictures beside it.

use super::chart::short;
use super::pictures::{self, Picture, head_pair};
use super::record::{Record, Repetition, Status};
use super::summary::{Row, Stats, fastest_by_budget, rows};
use crate::sh::Result;
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Writes `NAME.md` and the pictures `NAME-….svg` beside the record `NAME.jsonl`; gives the report's path.
pub fn write(path: &Path) -> Result<PathBuf> {
    let record = Record::read(path)?;
    let rows = rows(&record);
    let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let pictures = pictures::of(&rows);
    for picture in &pictures {
        put(&path.with_file_name(format!("{stem}-{}.svg", picture.name)), &picture.svg)?;
    }
    let report = path.with_extension("md");
    put(&report, &markdown(&stem, &record, &rows, &pictures))?;
    Ok(report)
}

fn put(path: &Path, text: &str) -> Result {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn markdown(stem: &str, record: &Record, rows: &[Row], pictures: &[Picture]) -> String {
    let mut parts = vec![format!("# Benchmark: {stem}"), head(stem, record)];
    if let Some(seed) = seed(rows) {
        parts.push(seed);
    }
    for picture in pictures {
        parts.push(format!("![{}]({stem}-{}.svg)", picture.alt, picture.name));
    }
    for (title, group) in groups(rows) {
        let fastest = fastest_by_budget(&group);
        if fastest.len() > 1 && group.len() > fastest.len() {
            parts.push(format!("## {title}: the fastest of each budget\n\n{}", table(&fastest)));
        }
        parts.push(format!("## {title}: all cells\n\n{}", table(&group)));
    }
    let failed: Vec<String> = rows
        .iter()
        .filter(|row| row.status != Status::Ok)
        .map(|row| {
            format!("| {} | {} | {} |", row.word("id"), row.status.word(), row.reason.replace('|', "/"))
        })
        .collect();
    if !failed.is_empty() {
        parts.push(format!(
            "## Cells that did not run well\n\n| cell | | why |\n| --- | --- | --- |\n{}",
            failed.join("\n")
        ));
    }
    parts.push(HOW_TO_READ.into());
    parts.join("\n\n") + "\n"
}

const HOW_TO_READ: &str = "\
## How to read this

A cell is a process of its own, run once in each round; figures are medians over the rounds, with the least and the most in brackets. \
Memory is VmHWM, as the kernel counts it, in MB of 10^6 bytes. *Warm*: the file was evicted and then read once from front to back, \
so that the page cache holds all of it in large folios. *Cold*: evicted before the run, and the kernel's accounts say that at least \
95 % of what the program read came from the disk: direct reads, or a container too small for what a pass streams. \
*Of the bound*: the speed over what the disk (for what is streamed cold) or the memory (for all weights) would allow, their rates \
measured in the same run, the disk's just before and after each cold one, by the tool that read this file fastest (named above; fio in the usual way reads \
into small pages, which may be much slower). `25%` and so on are budgets in per cent of the file, `min` is the least that works, `all` keeps everything except a streamed head, `auto` is what the \
program chooses when no flag speaks of memory; a mapping (mmap) keeps everything or nothing, so that a part is the same to it as `min`. In a warm cell the tool has brought the file into the page cache, so that a container counts none of it. Our cells of one model \
gave the same logits, bit for bit, or the run would have failed.";

/// How often cells ran, in words: one number, or the least and the most.
fn repetitions(record: &Record) -> String {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    record.repetitions.iter().for_each(|r| *counts.entry(&r.cell).or_default() += 1);
    match (counts.values().min(), counts.values().max()) {
        (Some(least), Some(most)) if least != most => format!("{least} to {most} repetitions"),
        (_, Some(1)) => "1 repetition".into(),
        (_, most) => format!("{} repetitions", most.map_or(0, |most| *most)),
    }
}

/// The machine and the program.
fn head(stem: &str, record: &Record) -> String {
    let run = &record.run;
    let text = |key: &str| match &run[key] {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".into(),
        other => other.to_string(),
    };
    let memory =
        run["memory_bytes"].as_f64().map_or_else(String::new, |bytes| format!(", {} GB", short(bytes / 1e9)));
    let modified = if run["modified"] == true { ", with changes" } else { "" };
    let mut lines = vec![
        format!("- {}, revision {}{modified}; {}", text("date"), text("revision"), repetitions(record)),
        format!(
            "- {}, {} cores{memory}, {}, {}, huge pages {}",
            text("cpu"),
            text("cores"),
            text("kernel"),
            text("file_system"),
            text("huge_pages")
        ),
    ];
    let cells = run["cells"].as_array().map_or(&[][..], Vec::as_slice);
    // The rates beside the repetitions of the cells that `wanted` picks.
    let rates = |wanted: &dyn Fn(&Value) -> bool, rate: fn(&Repetition) -> Option<f64>| {
        let ids: Vec<&Value> = cells.iter().filter(|cell| wanted(cell)).map(|cell| &cell["id"]).collect();
        let beside = record.repetitions.iter().filter(|r| ids.iter().any(|id| **id == *r.cell));
        Stats::of(beside.filter_map(rate))
    };
    let mut threads: Vec<u64> = cells.iter().filter_map(|cell| cell["threads"].as_u64()).collect();
    threads.sort_unstable();
    threads.dedup();
    for threads in threads {
        if let Some(rate) = rates(&|cell| cell["threads"] == threads, |r| r.memory_rate) {
            lines.push(format!("- memory, {}: {} GB/s", pictures::threads_words(threads), range(&rate, 1e9)));
        }
    }
    for disk in &record.disks {
        let (model, how) = (&disk["model"], disk["how"].as_str().unwrap_or_default());
        let rate = rates(&|cell| cell["model"] == *model, |r| r.disk_rate);
        let rate = rate.map_or_else(String::new, |rate| format!("{} GB/s; ", range(&rate, 1e9)));
        lines.push(format!("- disk under {}: {rate}{how}", model.as_str().unwrap_or_default()));
    }
    // Only the peer's programs say theirs; ours is the revision.
    if let Some(version) = record.repetitions.iter().find_map(|r| r.report["version"].as_str()) {
        lines.push(format!("- llama.cpp through llama-cpp-python {version}, its file mapped; Python's part, some 0.8 ms a token, is in it"));
    }
    if run["key"]["planted_delay_percent"].as_u64().is_some_and(|percent| percent > 0) {
        lines.push("- **every program was held up on purpose; these are no figures of Sluice**".into());
    }
    if record.end.is_none() {
        lines.push("- **interrupted: not all repetitions are in**".into());
    }
    lines.push(format!(
        "- made by `cargo xtask bench --preset {}`{}, from `{stem}.jsonl`",
        run["key"]["preset"].as_str().unwrap_or("?"),
        if run["other_axes"] == true { " with other axes by flags" } else { "" }
    ));
    lines.join("\n")
}

/// The seed experiment: two rows and two percentages.
pub fn seed(rows: &[Row]) -> Option<String> {
    let good: Vec<&Row> =
        rows.iter().filter(|row| row.status == Status::Ok && row.word("engine") == "sluice").collect();
    let [resident, streamed] = head_pair(&good)?;
    let change = |a: Option<Stats>, b: Option<Stats>| Some(100.0 * (b?.median / a?.median - 1.0));
    let (memory, speed) = (change(resident.peak, streamed.peak)?, change(resident.speed, streamed.speed)?);
    let line =
        |name: &str, row: &Row| format!("| {name} | {} | {} |", opt(&row.peak, 1e6), opt(&row.speed, 1.0));
    Some(format!(
        "| {}, layers streamed, {} | peak memory, MB | tok/s |\n| --- | --- | --- |\n{}\n{}\n| difference | **{memory:+.0} %** | **{speed:+.1} %** |",
        resident.word("model"),
        resident.word("cache"),
        line("head resident", resident),
        line("head streamed", streamed)
    ))
}

/// Rows by model, engine and cache, each with a title.
pub fn groups(rows: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut groups: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows.iter().filter(|row| row.speed.is_some()) {
        let engine = if row.generates() { "" } else { ", the loader alone" };
        let title = format!("{}{engine}, {}", row.word("model"), row.word("cache"));
        match groups.iter_mut().find(|(other, _)| *other == title) {
            Some((_, group)) => group.push(row),
            None => groups.push((title, vec![row])),
        }
    }
    groups
}

/// A table of rows that are all of the loader, or all not.
pub fn table(rows: &[&Row]) -> String {
    let loader = rows.iter().all(|row| !row.generates());
    let limited = rows.iter().any(|row| row.limit().is_some());
    let mut lines = Vec::new();
    let mut columns = vec!["way"];
    if !loader {
        columns.extend(["budget", "head"]);
    }
    columns.push("threads");
    if limited {
        columns.push("container, MiB");
    }
    columns.push("peak memory, MB");
    columns.push(if loader { "GB/s" } else { "tok/s" });
    if !loader {
        columns.extend(["streamed, MB", "prompt tok/s"]);
    }
    columns.push("of the bound");
    lines.push(format!("| {} |", columns.join(" | ")));
    lines.push(format!("|{}", " --- |".repeat(columns.len())));
    for row in rows {
        let name = if row.word("engine") == "llama-cpp-python" { "llama.cpp" } else { row.word("way") };
        let mut fields = vec![name.to_string()];
        if !loader {
            let own =
                |word: &str| if row.word("engine") == "sluice" { word.to_string() } else { String::new() };
            fields.extend([own(row.word("budget")), own(row.word("head"))]);
        }
        fields.push(row.threads().to_string());
        if limited {
            let peak = row
                .group_peak
                .map_or_else(String::new, |peak| format!(" (peak {})", short(peak / 1_048_576.0)));
            fields.push(row.limit().map_or_else(String::new, |limit| format!("{}{peak}", limit >> 20)));
        }
        fields.push(opt(&row.peak, 1e6));
        fields.push(opt(&row.speed, 1.0));
        if !loader {
            let streamed =
                if row.word("engine") == "sluice" { short(row.streamed / 1e6) } else { String::new() };
            fields.extend([streamed, row.prefill.map_or_else(String::new, |prefill| short(prefill.median))]);
        }
        fields.push(match (row.share, row.bound) {
            (Some(share), Some(bound)) => format!("{:.0} % {}", 100.0 * share.median, bound.word()),
            _ => String::new(),
        });
        lines.push(format!("| {} |", fields.join(" | ")));
    }
    lines.join("\n")
}

fn opt(stats: &Option<Stats>, unit: f64) -> String {
    stats.map_or_else(String::new, |stats| range(&stats, unit))
}

/// The median with the range behind it, where there is one to see.
fn range(stats: &Stats, unit: f64) -> String {
    let [median, min, max] = [stats.median, stats.min, stats.max].map(|value| short(value / unit));
    if min == max { median } else { format!("{median} ({min}–{max})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::repetition;
    use serde_json::json;

    fn cell(id: &str, head: &str, cache: &str) -> Value {
        json!({"id": id, "engine": "sluice", "model": "m", "way": "auto", "budget": "stream", "head": head, "threads": 2, "cache": cache})
    }

    fn record(cells: Vec<Value>, repetitions: Vec<Repetition>) -> Record {
        let run = json!({
            "kind": "run", "date": "2026-01-02 03:04", "revision": "abc", "cpu": "a CPU", "cores": 2, "memory_bytes": 8e9,
            "other_axes": true,
            "key": {"preset": "seed", "planted_delay_percent": 0}, "cells": cells,
        });
        Record { run, repetitions, disks: vec![], end: Some(json!({"seconds": 1})) }
    }

    #[test]
    fn the_seed_says_its_two_rows_and_percentages() {
        let mut small = repetition("b", 0, 38.0);
        small.report["memory"]["peak_rss_bytes"] = 11_000_000.into();
        let cells = vec![cell("a", "resident", "warm"), cell("b", "stream", "warm")];
        let text = seed(&rows(&record(cells, vec![repetition("a", 0, 40.0), small]))).unwrap();
        assert!(text.contains("| head resident | 20 | 40 |"), "{text}");
        assert!(text.contains("| head streamed | 11 | 38 |"), "{text}");
        assert!(text.contains("**-45 %** | **-5.0 %**"), "{text}");
    }

    #[test]
    fn a_report_has_the_machine_the_cells_and_the_failures() {
        let failed = Repetition {
            status: Status::Killed,
            reason: "no memory left in 64 MiB".into(),
            report: Value::Null,
            ..repetition("b", 0, 0.0)
        };
        let mut peer = cell("p", "auto", "warm");
        (peer["engine"], peer["threads"]) = ("llama-cpp-python".into(), 1.into());
        let mut of_peer = repetition("p", 0, 7.0);
        of_peer.report["version"] = "1.2.3".into();
        let cells = vec![cell("a", "auto", "warm"), cell("b", "auto", "cold"), peer];
        let record = record(cells, vec![repetition("a", 0, 40.0), repetition("a", 1, 44.0), failed, of_peer]);
        let rows = rows(&record);
        let text = markdown("seed", &record, &rows, &[]);
        for wanted in [
            "revision abc; 1 to 2 repetitions",
            "a CPU, 2 cores, 8 GB",
            "- memory, 2 threads: 40 GB/s",
            "--preset seed` with other axes by flags, from `seed.jsonl`",
            "- llama.cpp through llama-cpp-python 1.2.3",
            "| auto | stream | auto | 2 | 20 | 42 (40–44) | 500 | 84 | 52 % memory |",
            "| llama.cpp |  |  | 1 | 20 | 7 |  | 14 |",
            "| b | killed | no memory left in 64 MiB |",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
        assert!(!text.contains("interrupted") && !text.contains("held up"));
    }
}
