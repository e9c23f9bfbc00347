//! What every backend must do, whichever way its bytes arrive.

mod common;

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{Case, Dice, each, expected, files, range};
use sluice_loader::{
    Backend, ByteRange, Choice, Direct, ErrorKind, Filled, Memory, Options, Schedule, Step, Stream, Ticket,
    open,
};

/// Odd, so that the last block is a partial one.
const LENGTH: usize = 1_000_003;

fn submit(backend: &dyn Backend, range: ByteRange) -> Ticket {
    backend.submit(backend.slot(range.len).unwrap(), range)
}

fn get(backend: &dyn Backend, range: ByteRange) -> Filled {
    backend.wait(submit(backend, range)).map_err(|failed| failed.error).unwrap()
}

#[track_caller]
fn same(case: &Case, filled: &Filled, wanted: ByteRange) {
    assert_eq!(filled.range(), wanted, "{}", case.name);
    assert!(**filled == expected(wanted), "{}: other bytes than those of {wanted:?}", case.name);
    assert!(filled.traffic().bytes >= wanted.len as u64, "{}: {:?}", case.name, filled.traffic());
}

#[test]
fn bytes_are_exact() {
    let files = files(&[LENGTH, 70_000]);
    let end = LENGTH as u64;
    let mut ranges = vec![
        range(0, 0, 1),
        range(0, 0, LENGTH),
        range(0, end - 1, 1),
        range(0, end - 4097, 4097),
        range(0, 4095, 2),
        range(0, 4096, 4096),
        range(0, 1, 4095),
        range(0, 0, 8192),
        range(1, 69_999, 1),
        range(1, 210, 7 * 210),
        range(1, 500, 0),
    ];
    let mut dice = Dice(7);
    for _ in 0..100 {
        let offset = dice.below(end - 1);
        ranges.push(range(0, offset, 1 + dice.below((end - offset).min(50_000)) as usize));
    }
    each(&files.paths, |case| {
        for &wanted in &ranges {
            let filled = get(&*case.backend, wanted);
            same(&case, &filled, wanted);
            drop(case.backend.release(filled));
        }
    });
}

#[test]
fn one_slot_serves_many_ranges() {
    let files = files(&[LENGTH]);
    each(&files.paths, |case| {
        let mut slot = case.backend.slot(10_000).unwrap();
        let mut dice = Dice(11);
        for _ in 0..200 {
            let wanted = range(0, dice.below(LENGTH as u64 - 10_000), 1 + dice.below(10_000) as usize);
            let filled = case.backend.wait(case.backend.submit(slot, wanted)).unwrap();
            same(&case, &filled, wanted);
            slot = case.backend.release(filled);
        }
    });
}

#[test]
fn many_in_flight_waited_for_out_of_order() {
    let files = files(&[LENGTH]);
    each(&files.paths, |case| {
        let mut dice = Dice(3);
        let mut flying: Vec<Ticket> = (0..200)
            .map(|i| submit(&*case.backend, range(0, i * 4_999, 1 + dice.below(5_000) as usize)))
            .collect();
        while !flying.is_empty() {
            let ticket = flying.swap_remove(dice.below(flying.len() as u64) as usize);
            let wanted = ticket.range();
            same(&case, &case.backend.wait(ticket).unwrap(), wanted);
        }
    });
}

/// Slots that were made together lie in one mapping; each holds its own bytes, and the others' go on when one is gone.
#[test]
fn slots_made_together_do_not_mix() {
    const CHUNK: usize = 300_001;
    let files = files(&[10 * CHUNK]);
    each(&files.paths, |case| {
        let backend = &*case.backend;
        let slots = backend.slots(CHUNK, 10).unwrap();
        assert_eq!(slots.len(), 10, "{}", case.name);
        let wanted: Vec<ByteRange> = (0..10).map(|i| range(0, (i * CHUNK) as u64, CHUNK)).collect();
        let tickets: Vec<Ticket> =
            slots.into_iter().zip(&wanted).map(|(slot, range)| backend.submit(slot, *range)).collect();
        let mut filled: Vec<Filled> = tickets
            .into_iter()
            .map(|ticket| backend.wait(ticket).map_err(|failed| failed.error).unwrap())
            .collect();
        for (filled, wanted) in filled.iter().zip(&wanted) {
            same(&case, filled, *wanted);
        }
        drop(backend.release(filled.remove(3)));
        same(&case, &filled[2], wanted[2]);
        same(&case, &filled[3], wanted[4]);
    });
}

