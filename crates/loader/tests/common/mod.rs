//! What the test programs share: files with known bytes, and every backend that this machine permits.
#![allow(dead_code)] // no test program uses all of it
#![allow(clippy::print_stderr)] // a skipped test must say so

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use proptest::test_runner::TestCaseResult;
use sluice_loader::{Backend, ByteRange, ErrorKind, FileIndex, Mapped, Memory, Pread, Uring};

/// The byte at `offset` of file `file`: no two pages alike.
pub fn byte(file: u16, offset: u64) -> u8 {
    let mixed = (offset + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(file) << 32);
    (mixed >> 29) as u8
}

/// What a read of `range` must give.
pub fn expected(range: ByteRange) -> Vec<u8> {
    (0..range.len as u64).map(|i| byte(range.file.0, range.offset + i)).collect()
}

pub fn range(file: u16, offset: u64, len: usize) -> ByteRange {
    ByteRange { file: FileIndex(file), offset, len }
}

/// Files of these lengths, in a folder that goes with the value. It lies in the target folder, since temporary folders
/// are often kept in memory, where nothing can be read directly.
pub struct Files {
    pub folder: tempfile::TempDir,
    pub paths: Vec<PathBuf>,
}

pub fn files(lengths: &[usize]) -> Files {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut paths = Vec::new();
    for (file, &len) in lengths.iter().enumerate() {
        let path = folder.path().join(format!("{file}.bin"));
        std::fs::write(&path, expected(range(file as u16, 0, len))).unwrap();
        paths.push(path);
    }
    Files { folder, paths }
}

/// One way to read files.
pub struct Case {
    pub name: &'static str,
    pub backend: Arc<dyn Backend>,
}

impl Case {
    pub fn in_memory(&self) -> bool {
        self.backend.name() == "memory"
    }
}

/// Every backend that this machine permits, opened on `paths`, one at a time. One that it forbids is named; it is a
/// failure when `SLUICE_REQUIRE` lists it ("uring,direct").
pub fn each(paths: &[PathBuf], mut test: impl FnMut(Case)) {
    type Open = fn(&[PathBuf]) -> sluice_loader::Result<Arc<dyn Backend>>;
    let contents = |paths: &[PathBuf]| -> Vec<Vec<u8>> {
        paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
    };
    let real: [(&'static str, Open); 5] = [
        ("mmap", |paths| Ok(Arc::new(Mapped::open(paths)?))),
        ("pread buffered", |paths| Ok(Arc::new(Pread::buffered(paths)?))),
        ("pread direct", |paths| Ok(Arc::new(Pread::direct(paths, None)?))),
        ("uring buffered", |paths| Ok(Arc::new(Uring::open(paths, false, None)?))),
        ("uring direct", |paths| Ok(Arc::new(Uring::open(paths, true, None)?))),
    ];
    test(Case { name: "memory lazy", backend: Arc::new(Memory::new(contents(paths))) });
    test(Case { name: "memory eager", backend: Arc::new(Memory::new(contents(paths)).eager(3)) });
    for (name, open) in real {
        match open(paths) {
            Ok(backend) => test(Case { name, backend }),
            Err(error) => skip(name, &error),
        }
    }
}

fn skip(name: &str, error: &sluice_loader::Error) {
    let what = match error.kind() {
        ErrorKind::Unavailable => "uring",
        ErrorKind::NoDirect => "direct",
        _ => panic!("{name}: {error}"),
    };
    let required = std::env::var("SLUICE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|required| required == what), "{name} is required here: {error}");
    eprintln!("skipped: {name}: {error}");
}

/// Random numbers for tests that need no shrinking: xorshift64 (Marsaglia, 2003).
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Far longer than any case takes: only a stream that is stuck gets here.
pub const STUCK: Duration = Duration::from_secs(20);

/// Runs a case on a thread of its own, so that one that is stuck is a failure and not a test that never ends.
pub fn within_limits(case: impl FnOnce() -> TestCaseResult + Send + 'static) -> TestCaseResult {
    let (done, end) = mpsc::channel();
    let thread = thread::spawn(move || {
        let result = case();
        let _ = done.send(());
        result
    });
    if end.recv_timeout(STUCK) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("stuck");
    }
    thread.join().unwrap()
}
