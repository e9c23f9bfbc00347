//! What `run` and `logits` share: flags checked before anything is read, a model with its warnings, a context that
//! fits.

use std::path::Path;

use sluice_model::{Error, Model, Options, Session as Opened};

use crate::args::{Backend, DirectArg, Session};
use crate::io::note;

/// Refuses flags that exclude each other.
///
/// # Errors
/// [`Error::Usage`], naming both flags.
pub fn check(flags: &Session) -> Result<(), Error> {
    if matches!((flags.backend, flags.direct), (Backend::Mmap, DirectArg::On)) {
        return Err(Error::Usage(
            "--backend mmap with --direct on: a mapping goes through the page cache; use --backend pread or uring".into(),
        ));
    }
    Ok(())
}

/// Opens the model, and says what its user should know about it.
///
/// # Errors
/// As [`Model::open`].
pub fn model(path: &Path, flags: &Session) -> Result<Model, Error> {
    let model = Model::open(path)?;
    for warning in model.warnings() {
        note(&format!("warning: {}: {warning}", path.display()));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if let Some(threads) = flags.threads.filter(|t| *t > cores) {
        note(&format!(
            "note: --threads {threads}, but this process may use {cores}; fewer threads would be faster"
        ));
    }
    Ok(model)
}

/// Opens a session, and says what was decided on the user's behalf: all of it, or what must be known.
///
/// # Errors
/// As [`Opened::open`].
pub fn session<'m>(model: &'m Model, options: &Options, verbose: bool) -> Result<Opened<'m>, Error> {
    let session = Opened::open(model, options)?;
    session.notes().iter().filter(|line| verbose || line.starts_with("note: ")).for_each(|line| note(line));
    Ok(session)
}

/// Positions in the context: `--ctx`, or `tokens` and `more` as far as the model goes.
///
/// # Errors
/// When `--ctx` is beyond the model, or `what` (of `tokens` tokens) beyond the context.
pub fn context(
    model: &Model,
    flags: &Session,
    tokens: usize,
    more: usize,
    what: &str,
) -> Result<usize, Error> {
    let longest = model.longest_context();
    let context = match flags.ctx {
        Some(ctx) if ctx > longest => {
            return Err(Error::Usage(format!(
                "--ctx {ctx}: {} was trained for {longest} positions; wanted at most that",
                model.path().display()
            )));
        }
        Some(ctx) => ctx,
        None => tokens.saturating_add(more).min(longest),
    };
    if tokens > context {
        return Err(Error::Context { context, wanted: tokens, longest, detail: what.into() });
    }
    Ok(context)
}
