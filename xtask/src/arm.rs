//! `cargo xtask arm`: the kernels' tests and one small model on ARM, built by a cross compiler and run by an emulator.
//!
//! Says nothing about speed. Equality is what it is for: every level of an ARM CPU gives the bits of scalar, and the program the
//! logits of this machine.

use crate::sh::{Result, cargo, command, output, output_within, root, shown, stdout, target_dir};
use crate::sluice::{self, Outcome};
use crate::synth;
use sluice_fixtures::Spec;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";

/// What to say to somebody who has not all of it.
const INSTALL: &str = "on Debian: dpkg --add-architecture arm64, apt-get update, \
    apt-get install rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu qemu-user";

/// A CPU, the levels that it must have beyond scalar, and the tests to run on it. All kernels run on the first, which has all
/// levels; the others show that a level is found where it is, and not where it is not.
const CPUS: [(&str, &[&str], &str); 3] = [
    ("max", &["neon", "i8mm"], "--lib --tests"),
    ("neoverse-n1", &["neon"], "--test isa --test anything"),
    ("cortex-a72", &[], "--test isa"),
];

/// Tiny models: blocks of 256 weights and of 32.
const MODELS: [&str; 2] = ["Q4_K", "Q5_1"];

/// More tokens than the kernels take at once, so that both ways are taken.
const PROMPT: &str = "The quick brown fox jumps over the lazy dog";
const FLAGS: &str = "-n 4 --backend pread";

/// Where the report has the digest of all logits.
const DIGEST: &str = "/logits_digest";

/// An emulator takes a second for what takes 20 ms; a minute is a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the step, or says why it skips.
pub fn arm() -> Result {
    let rustc = match missing() {
        Ok(rustc) => rustc,
        Err(what) if sluice::required("arm") => return Err(format!("no {what}; {INSTALL}")),
        Err(what) => {
            println!("skipped, nothing was tested on ARM: no {what}\n{INSTALL}");
            return Ok(());
        }
    };
    let target = target_dir()?.join("arm");
    for (cpu, levels, tests) in CPUS {
        let mut test = cross(&rustc, &target, cpu, &format!("test --package sluice-kernels {tests}"));
        println!("{cpu}: {} tests, levels {}", passed(&mut test)?, [&["scalar"], levels].concat().join(" "));
    }
    digests(&rustc, &target)
}

/// A compiler that has the standard library for ARM, if there are a linker and an emulator too; else the name of what is missing.
fn missing() -> std::result::Result<PathBuf, String> {
    let there = |program: &str| output(command(program, &["--version"]).stdin(Stdio::null())).is_ok();
    for program in [LINKER, EMULATOR] {
        if !there(program) {
            return Err(program.into());
        }
    }
    // The one in use, where rustup has added the target, or the distribution's.
    let has_target = |rustc: &&str| {
        let folder = stdout(&mut command(rustc, &["--print", "target-libdir", "--target", TARGET]));
        folder.is_ok_and(|folder| Path::new(folder.trim()).is_dir())
    };
    let found = ["rustc", "/usr/bin/rustc"].iter().find(|rustc| has_target(rustc));
    found.map(PathBuf::from).ok_or_else(|| format!("rustc with the standard library for {TARGET}"))
}

/// A cargo command for ARM whose programs run as on `cpu`. A folder of its own: another compiler would rebuild everything.
fn cross(rustc: &Path, target: &Path, cpu: &str, args: &str) -> Command {
    let mut cargo = cargo(args);
    let emulator = format!("{EMULATOR} -cpu {cpu}");
    // What is not ours is not worth optimising here, and nobody debugs what is built here.
    cargo.args(["--config", "profile.dev.package.\"*\".opt-level=0", "--config", "profile.dev.debug=false"]);
    cargo.args(["--target", TARGET, "--target-dir"]).arg(target);
    cargo.env("RUSTC", rustc).env("CARGO_INCREMENTAL", "0").env_remove("RUSTFLAGS");
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    // Threads hang in this emulator when libc is loaded dynamically.
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-C target-feature=+crt-static");
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &emulator);
    // For tests that start themselves again, and for those that would take minutes.
    cargo.env("SLUICE_TEST_RUNNER", emulator).env_remove("SLUICE_ISA");
    cargo
}

/// Runs tests and gives how many passed.
fn passed(test: &mut Command) -> Result<usize> {
    let output = output(test.stderr(Stdio::inherit()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("{} failed: {}\n{}", shown(test), output.status, said.trim_end()));
    }
    match count(&said) {
        0 => Err(format!("{} ran no tests", shown(test))),
        count => Ok(count),
    }
}

/// The tests that passed, by what several test programs say.
fn count(said: &str) -> usize {
    let passed =
        |line: &str| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<usize>().ok();
    said.lines().filter_map(passed).sum()
}

/// The program built for ARM gives the logits of this machine on every level, and refuses levels that a CPU does not have.
fn digests(rustc: &Path, target: &Path) -> Result {
    let native = sluice::build()?;
    crate::sh::run(&mut cross(rustc, target, "max", "build --package sluice"))?;
    let program = target.join(TARGET).join("debug/sluice");
    for name in MODELS {
        let model = target.join(format!("{name}.gguf"));
        synth::write(&Spec::named(name).ok_or_else(|| format!("{name}: no such model"))?, &model)?;
        let wanted = match sluice::run_json(&native, &model, PROMPT, FLAGS)? {
            Outcome::Report(report) => sluice::string(&report, DIGEST)?.to_owned(),
            Outcome::Forbidden { reason } => return Err(reason),
        };
        for (cpu, levels, _) in CPUS {
            for level in ["scalar", "neon", "i8mm"] {
                let said = emulated(&program, &model, cpu, level)?;
                let expected = level == "scalar" || levels.contains(&level);
                match (said, expected) {
                    (Ok(got), true) if got == wanted => {}
                    (Ok(got), true) => {
                        return Err(format!("{name} on {cpu}, {level}: digest {got}, here {wanted}"));
                    }
                    (Err(said), false) if said.contains("cannot be had") => {}
                    (Err(said), _) => return Err(format!("{name} on {cpu}, {level}: {said}")),
                    (Ok(_), false) => return Err(format!("{name} on {cpu}: has no {level}, and ran it")),
                }
            }
        }
        println!("{name}: digest {wanted} on every level, as here");
    }
    Ok(())
}

/// The digest of a run on an emulated CPU, or what the program said instead.
fn emulated(
    program: &Path,
    model: &Path,
    cpu: &str,
    level: &str,
) -> Result<std::result::Result<String, String>> {
    let mut run = Command::new(EMULATOR);
    run.current_dir(root()).args(["-cpu", cpu]).arg(program);
    run.args(["run", "-p", PROMPT, "--temp", "0", "--json"]).arg(model).args(FLAGS.split_whitespace());
    run.env("SLUICE_ISA", level).stdin(Stdio::null());
    let output = output_within(&mut run, LIMIT)?;
    if !output.status.success() {
        return Ok(Err(String::from_utf8_lossy(&output.stderr).trim_end().into()));
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{}: bad JSON: {error}", shown(&run)))?;
    Ok(Ok(sluice::string(&report, DIGEST)?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_counted_over_programs() {
        let said = "running 2 tests\ntest a ... ok\n\ntest result: ok. 2 passed; 0 failed; 1 ignored\n\
            test result: ok. 47 passed; 0 failed;\ntest result: FAILED. 3 passed; 1 failed;\n";
        assert_eq!(count(said), 49);
        assert_eq!(count(""), 0);
    }
}