#[test]
fn dropped_tickets_do_no_harm() {
    let files = files(&[LENGTH]);
    each(&files.paths, |case| {
        for round in 0..5 {
            let tickets: Vec<Ticket> =
                (0..40).map(|i| submit(&*case.backend, range(0, i * 20_000 + round, 20_000))).collect();
            for (i, ticket) in tickets.into_iter().enumerate() {
                let wanted = ticket.range();
                if i % 3 == 0 {
                    same(&case, &case.backend.wait(ticket).unwrap(), wanted);
                } else if i % 3 == 1 {
                    let slot = case.backend.cancel(ticket).expect("nothing was lost");
                    drop(case.backend.wait(case.backend.submit(slot, range(0, 5, 20_000))).unwrap());
                }
            }
        }
    });
}

#[test]
fn dropped_with_all_reads_in_flight() {
    let files = files(&[LENGTH]);
    for tickets_first in [true, false] {
        each(&files.paths, |Case { backend, .. }| {
            let mut tickets: Vec<Ticket> =
                (0..100).map(|i| submit(&*backend, range(0, i, LENGTH - 100))).collect();
            if tickets_first {
                tickets.clear();
            }
            // The only handle: this waits, and whatever is still written to is still mapped.
            assert_eq!(Arc::strong_count(&backend), 1);
            drop(backend);
            drop(tickets);
        });
    }
}

