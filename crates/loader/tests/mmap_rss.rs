//! A mapped file walked in small chunks must not pile up in memory: neither its pages nor the tables that map them.
//!
//! A program of its own, with one test, because it reads what the kernel counts for the whole process.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use common::{Files, expected, files, range};
use sluice_loader::{Mapped, Schedule, Step, Stream};

/// The walked file: many huge pages long.
const LENGTH: usize = 256 << 20;

/// Odd against pages, folios and huge pages.
const CHUNK: usize = 250_000;

/// Windows of 2 MiB: three may wait to be unmapped, the chunk may touch two, and one is for the program itself.
const FILE_BOUND_KB: u64 = 12 << 10;

/// What is left when the last chunk is back: the windows that wait.
const LEFT_BOUND_KB: u64 = 7 << 10;

/// Tables that may be there: six windows, the levels above, and the program's own growth. All of the file's are 512 kB.
const TABLE_BOUND_KB: u64 = 128;

/// Whether this kernel frees the tables of unmapped windows: Linux 6.14 does on x86-64. Older ones keep 2 bytes per KiB of
/// a file that was in small folios, until the mapping goes.
fn frees_tables() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    cfg!(target_arch = "x86_64") && version >= (6, 14)
}

/// A line of the process's status in KiB.
fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Puts the file into the page cache as large reads do, in large folios: those are what a fault maps too much of.
fn reread(path: &Path) {
    let mut file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut piece = vec![0; 1 << 20];
    while file.read(&mut piece).unwrap() > 0 {}
}

/// Puts the file into the page cache a page at a time, in small folios: those fill page tables.
fn rewrite(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    let mut file = File::create(path).unwrap();
    for page in bytes.chunks(4096) {
        file.write_all(page).unwrap();
    }
}

/// One test after the other: both read what the kernel counts for the whole process.
#[test]
fn walking_keeps_memory_bounded() {
    let files = files(&[LENGTH]);
    for cache in [reread, rewrite] {
        cache(&files.paths[0]);
        walk(&files);
    }
}

fn walk(files: &Files) {
    let mut steps = Vec::new();
    for offset in (0..LENGTH).step_by(CHUNK) {
        steps.push(Step {
            range: range(0, offset as u64, CHUNK.min(LENGTH - offset)),
            loans: 1,
            resident: false,
        });
    }
    let count = steps.len() as u64;
    let schedule = Schedule::new(steps.clone(), vec![(0..count as u32).collect()]).unwrap();
    let stream = Stream::new(Arc::new(Mapped::open(&files.paths).unwrap()), schedule, 1).unwrap();
    let (file_before, table_before) = (status("RssFile:"), status("VmPTE:"));
    let (mut file_most, mut table_most) = (0, 0);
    for pass in 0..3 {
        assert_eq!(stream.announce(0), pass * count);
        for position in 0..count {
            let loan = stream.loan(pass * count + position).unwrap();
            let wanted = steps[position as usize].range;
            assert!(*loan == expected(wanted), "pass {pass}, {wanted:?}");
            file_most = file_most.max(status("RssFile:"));
            table_most = table_most.max(status("VmPTE:"));
        }
    }
    assert!(file_most < file_before + FILE_BOUND_KB, "RssFile: {file_before} kB before, {file_most} at most");
    assert!(
        !frees_tables() || table_most < table_before + TABLE_BOUND_KB,
        "VmPTE: {table_before} kB before, {table_most} at most"
    );
    let after = status("RssFile:");
    assert!(after < file_before + LEFT_BOUND_KB, "RssFile: {file_before} kB before, {after} after");
}
