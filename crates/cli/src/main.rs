//! The `sluice` command: parse flags, call the library, print. No model logic lives here.
//!
//! stdout carries the generated text, or one JSON document; everything else goes to stderr. Exit codes: 0 done,
//! 1 the file or the machine is at fault, 2 the command line is, 130 interrupted.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod inspect;
mod interrupt;
mod io;
mod json;
mod logits;
mod open;
mod plan;
mod prompt;
mod run;
mod tokenize;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use sluice_model::{Error, loader};

use crate::args::{Cli, Command};
use crate::io::{Failure, note};

fn main() -> ExitCode {
    // Times count from here: the loader and the runtime before it take about a millisecond.
    let started = Instant::now();
    let (outcome, model, json) = match Cli::try_parse() {
        Ok(cli) => {
            (execute(&cli.command, started), Some(cli.command.model().to_owned()), cli.command.wants_json())
        }
        // The flags are unknown, so whether JSON is wanted can only be guessed from the words.
        Err(error) => (unparsed(&error), None, std::env::args_os().any(|word| word == "--json")),
    };
    match outcome {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Err(Failure::Error(error)) => {
            let code = exit_code(&error);
            let message = io::one_line(&message(&error, model.as_deref()));
            note(&format!("error: {message}"));
            if json {
                // A script that reads JSON gets a document in every case; if nobody reads it there is nobody to tell.
                let _ = io::print_json(&json::ErrorDocument { error: message, exit_code: code });
            }
            ExitCode::from(code)
        }
    }
}

fn exit_code(error: &Error) -> u8 {
    match error {
        Error::Interrupted => interrupt::EXIT_CODE,
        e if e.is_usage() => 2,
        _ => 1,
    }
}

/// The error's line; where a shard is at fault, with the name of the model that was asked for.
fn message(error: &Error, model: Option<&Path>) -> String {
    let at_fault = match error {
        Error::Header(e) => e.path(),
        Error::Stream(e) => e.file(),
        _ => None,
    };
    match (at_fault, model) {
        (Some(file), Some(model)) if file != model => {
            format!("{error} (needed by {})", model.display())
        }
        _ => error.to_string() + flag_that_helps(error),
    }
}

/// What the loader advises, as flags: it knows none.
fn flag_that_helps(error: &Error) -> &'static str {
    let Error::Stream(error) = error else {
        return "";
    };
    match error.kind() {
        loader::ErrorKind::Unavailable => ": use --backend pread",
        loader::ErrorKind::NoDirect => ": use --direct off",
        _ => "",
    }
}

fn execute(command: &Command, started: Instant) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(args) => run::run(args, started),
        Command::Inspect(args) => inspect::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Bench(args) => bench::run(args, started),
        Command::Plan(args) => plan::run(args),
    }
}

/// What the parser has to say: the help that was asked for, or an error, put into one line like all others.
fn unparsed(error: &clap::Error) -> Result<ExitCode, Failure> {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            io::print(&text)?;
            Ok(ExitCode::SUCCESS)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            text.trim_end().lines().for_each(note);
            Ok(ExitCode::from(2))
        }
        _ => {
            // There are no flags before the command.
            let command = std::env::args_os().nth(1).unwrap_or_default();
            Err(Error::Usage(usage_line(error, &command.to_string_lossy())).into())
        }
    }
}

/// The parser's message and its tips, without its paragraphs, and a pointer to the help of `command`.
fn usage_line(error: &clap::Error, command: &str) -> String {
    const TIP: &str = "\n  tip: ";
    let text = error.render().to_string();
    let rest = ["\n\nUsage:", "\n\nFor more information"];
    let end = rest.iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
    let mut parts: Vec<String> = text[..end]
        .trim_start_matches("error:")
        .split(TIP)
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let stray = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) => {
            error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-')
        }
        _ => false,
    };
    if stray && ["run", "tokenize"].contains(&command) {
        parts.push("the prompt goes after -p".into());
    }
    let known = Cli::command().get_subcommands().any(|c| c.get_name() == command);
    let command = if known { format!("{command} ") } else { String::new() };
    parts.push(format!("see sluice {command}--help"));
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_loader_advises_is_told_as_a_flag() {
        let shown = |kind| message(&Error::Stream(loader::Error::new(kind, "read")), None);
        assert!(shown(loader::ErrorKind::Unavailable).ends_with("use --backend pread"));
        assert!(shown(loader::ErrorKind::NoDirect).ends_with("use --direct off"));
        assert_eq!(shown(loader::ErrorKind::Shortened), "cannot read");
    }

    #[test]
    fn what_the_parser_says_becomes_one_line() {
        for (line, wanted) in [
            (
                &["run"][..],
                "the following required arguments were not provided: <MODEL>; see sluice run --help",
            ),
            (
                &["run", "m", "--thread", "2"],
                "unexpected argument '--thread' found; a similar argument exists: '--threads'; see sluice run --help",
            ),
            (
                &["tokenize", "m", "hello"],
                "unexpected argument 'hello' found; the prompt goes after -p; see sluice tokenize --help",
            ),
            (&["inspect", "m", "hello"], "unexpected argument 'hello' found; see sluice inspect --help"),
            (&["rn"], "unrecognized subcommand 'rn'; see sluice --help"),
            (
                &["tokenise", "m"],
                "unrecognized subcommand 'tokenise'; a similar subcommand exists: 'tokenize'; see sluice --help",
            ),
            (
                &["run", "m", "--backend", "x\ny"],
                "invalid value 'x y' for '--backend <BACKEND>' [possible values: auto, mmap, pread, uring]; see sluice run --help",
            ),
        ] {
            let error = Cli::try_parse_from([&["sluice"], line].concat()).expect_err("a bad line");
            assert_eq!(usage_line(&error, line[0]), wanted);
        }
    }
}
