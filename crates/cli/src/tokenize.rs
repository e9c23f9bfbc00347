//! `sluice tokenize`: text in, ids out, one line; or ids and pieces as JSON.

use std::process::ExitCode;

use serde::Serialize;

use crate::io::{Failure, note, print, print_json};
use crate::{args, interrupt};

#[derive(Serialize)]
struct Document {
    ids: Vec<u32>,
    /// Text of each token; bytes that are no whole characters show as replacement characters.
    pieces: Vec<String>,
}

pub fn run(args: &args::Tokenize) -> Result<ExitCode, Failure> {
    let interrupted = interrupt::flag()?;
    let text = args.prompt.read(&interrupted)?;
    let tokenizer = sluice_model::open_tokenizer(&args.model)?;
    args.prompt.note_ignored_input();
    for warning in tokenizer.warnings() {
        note(&format!("warning: {}: {warning}", args.model.display()));
    }
    let ids = tokenizer.encode(&text, true, !args.no_bos);
    if args.json {
        let pieces =
            ids.iter().map(|id| String::from_utf8_lossy(&tokenizer.piece(*id)).into_owned()).collect();
        print_json(&Document { ids, pieces })?;
    } else {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        print(&(ids.join(" ") + "\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
