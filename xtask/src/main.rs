//! The `cargo xtask` command: everything that a developer or CI runs, so that no step lives in a script.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool: printing is its output")]

mod arm;
mod bench;
mod ci;
mod demo;
mod fetch;
mod sh;
mod sluice;
mod synth;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  fetch           get the real test model into the cache folder, checked by SHA-256; prints its path
  demo            fetch, build, and run one prompt through every backend
  tidy            rules on the sources that no lint knows
  bench [FLAGS]   memory against speed, in a matrix of cells; --help names the flags
  smoke [MODEL]   bench --preset smoke: a model (default: two tiny ones) every way; the logits must not differ by a bit
  synth NAME OUT [--layers N] [--seed N]
                  write a model with random weights: a real shape in the mix Q4_K_M (tiny, tinyllama_1b, llama32_1b,
                  llama3_8b, llama2_13b, llama3_70b), or a tiny one whose every matrix is of one type (Q4_K), or that has
                  a feature (tied, qwen2)
  arm             the kernels' tests and a tiny model on emulated ARM CPUs; skips where the cross tools are missing
  ci              everything that has to pass: tidy, fmt, clippy, docs, fetch, tests, loom, smoke, arm

environment
  SLUICE_CACHE    where fetched files go (default: $XDG_CACHE_HOME/sluice, else ~/.cache/sluice)
  SLUICE_REQUIRE  comma list of `uring`, `direct`, `model`, `arm`: what is missing of these is a failure, not a skip";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["fetch"] => fetch::fetch().map(|path| println!("{}", path.display())),
        ["demo"] => demo::demo(),
        ["tidy"] => tidy::tidy(),
        ["bench", ref flags @ ..] => bench::bench(flags),
        ["smoke"] => bench::bench(&[]),
        ["smoke", model] => bench::bench(&["--model", model]),
        ["synth", ref words @ ..] => synth::synth(words),
        ["arm"] => arm::arm(),
        ["ci"] => ci::ci(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
