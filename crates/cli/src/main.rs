//! The `sluice` command: parse flags, call the library, print. No model logic lives here.
//!
//! stdout carries the generated text, or one JSON document; everything else goes to stderr. Exit codes: 0 done,
//! 1 the file or the machine is at fault, 2 the command line is, 130 interrupted.

#![forbid(unsafe_code)]

mod args;
mod inspect;
mod io;
mod json;
mod logits;
mod prompt;
mod run;
mod tokenize;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::io::{Failure, note};

fn main() -> ExitCode {
    // Times count from here: the loader and the runtime before it take about a millisecond.
    let started = Instant::now();
    let cli = Cli::parse();
    let json = cli.command.wants_json();
    let result = match cli.command {
        Command::Run(args) => run::run(&args, started),
        Command::Inspect(args) => inspect::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Logits(args) => logits::run(&args),
    };
    match result {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Err(Failure::Error(error)) => {
            let code = if error.is_usage() { 2 } else { 1 };
            note(&format!("error: {error}"));
            if json {
                // A script that reads JSON gets a document in every case; if nobody reads it there is nobody to tell.
                let _ = io::print_json(&json::ErrorDocument::new(&error, code));
            }
            ExitCode::from(code)
        }
    }
}