#[test]
fn on_demand_reads_go_beside_the_tickets() {
    let files = files(&[LENGTH, 5_000]);
    each(&files.paths, |case| {
        let ticket = submit(&*case.backend, range(0, 3, 500_000));
        for wanted in [range(1, 0, 5_000), range(0, 777, 2_304), range(1, 4_999, 1), range(0, 1, 900_001)] {
            let mut into = vec![0; wanted.len];
            let traffic = case.backend.read(wanted, &mut into).unwrap();
            assert!(into == expected(wanted), "{}", case.name);
            assert!(traffic.reads >= 1 && traffic.bytes >= wanted.len as u64, "{}: {traffic:?}", case.name);
        }
        let error = case.backend.read(range(0, 0, 10), &mut [0; 9]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{}", case.name);
        let error = case.backend.read(range(1, 4_999, 2), &mut [0; 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shortened, "{}: {error}", case.name);
        same(&case, &case.backend.wait(ticket).unwrap(), range(0, 3, 500_000));
    });
}

#[test]
fn what_is_not_there_is_an_error_and_gives_the_slot_back() {
    let files = files(&[LENGTH]);
    let end = LENGTH as u64;
    each(&files.paths, |case| {
        for (wanted, kind) in [
            (range(0, end, 1), ErrorKind::Shortened),
            (range(0, end - 1, 2), ErrorKind::Shortened),
            (range(0, end - 10_000, 10_001), ErrorKind::Shortened),
            (range(0, end + 1_000_000, 4_096), ErrorKind::Shortened),
            (range(9, 0, 1), ErrorKind::Usage),
        ] {
            let failed = case.backend.wait(submit(&*case.backend, wanted)).unwrap_err();
            let error = failed.error;
            assert_eq!(error.kind(), kind, "{}: {error}", case.name);
            if kind == ErrorKind::Shortened && !case.in_memory() {
                let text = error.to_string();
                assert_eq!(error.file(), Some(&*files.paths[0]), "{}", case.name);
                assert!(text.contains("got shorter") && text.contains(&format!("{}", wanted.len)), "{text}");
            }
            let slot = failed.slot.expect("the slot comes back");
            let filled = case.backend.wait(case.backend.submit(slot, range(0, 0, 1))).unwrap();
            same(&case, &filled, range(0, 0, 1));
        }
        // Offsets that no file has, up to those that wrap.
        for offset in [i64::MAX as u64 - 1, i64::MAX as u64, u64::MAX - 4_096, u64::MAX] {
            assert!(
                case.backend.wait(submit(&*case.backend, range(0, offset, 4_096))).is_err(),
                "{}",
                case.name
            );
            assert!(case.backend.read(range(0, offset, 4_096), &mut [0; 4_096]).is_err(), "{}", case.name);
        }
    });
}

#[test]
fn a_slot_too_small_is_an_error() {
    let files = files(&[LENGTH]);
    each(&files.paths, |case| {
        let slot = case.backend.slot(10).unwrap();
        if slot.capacity() > 0 {
            let failed = case.backend.wait(case.backend.submit(slot, range(0, 0, 100_000))).unwrap_err();
            assert!(failed.error.to_string().contains("slot"), "{}: {}", case.name, failed.error);
        }
    });
}

#[test]
fn a_file_cut_in_use_is_an_error_that_names_it() {
    let files = files(&[LENGTH]);
    each(&files.paths, |case| {
        if case.in_memory() {
            return;
        }
        std::fs::write(&files.paths[0], expected(range(0, 0, LENGTH))).unwrap();
        // Every backend is opened while the file has its full length, and cuts it for itself.
        same(&case, &get(&*case.backend, range(0, 500_000, 100_000)), range(0, 500_000, 100_000));
        OpenOptions::new().write(true).open(&files.paths[0]).unwrap().set_len(409_600).unwrap();
        for wanted in [range(0, 500_000, 100_000), range(0, 400_000, 100_000), range(0, 409_600, 1)] {
            let error = case.backend.wait(submit(&*case.backend, wanted)).unwrap_err().error;
            assert_eq!(error.kind(), ErrorKind::Shortened, "{}: {error}", case.name);
            assert_eq!(error.file(), Some(&*files.paths[0]));
        }
        assert!(case.backend.read(range(0, 409_599, 2), &mut [0; 2]).is_err(), "{}", case.name);
        same(&case, &get(&*case.backend, range(0, 309_600, 100_000)), range(0, 309_600, 100_000));
        std::fs::write(&files.paths[0], expected(range(0, 0, LENGTH))).unwrap();
    });
}

#[test]
fn a_cut_is_noticed_in_memory_too() {
    let memory = Memory::new(vec![vec![1; 100]]);
    memory.set_faults(sluice_loader::Faults { cut: Some(50), ..Default::default() });
    let error = memory.wait(submit(&memory, range(0, 49, 2))).unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::Shortened);
    assert!(error.to_string().contains("wanted 2 bytes, got 1"), "{error}");
}

#[test]
fn a_file_that_is_written_to_is_noticed_at_the_next_pass() {
    let files = files(&[LENGTH]);
    let path = &files.paths[0];
    each(&files.paths, |case| {
        if case.in_memory() {
            return;
        }
        let changed = || {
            let error = case.backend.begin_pass().expect_err(case.name);
            assert_eq!((error.kind(), error.file()), (ErrorKind::Changed, Some(&**path)), "{}", case.name);
        };
        case.backend.begin_pass().unwrap();
        let file = OpenOptions::new().write(true).open(path).unwrap();
        let then = file.metadata().unwrap().modified().unwrap();
        // Other bytes, the same length: only the time tells. Set here, since the clock of a filesystem may stand still.
        file.set_modified(then + Duration::from_secs(1)).unwrap();
        changed();
        file.set_modified(then).unwrap();
        case.backend.begin_pass().unwrap();
        file.set_len(LENGTH as u64 - 1).unwrap();
        file.set_modified(then).unwrap();
        changed();
        std::fs::write(path, expected(range(0, 0, LENGTH))).unwrap();
    });
}

#[test]
fn several_threads_wait_at_once() {
    let files = files(&[LENGTH]);
    each(&files.paths, |case| {
        thread::scope(|scope| {
            for seed in 1..=4 {
                let case = &case;
                scope.spawn(move || {
                    let mut dice = Dice(seed);
                    for _ in 0..50 {
                        let tickets: Vec<Ticket> = (0..4)
                            .map(|_| {
                                let offset = dice.below(LENGTH as u64 - 60_000);
                                submit(&*case.backend, range(0, offset, 1 + dice.below(60_000) as usize))
                            })
                            .collect();
                        for ticket in tickets.into_iter().rev() {
                            let wanted = ticket.range();
                            same(case, &case.backend.wait(ticket).unwrap(), wanted);
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn reads_outlive_the_thread_that_submitted_them() {
    let files = files(&[LENGTH]);
    each(&files.paths, |case| {
        for round in 0..20 {
            let tickets: Vec<Ticket> = thread::scope(|scope| {
                let submitting = scope.spawn(|| {
                    (0..30).map(|i| submit(&*case.backend, range(0, i * 30_000 + round, 30_000))).collect()
                });
                submitting.join().unwrap()
            });
            for ticket in tickets {
                let wanted = ticket.range();
                same(&case, &case.backend.wait(ticket).unwrap(), wanted);
            }
        }
    });
}

#[test]
fn a_stream_gives_every_byte_in_every_pass() {
    let files = files(&[LENGTH, 70_000]);
    each(&files.paths, |case| {
        let mut steps = Vec::new();
        for (file, length, chunk) in [(0, LENGTH, 33_333), (1, 70_000, 21_000)] {
            for (i, offset) in (0..length).step_by(chunk).enumerate() {
                let range = range(file, offset as u64, chunk.min(length - offset));
                steps.push(Step { range, loans: 2, resident: i % 4 == 1 });
            }
        }
        let count = steps.len() as u64;
        let short = (0..count as u32 / 2).collect();
        let schedule = Schedule::new(steps.clone(), vec![short, (0..count as u32).collect()]).unwrap();
        let stream = Stream::new(Arc::clone(&case.backend), schedule, 2).unwrap();
        let mut order: Vec<u32> = Vec::new();
        for kind in [1, 0, 1, 1] {
            assert_eq!(stream.announce(kind), order.len() as u64);
            order.extend(stream.schedule().pass(kind));
        }
        let next = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let turn = next.fetch_add(1, Ordering::Relaxed);
                        let Some(&step) = order.get(turn as usize / 2) else {
                            return;
                        };
                        let loan = stream.loan(turn / 2).unwrap();
                        assert!(*loan == expected(steps[step as usize].range), "{}", case.name);
                    }
                });
            }
        });
        let stats = stream.stats();
        let streamed: u64 = [1, 0, 1, 1].iter().map(|&kind| stream.streamed_bytes(kind)).sum();
        assert_eq!(stats.passes, 4);
        let wanted = streamed + stream.resident_bytes();
        assert!(stats.bytes_read >= wanted && stats.bytes_read < wanted * 3 / 2, "{}: {stats:?}", case.name);
        if !case.backend.direct() {
            assert_eq!(stats.bytes_read, wanted, "{}: residents are read once", case.name);
        }
    });
}

#[test]
fn names_that_open_refuses() {
    let files = files(&[100]);
    let wrong = Options { backend: Choice::Mmap, direct: Direct::On, ..Options::default() };
    assert_eq!(open(&files.paths, &wrong).err().unwrap().kind(), ErrorKind::Usage);
    for backend in [Choice::Auto, Choice::Mmap, Choice::Pread] {
        let options = Options { backend, ..Options::default() };
        let missing = files.folder.path().join("missing.gguf");
        let error = open(std::slice::from_ref(&missing), &options).err().unwrap();
        assert_eq!((error.kind(), error.file()), (ErrorKind::Open, Some(&*missing)));
        let error = open(&[files.folder.path().to_owned()], &options).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Open, "a folder is no file: {error}");
    }
}

#[test]
fn auto_says_what_it_chose() {
    let files = files(&[LENGTH]);
    let opened = open(&files.paths, &Options::default()).unwrap();
    assert!(opened.notes.iter().any(|note| note.contains("page cache")), "{:?}", opened.notes);
    assert!(opened.notes.iter().any(|note| note.contains(opened.backend.name())), "{:?}", opened.notes);
    assert!(!opened.backend.direct(), "a file just written is in the page cache");
    let all = Options { all_resident: true, ..Options::default() };
    assert_eq!(open(&files.paths, &all).unwrap().backend.name(), "mmap");
    for direct in [Direct::Auto, Direct::Off] {
        let copied = Options { copied: true, direct, ..Options::default() };
        let opened = open(&files.paths, &copied).unwrap();
        assert_eq!(opened.backend.name(), "pread", "no mapping, and nothing to wait for: {:?}", opened.notes);
    }
    let named = Options { backend: Choice::Pread, direct: Direct::Off, ..Options::default() };
    let opened = open(&files.paths, &named).unwrap();
    assert_eq!((opened.backend.name(), opened.notes.len()), ("pread", 0));
}

/// Megabytes of the file whose last byte is in the page cache, asked from the back so that asking reads nothing ahead.
fn cached_megabytes(path: &Path, length: usize) -> usize {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    let file = File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    let ends = (1..=length >> 20).rev().map(|megabyte| (megabyte << 20) as u64 - 1);
    let cached = |&end: &u64| {
        let mut byte = [0];
        let mut into = [std::io::IoSliceMut::new(&mut byte)];
        preadv2(&file, &mut into, end, ReadWriteFlags::NOWAIT) != Err(Errno::AGAIN)
    };
    ends.filter(cached).count()
}

/// Writes the file out and drops it from the page cache; false where that has no effect. Pages that are still on their way
/// from the disk, read ahead for a walk before, cannot be dropped yet: those take another try.
fn evict(path: &Path, length: usize) -> bool {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    (0..50).any(|_| {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let gone = cached_megabytes(path, length) == 0;
        if !gone {
            thread::sleep(Duration::from_millis(20));
        }
        gone
    })
}

#[test]
fn what_does_not_fit_the_page_cache_does_not_stay_there() {
    const LENGTH: usize = 48 << 20;
    let files = files(&[LENGTH]);
    let walk = |backend: Choice, room: u64| {
        let direct = Direct::Off;
        let options = Options { backend, direct, page_cache_room: Some(room), ..Options::default() };
        let opened = match open(&files.paths, &options) {
            Ok(opened) => opened,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                return None;
            }
        };
        for offset in (0..LENGTH).step_by(opened.chunk_bytes) {
            let wanted = range(0, offset as u64, opened.chunk_bytes.min(LENGTH - offset));
            let filled = get(&*opened.backend, wanted);
            assert!(*filled == expected(wanted), "{wanted:?}");
            drop(opened.backend.release(filled));
        }
        Some(cached_megabytes(&files.paths[0], LENGTH))
    };
    for backend in [Choice::Pread, Choice::Uring] {
        assert_eq!(walk(backend, 0).unwrap_or(48), 48, "{backend:?}: a file found warm stays so");
        if !evict(&files.paths[0], LENGTH) {
            return;
        }
        // The last megabytes wait for more to come, and so does what the system has read ahead.
        let left = walk(backend, 0).unwrap_or(0);
        assert!(left < 36, "{backend:?}: {left} MB of 48 stayed");
        assert!(evict(&files.paths[0], LENGTH));
        assert_eq!(walk(backend, u64::MAX).unwrap_or(48), 48, "{backend:?}: there is room");
    }
}

#[test]
fn auto_goes_by_the_room_there_is() {
    const LENGTH: usize = 8 << 20;
    let files = files(&[LENGTH]);
    let auto = |room: u64| {
        let options = Options { page_cache_room: Some(room), workers: 2, ..Options::default() };
        let opened = open(&files.paths, &options).unwrap();
        assert!(opened.notes.iter().any(|note| note.contains("room")), "{:?}", opened.notes);
        assert_eq!(opened.chunk_bytes, opened.backend.chunk_bytes());
        opened.backend
    };
    assert!(!auto(0).direct(), "all of it is there already");
    if !evict(&files.paths[0], LENGTH) {
        return;
    }
    let backend = auto(LENGTH as u64 - 1);
    assert!(backend.direct() || backend.describe().contains("drop_behind"), "{}", backend.describe());
    // Whether so much memory is unused is the machine's affair: either way it is a choice that works.
    let backend = auto(LENGTH as u64);
    let wanted = range(0, 5, 100_000);
    assert!(*get(&*backend, wanted) == expected(wanted), "{}", backend.describe());
}

#[test]
fn a_file_that_takes_no_direct_reads() {
    // Files that the kernel makes up are never read directly.
    let paths = [PathBuf::from("/proc/version")];
    for backend in [Choice::Pread, Choice::Uring] {
        let named = Options { backend, direct: Direct::On, ..Options::default() };
        let error = open(&paths, &named).err().unwrap();
        if error.kind() != ErrorKind::Unavailable {
            assert_eq!((error.kind(), error.file()), (ErrorKind::NoDirect, Some(&*paths[0])));
            assert!(error.to_string().contains("turn direct reads off"), "{error}");
        }
    }
}

#[test]
fn room_for_reads_in_flight_makes_the_queue_deeper() {
    let files = files(&[1 << 20]);
    let depth = |direct, depth, room| {
        let options =
            Options { backend: Choice::Uring, direct, depth, flight_room: room, ..Options::default() };
        match open(&files.paths, &options) {
            Ok(opened) => Some(opened.backend.depth()),
            Err(error) => {
                assert!([ErrorKind::Unavailable, ErrorKind::NoDirect].contains(&error.kind()), "{error}");
                None
            }
        }
    };
    let Some(usual) = depth(Direct::On, None, None) else { return };
    for (room, wanted) in [(0, usual), (12 << 20, 24), (u64::MAX, 32)] {
        assert_eq!(depth(Direct::On, None, Some(room)), Some(wanted), "room for {room} bytes");
    }
    assert_eq!(depth(Direct::On, Some(3), Some(12 << 20)), Some(3), "what is asked for by number");
    assert_eq!(
        depth(Direct::Off, None, Some(12 << 20)),
        depth(Direct::Off, None, None),
        "cached reads wait for nothing"
    );
}
