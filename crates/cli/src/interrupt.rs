//! Ctrl-C: the first ends what is going on and keeps what there is, a later one ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;
use sluice_model::Error;

/// 128 + SIGINT, as shells count it: how an interrupted command ends, whichever signal it was.
pub const EXIT_CODE: u8 = 130;

/// What comes within this time of the first signal belongs to it: `timeout` signals its child and then its child's group,
/// and some terminals and supervisors do likewise. No person presses Ctrl-C twice that fast and means two things.
const SAME: Duration = Duration::from_millis(300);

/// The watching thread calls next to nothing; the usual 2 MiB would count as address space in a tight container.
const STACK: usize = 128 << 10;

/// A flag that the first SIGINT or SIGTERM raises. A signal more than [`SAME`] later ends the process at once, with
/// 128 + its number.
///
/// # Errors
/// When the system does not let signals be caught, or gives no thread.
pub fn flag() -> Result<Arc<AtomicBool>, Error> {
    let raised = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&raised);
    let watch = |mut signals: Signals| {
        let watcher = std::thread::Builder::new().name("signals".into()).stack_size(STACK);
        watcher.spawn(move || {
            let mut first: Option<Instant> = None;
            for signal in signals.forever() {
                flag.store(true, Ordering::Relaxed);
                if first.get_or_insert_with(Instant::now).elapsed() > SAME {
                    low_level::exit(128 + signal);
                }
            }
        })
    };
    Signals::new([SIGINT, SIGTERM])
        .and_then(watch)
        .map_err(|source| Error::Machine { what: "cannot catch Ctrl-C".into(), source })?;
    Ok(raised)
}
