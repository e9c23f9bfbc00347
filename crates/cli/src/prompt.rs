//! The prompt's bytes: from -p, -f or standard input, unchanged.

use std::fs;
use std::io::{IsTerminal, Read, stdin};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use sluice_model::Error;

use crate::args::Prompt;
use crate::io::note;

impl Prompt {
    /// Reads it. With -p or -f standard input is left alone, and a note says so when something waits there.
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        match (&self.text, &self.file) {
            (Some(text), _) => {
                note_ignored_input("-p");
                Ok(text.clone().into_vec())
            }
            (None, Some(file)) if file != Path::new("-") => {
                note_ignored_input("-f");
                fs::read(file).map_err(|source| Error::Machine {
                    what: format!("cannot read the prompt file {}", file.display()),
                    source,
                })
            }
            _ => {
                if stdin().is_terminal() {
                    note("reading the prompt from the terminal; end it with Ctrl-D");
                }
                let mut bytes = Vec::new();
                stdin().lock().read_to_end(&mut bytes).map_err(|source| Error::Machine {
                    what: "cannot read the prompt from standard input".into(),
                    source,
                })?;
                Ok(bytes)
            }
        }
    }
}

fn note_ignored_input(flag: &str) {
    if !stdin().is_terminal() && rustix::io::ioctl_fionread(stdin()).is_ok_and(|waiting| waiting > 0) {
        note(&format!("note: standard input is not read, because {flag} gives the prompt"));
    }
}
