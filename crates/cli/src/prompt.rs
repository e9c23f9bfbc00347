//! The prompt's bytes: from -p, -f or standard input, unchanged.

use std::fs::File;
use std::io::{self, IsTerminal, Read, stdin};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sluice_model::Error;

use crate::args::Prompt;
use crate::io::note;

/// Most bytes that are taken: ten million tokens, more than any model's context, are some 40 MB of text. Without an
/// end `-f /dev/zero` would fill the memory.
const LONGEST: usize = 64 << 20;

/// How long to wait for input before looking whether Ctrl-C was pressed: too short to notice, too long to cost.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

impl Prompt {
    /// Reads it. With -p or -f standard input is left alone.
    ///
    /// # Errors
    /// When it cannot be read or has no end in sight, or `interrupted` is raised meanwhile.
    pub fn read(&self, interrupted: &AtomicBool) -> Result<Vec<u8>, Error> {
        match (&self.text, &self.file) {
            (Some(text), _) => Ok(text.clone().into_vec()),
            (None, Some(path)) if path != Path::new("-") => {
                let what = format!("cannot read the prompt file {}", path.display());
                read_all(File::open(path), &what, interrupted)
            }
            _ => {
                if stdin().is_terminal() {
                    note("reading the prompt from the terminal; end it with Ctrl-D");
                }
                // A descriptor of its own: std's buffer would hide from poll what has come already.
                let input = stdin().as_fd().try_clone_to_owned().map(File::from);
                read_all(input, "cannot read the prompt from standard input", interrupted)
            }
        }
    }

    /// Says so when text waits on standard input and -p or -f gives the prompt. Ask late: whoever writes it may be slow.
    pub fn note_ignored_input(&self) {
        let flag = match (&self.text, &self.file) {
            (Some(_), _) => "-p",
            (None, Some(path)) if path != Path::new("-") => "-f",
            _ => return,
        };
        if !stdin().is_terminal() && rustix::io::ioctl_fionread(stdin()).is_ok_and(|waiting| waiting > 0) {
            note(&format!("note: standard input is not read, because {flag} gives the prompt"));
        }
    }
}

fn read_all(input: io::Result<File>, what: &str, interrupted: &AtomicBool) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Machine { what: what.into(), source };
    let mut input = input.map_err(failed)?;
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10]; // what a pipe holds at once
    loop {
        if interrupted.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        // Waiting in poll, not in read: a signal ends it, and so does a tick if the signal came just before.
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&TICK)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        match input.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e)),
        }
        if bytes.len() > LONGEST {
            return Err(Error::Usage(format!(
                "the prompt is longer than {} MiB, which is more than any model takes",
                LONGEST >> 20
            )));
        }
    }
}
