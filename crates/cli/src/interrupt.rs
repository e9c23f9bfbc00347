//! Ctrl-C: the first ends what is going on and keeps what there is, the second ends the process at once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use sluice_model::Error;

/// 128 + SIGINT, as shells count it.
pub const EXIT_CODE: u8 = 130;

/// A flag that the first SIGINT or SIGTERM raises; the second ends the process at once.
///
/// # Errors
/// When the system does not let signals be caught.
pub fn flag() -> Result<Arc<AtomicBool>, Error> {
    let raised = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the first signal must find the flag down.
        flag::register_conditional_shutdown(signal, EXIT_CODE.into(), Arc::clone(&raised))
            .and_then(|_| flag::register(signal, Arc::clone(&raised)))
            .map_err(|source| Error::Machine { what: "cannot catch Ctrl-C".into(), source })?;
    }
    Ok(raised)
}
