//! The environment variable that forces a level, seen from a process of its own each time.

use std::process::{Command, Output};

use sluice_kernels::Isa;

/// Set for the child, which then tells what it detects.
const CHILD: &str = "SLUICE_TEST_DETECT";

#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        match Isa::detect() {
            Ok(isa) => panic!("level <{isa}>"), // a panic is a way to print that no lint forbids
            Err(error) => panic!("error <{error}>"),
        }
    }
}

/// The words before the program, where this CPU cannot run it by itself: an emulator.
const RUNNER: &str = "SLUICE_TEST_RUNNER";

fn detect(level: Option<&str>) -> String {
    let program = std::env::current_exe().unwrap();
    let runner = std::env::var(RUNNER).unwrap_or_default();
    let mut words = runner.split_whitespace();
    let mut command = match words.next() {
        Some(emulator) => Command::new(emulator),
        None => Command::new(&program),
    };
    if !runner.is_empty() {
        command.args(words).arg(&program);
    }
    command
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, "1")
        .env_remove("SLUICE_ISA")
        .env_remove("SLUICE_TUNE");
    if let Some(level) = level {
        command.env("SLUICE_ISA", level);
    }
    let Output { stdout, stderr, .. } = command.output().unwrap();
    String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
}

#[test]
fn forced_levels() {
    let available = Isa::available();
    for isa in &available {
        let text = detect(Some(isa.name()));
        assert!(text.contains(&format!("level <{isa}>")), "{text}");
    }
    // The tile unit only where the table of choices says that it wins.
    let best = available.iter().rfind(|isa| isa.name() != "amx" || isa.tuning().tiles).unwrap();
    for unset in [None, Some("")] {
        let text = detect(unset);
        assert!(text.contains(&format!("level <{best}>")), "{text}");
    }
}

#[test]
fn impossible_levels() {
    for level in ["rvv", "AVX2", "1"] {
        let text = detect(Some(level));
        assert!(
            text.contains(&format!("error <SLUICE_ISA={level} ")) && text.contains("wanted one of scalar"),
            "{text}"
        );
    }
}
