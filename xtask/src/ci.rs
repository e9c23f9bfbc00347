//! `cargo xtask ci`: the steps that every change has to pass, with the time that each took.

use crate::sh::{Result, cargo, run, target_dir};
use crate::{arm, bench, fetch, tidy};
use std::path::PathBuf;
use std::time::Instant;

/// Runs all steps, cheapest first; stops at the first that fails.
pub fn ci() -> Result {
    let start = Instant::now();
    let mut times = Vec::new();
    let mut model = PathBuf::new();
    step(&mut times, "tidy", tidy::tidy)?;
    step(&mut times, "fmt", || run(&mut cargo("fmt --all --check")))?;
    step(&mut times, "clippy", || run(&mut cargo("clippy --workspace --all-targets -- -D warnings")))?;
    step(&mut times, "doc", || run(cargo("doc --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings")))?;
    step(&mut times, "fetch", || {
        model = fetch::fetch()?;
        Ok(())
    })?;
    // Elsewhere tests of the real model may skip for want of it; here it is there.
    let required = std::env::var("SLUICE_REQUIRE").unwrap_or_default() + ",model";
    let mut tests = cargo("test --workspace");
    tests.env("SLUICE_REQUIRE", required).env("SLUICE_MODEL", model);
    step(&mut times, "test", || run(&mut tests))?;
    step(&mut times, "loom", loom)?;
    step(&mut times, "smoke", || bench::bench(&[]))?;
    step(&mut times, "arm", arm::arm)?;
    println!("\nall steps passed");
    for (name, seconds) in times {
        println!("{name:<8} {seconds:>6.1} s");
    }
    println!("{:<8} {:>6.1} s", "sum", start.elapsed().as_secs_f64());
    Ok(())
}

/// The loader's loans and the model's team under the model checker. Its own target folder: another RUSTFLAGS would rebuild
/// everything.
fn loom() -> Result {
    let target = target_dir()?.join("loom");
    for package in ["sluice-loader", "sluice-model"] {
        let mut test = cargo("test --release --test loom --package");
        run(test.arg(package).arg("--target-dir").arg(&target).env("RUSTFLAGS", "--cfg loom"))?;
    }
    Ok(())
}

fn step(times: &mut Vec<(&'static str, f64)>, name: &'static str, work: impl FnOnce() -> Result) -> Result {
    println!("\n==> {name}");
    let start = Instant::now();
    work().map_err(|message| format!("step {name}: {message}"))?;
    let seconds = start.elapsed().as_secs_f64();
    println!("==> {name}: {seconds:.1} s");
    times.push((name, seconds));
    Ok(())
}
