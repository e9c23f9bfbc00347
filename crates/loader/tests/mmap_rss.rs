//! A mapped file walked in small chunks must not pile up in memory: neither its pages nor the tables that map them.
//!
//! A program of its own, with one test, because it reads what the kernel counts for the whole process.

mod common;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use common::{expected, files, range};
use sluice_loader::{Mapped, Schedule, Step, Stream};

/// The walked file: many huge pages long.
const LENGTH: usize = 64 << 20;

/// Odd against pages, folios and huge pages.
const CHUNK: usize = 250_000;

/// Two huge pages that the chunk may touch, the one before that is dropped with it, and the program itself.
const FILE_BOUND_KB: u64 = 6 << 10;

/// The tables of a 64 MiB mapping fill 128 KiB; walking must not touch more than that beside the program's own.
const TABLE_BOUND_KB: u64 = 192;

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

#[test]
fn walking_keeps_memory_bounded() {
    let files = files(&[LENGTH]);
    reread(&files.paths[0]);
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
        table_most < table_before + TABLE_BOUND_KB,
        "VmPTE: {table_before} kB before, {table_most} at most"
    );
    // What the last chunk's neighbours brought in goes with it.
    let after = status("RssFile:");
    assert!(after < file_before + 2048, "RssFile: {file_before} kB before, {after} after");
}
