//! `--update-readme`: README's figures, copied from the records and not typed.

use super::record::{Record, Status};
use super::summary::{Row, fastest_by_budget, rows};
use super::{pictures, report};
use crate::sh::{Result, root};
use std::fs;

/// Puts the figures of `bench/record/NAME.jsonl` between the lines `<!-- bench:NAME -->` and `<!-- /bench -->`.
///
/// A block without a record stays as it is, and is named.
///
/// # Errors
/// When a block has no end, or its record is interrupted, or made with a planted delay.
pub fn update() -> Result {
    let path = root().join("README.md");
    let failed = |error| format!("{}: {error}", path.display());
    let text = fs::read_to_string(&path).map_err(failed)?;
    let new = filled(&text, &figures)?;
    if new == text {
        println!("README.md: its figures are those of the records");
        return Ok(());
    }
    fs::write(&path, new).map_err(failed)
}

const START: &str = "<!-- bench:";
const END: &str = "<!-- /bench -->";

/// The text with every block's content replaced by what `content` gives for its name.
fn filled(text: &str, content: &dyn Fn(&str) -> Result<Option<String>>) -> Result<String> {
    let mut out = String::new();
    let mut rest = text;
    let mut blocks = 0;
    while let Some(start) = rest.find(START) {
        let name_at = start + START.len();
        let (name, after) =
            rest[name_at..].split_once(" -->").ok_or_else(|| format!("README.md: {START} has no end"))?;
        let end =
            after.find(END).ok_or_else(|| format!("README.md: {START}{name} --> wants {END} after it"))?;
        out += &rest[..name_at];
        match content(name)? {
            Some(figures) => out += &format!("{name} -->\n{figures}\n{END}"),
            None => out += &format!("{name} -->{}{END}", &after[..end]),
        }
        rest = &after[end + END.len()..];
        blocks += 1;
    }
    if blocks == 0 {
        return Err(format!("README.md: no line {START}NAME --> to put figures after"));
    }
    Ok(out + rest)
}

/// What README says of a record; `None` where there is none.
fn figures(name: &str) -> Result<Option<String>> {
    let path = root().join(format!("bench/record/{name}.jsonl"));
    if !path.exists() {
        println!("{}: not there, so README keeps what it says of it", path.display());
        return Ok(None);
    }
    let record = Record::read(&path)?;
    let refuse = |why: &str| Err(format!("{}: {why}", path.display()));
    if record.end.is_none() {
        return refuse("interrupted; finish it first");
    }
    if record.run["key"]["planted_delay_percent"] != 0 {
        return refuse("made with a planted delay");
    }
    Ok(Some(block(name, &record)))
}

fn block(name: &str, record: &Record) -> String {
    let rows = rows(record);
    let text = |key: &str| record.run[key].as_str().unwrap_or("unknown");
    let link = format!("bench/record/{name}");
    let mut parts = vec![format!(
        "Measured {} at revision {} on {}, {} cores; [the whole report]({link}.md).",
        text("date"),
        text("revision"),
        text("cpu"),
        record.run["cores"]
    )];
    if let Some(seed) = report::seed(&rows) {
        parts.push(seed);
    } else {
        for (title, group) in report::groups(&rows) {
            let most = group.iter().map(|row| row.threads()).max();
            let own: Vec<&Row> = group
                .into_iter()
                .filter(|row| row.status == Status::Ok && row.word("engine") == "sluice")
                .filter(|row| Some(row.threads()) == most)
                .collect();
            let fastest = fastest_by_budget(&own);
            if !fastest.is_empty() {
                parts
                    .push(format!("{title}, the fastest way at each budget:\n\n{}", report::table(&fastest)));
            }
        }
    }
    for picture in pictures::of(&rows) {
        parts.push(format!("![{}]({link}-{}.svg)", picture.alt, picture.name));
    }
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::tests::repetition;
    use serde_json::json;

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let text = "# A\n<!-- bench:seed -->\nold\n<!-- /bench -->\nb\n<!-- bench:full --><!-- /bench -->\n";
        let new = filled(text, &|name| Ok(Some(format!("figures of {name}")))).unwrap();
        assert_eq!(
            new,
            "# A\n<!-- bench:seed -->\nfigures of seed\n<!-- /bench -->\nb\n<!-- bench:full -->\nfigures of \
             full\n<!-- /bench -->\n"
        );
        assert_eq!(
            filled(&new, &|name| Ok(Some(format!("figures of {name}")))).unwrap(),
            new,
            "once more changes nothing"
        );
    }

    #[test]
    fn marks_must_be_there_and_whole() {
        let none = |_: &str| Ok(None);
        assert!(filled("# A\n", &none).unwrap_err().contains("no line"));
        assert!(filled("<!-- bench:a -->\n", &none).unwrap_err().contains("wants <!-- /bench -->"));
        assert!(filled("<!-- bench:a --><!-- /bench -->", &|_| Err("interrupted".into())).is_err());
        let kept = "<!-- bench:a -->\nold\n<!-- /bench -->";
        assert_eq!(filled(kept, &none).unwrap(), kept, "no record, no change");
    }

    #[test]
    fn a_block_has_the_fastest_way_at_each_budget() {
        let cell = |id: &str, budget: &str| json!({"id": id, "engine": "sluice", "model": "m", "way": id, "budget": budget, "head": "auto", "threads": 2, "cache": "warm"});
        let cells = [cell("slow", "min"), cell("quick", "min"), cell("all", "all")];
        let run = json!({"kind": "run", "date": "today", "revision": "abc", "cpu": "a CPU", "cores": 2, "cells": cells});
        let repetitions =
            vec![repetition("slow", 0, 5.0), repetition("quick", 0, 9.0), repetition("all", 0, 20.0)];
        let text = block("full", &Record { run, repetitions, disks: vec![], end: None });
        assert!(text.contains("revision abc on a CPU, 2 cores"), "{text}");
        assert!(
            text.contains("| quick | min |") && text.contains("| all | all |") && !text.contains("slow"),
            "{text}"
        );
        assert!(text.contains("(bench/record/full-memory-m-warm.svg)"), "{text}");
    }
}
