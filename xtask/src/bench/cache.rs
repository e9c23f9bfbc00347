//! The page cache: emptied of a file, filled with it, and looked at.

use crate::sh::Result;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Places where a file is looked at: enough to see a hundredth of it.
const SAMPLES: u64 = 256;

/// Length of a read that warms: far more than the kernel reads ahead, so that it builds the largest folios it can.
const LARGE: usize = 1 << 20;

/// At most this share of the samples may be there of a cold file: a page or two that somebody else has read.
const COLD: f64 = 0.01;

/// How often a file is evicted until it is gone, and the pause between: a page that a processor is about to add to the
/// kernel's lists, or that a process just ended had mapped, is passed over once (seen with 1 % of a file).
const EVICTIONS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// At least this share of a warm one.
const WARM: f64 = 0.99;

/// Takes a file out of the page cache.
///
/// # Errors
/// Says how much of it stayed, when somebody else holds it there.
pub fn evict(path: &Path) -> Result {
    let file = open(path)?;
    let failed = |error| format!("{}: {error}", path.display());
    // Pages that are not on the disk yet would stay.
    file.sync_all().map_err(failed)?;
    let mut left = 1.0;
    for _ in 0..EVICTIONS {
        fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))?;
        left = share(path)?;
        if left <= COLD {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    Err(format!("not cold: {:.0} % of the file stays in the page cache", 100.0 * left))
}

/// Brings a file into the page cache: emptied first, then read once from front to back, so that it lies there in
/// large folios whatever brought it in before.
///
/// # Errors
/// Says how much of it is missing, when the machine has no room for it.
pub fn warm(path: &Path) -> Result {
    evict(path)?;
    let mut file = open(path)?;
    let mut buffer = vec![0; LARGE];
    while file.read(&mut buffer).map_err(|error| format!("{}: {error}", path.display()))? > 0 {}
    is_warm(path)
}

/// Checks that a file is in the page cache.
pub fn is_warm(path: &Path) -> Result {
    let there = share(path)?;
    if there >= WARM {
        Ok(())
    } else {
        Err(format!("not warm: only {:.0} % of the file are in the page cache", 100.0 * there))
    }
}

/// The share of a file that is in the page cache, by samples.
pub fn share(path: &Path) -> Result<f64> {
    let file = open(path)?;
    let failed = |error: Errno| format!("{}: {error}", path.display());
    let length = file.metadata().map_err(|error| format!("{}: {error}", path.display()))?.len();
    // Asking reads ahead on recent kernels; random access keeps that to the page itself, which goes again below.
    fadvise(&file, 0, None, Advice::Random).map_err(failed)?;
    let offset =
        |sample: u64| (u128::from(length) * u128::from(2 * sample + 1) / u128::from(2 * SAMPLES)) as u64;
    let mut there = 0;
    for sample in 0..SAMPLES {
        let mut byte = [0];
        match preadv2(&file, &mut [IoSliceMut::new(&mut byte)], offset(sample), ReadWriteFlags::NOWAIT) {
            Ok(_) => there += 1,
            Err(Errno::AGAIN) => {
                let page = rustix::param::page_size() as u64;
                // A page can only be dropped once it is there.
                let _ = rustix::io::pread(&file, &mut byte, offset(sample));
                let _ = fadvise(&file, offset(sample) / page * page, page.try_into().ok(), Advice::DontNeed);
            }
            Err(Errno::OPNOTSUPP) => {
                return Err(format!("{}: its file system does not say what is cached", path.display()));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(there as f64 / SAMPLES as f64)
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_out_of_the_cache_and_comes_back() {
        // Beside the program, which lies on a disk; on a tmpfs nothing can be evicted.
        let path = std::env::current_exe().unwrap().with_extension("cache-test");
        std::fs::write(&path, vec![1; 8 << 20]).unwrap();
        let states = warm(&path).and_then(|()| {
            let warm = share(&path)?;
            evict(&path)?;
            Ok((warm, share(&path)?, is_warm(&path).is_err()))
        });
        std::fs::remove_file(&path).unwrap();
        let (warm, cold, misses) = states.unwrap();
        assert!(warm >= WARM && cold <= COLD && misses, "warm {warm}, cold {cold}");
    }
}
