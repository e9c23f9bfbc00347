//! Memory pressure while running: how many bytes of resident chunks may stay, asked of the kernel twenty times a second.
//!
//! A thread of its own asks, and not the workers between two bands: pressure must be answered while a session waits for its
//! user, and while workers wait for a disk or stand in a page fault because memory is short. What it finds it tells the
//! loader, [`Stream::keep`], which gives chunks back without the workers' help.
//!
//! Chunks in a mapping need none of this: the kernel drops pages of files by itself.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sluice_loader::Stream;

use crate::available::{Level, Reading, levels};

/// Time between two looks. A neighbour that takes 500 MB/s comes by 25 MB in between. A look takes 150 µs where groups are
/// nested three deep: 3 ms of CPU in a second.
const POLL: Duration = Duration::from_millis(50);

/// Stack of the thread that looks: it holds a few paths and numbers, and a read that it hands to a backend.
const STACK: usize = 128 << 10;

/// This part of a machine's memory, or of a group's limit, is to be left by us: what others may take before the next look is
/// answered. In a group of 1.5 GB that is 100 MB, two looks at a neighbour that takes 1 GB/s.
const RESERVE_PART: u64 = 16;

/// More is not reserved on large machines: nobody takes it in so short a time without notice.
const LARGEST_RESERVE: u64 = 256 << 20;

/// Of what was lost since the last look as much again is expected until the next, and once more while chunks are given back;
/// but no more than so many reserves: who took half of a group at once does not do so again.
const AHEAD: u64 = 2;

/// Part of the time that somebody may stand waiting for memory before we give something back.
const STALLED: f64 = 0.1;

/// Waiting counts only where less than this part is left: a group that runs into a limit of its own makes the machine's
/// counter run too, and nothing of ours would help it.
const SHORT_PART: u64 = 4;

/// Given back with each look as long as others stall: everything within half a second.
const STEP_DOWN_PART: u64 = 8;

/// There must be room for so long before anything is taken again, so that a neighbour who comes and goes does not make us
/// read the same chunks with every breath.
const CALM: Duration = Duration::from_secs(3);

/// Then so much of all residents is taken again, every [`STEP_UP`]: the whole in four seconds, if the disk keeps pace.
const STEP_UP_PART: u64 = 4;
const STEP_UP: Duration = Duration::from_secs(1);

/// Less than this part of all residents is not worth a change upwards.
const LEAST_PART: u64 = 16;

/// What may stay, by what the levels say from look to look.
#[derive(Debug)]
struct Target {
    /// Bytes of all residents.
    most: u64,
    /// Bytes that may stay now.
    limit: u64,
    /// The last look: when, what could have been kept, and what each level said.
    before: Option<(Duration, Vec<Option<Seen>>)>,
    /// Since when there has been room for more, and for how much at least.
    calm: Option<(Duration, u64)>,
}

/// A level at one look.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// What is left and what we keep: what could be kept if nobody took more.
    room: u64,
    stalled: Option<u64>,
}

impl Target {
    fn new(most: u64) -> Self {
        Self { most, limit: most, before: None, calm: None }
    }

    /// Bytes that may stay, at the time `now` since the start, when `kept` bytes are here and the levels say `readings`. Falls
    /// at once, as far as it must; rises step by step, when there has been room for a while. Between what makes it fall and
    /// what lets it rise lies a reserve, so that it does not swing.
    fn next(&mut self, now: Duration, kept: u64, readings: &[Option<Reading>]) -> u64 {
        let seen = readings
            .iter()
            .map(|reading| reading.map(|r| Seen { room: r.left.saturating_add(kept), stalled: r.stalled }));
        let seen: Vec<Option<Seen>> = seen.collect();
        let (then, before) = self.before.take().unwrap_or_else(|| (now, seen.clone()));
        let took = now.saturating_sub(then).as_micros() as f64;

        let (mut hold, mut spare) = (u64::MAX, u64::MAX);
        for (level, (reading, seen)) in readings.iter().zip(&seen).enumerate() {
            let (Some(reading), Some(seen)) = (reading, seen) else { continue };
            let before = before.get(level).copied().flatten().unwrap_or(*seen);
            let reserve = (reading.size / RESERVE_PART).min(LARGEST_RESERVE);
            let lost = before.room.saturating_sub(seen.room);
            hold = hold.min(seen.room.saturating_sub(reserve + AHEAD * lost.min(reserve)));
            // No more than would still stay if somebody took a lot at once.
            spare = spare.min(seen.room.saturating_sub((1 + AHEAD) * reserve));
            let stalled = seen.stalled.zip(before.stalled).map_or(0, |(now, then)| now.saturating_sub(then));
            if stalled as f64 > STALLED * took && reading.left < reading.size / SHORT_PART {
                hold = hold.min(self.limit.saturating_sub(self.most / STEP_DOWN_PART));
                spare = 0;
            }
        }
        self.before = Some((now, seen));

        self.limit = self.limit.min(hold);
        let goal = spare.min(self.most);
        if goal < (self.limit + self.most / LEAST_PART).min(self.most) || self.limit == self.most {
            self.calm = None;
        } else {
            let (since, least) = self.calm.unwrap_or((now, goal));
            let least = least.min(goal);
            self.calm = Some((since, least));
            if now.saturating_sub(since) >= CALM {
                self.limit = least.min(self.limit + self.most.div_ceil(STEP_UP_PART));
                // The next step may come sooner; when there is none, whatever has changed since counts anew.
                let next = (now.saturating_sub(CALM - STEP_UP), least);
                self.calm = (self.limit < least).then_some(next);
            }
        }
        self.limit
    }
}

/// The thread that looks, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Monitor {
    stop: Arc<AtomicBool>,
    least: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Watches memory for `stream`; the first look is over when this returns, so that no chunk is read that may not stay.
    /// None where there is nothing to do: no residents, residents that are mapped pages of a file, a kernel that gives no
    /// signal, or one that has no thread for this.
    pub(crate) fn start(stream: &Arc<RwLock<Stream>>) -> Option<Self> {
        Self::start_under(Path::new("/"), stream)
    }

    /// As [`Monitor::start`], with `/proc` and `/sys` below `root`.
    fn start_under(root: &Path, stream: &Arc<RwLock<Stream>>) -> Option<Self> {
        let levels = levels(root);
        let most = {
            let stream = stream.read().unwrap_or_else(PoisonError::into_inner);
            if stream.backend().maps() { 0 } else { stream.resident_bytes() }
        };
        if most == 0 || levels.iter().all(|level| level.read().is_none()) {
            return None;
        }
        let (mut target, since) = (Target::new(most), Instant::now());
        let least = Arc::new(AtomicU64::new(look(&mut target, &levels, since, stream)));
        let stop = Arc::new(AtomicBool::new(false));
        let (stream, stopped, lowest) = (Arc::clone(stream), Arc::clone(&stop), Arc::clone(&least));
        let work = move || {
            loop {
                thread::park_timeout(POLL);
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                lowest.fetch_min(look(&mut target, &levels, since, &stream), Ordering::Relaxed);
            }
        };
        let builder = thread::Builder::new().name("pressure".into()).stack_size(STACK);
        Some(Self { stop, least, thread: Some(builder.spawn(work).ok()?) })
    }

    /// The fewest bytes of residents that were allowed to stay at any time so far.
    pub(crate) fn least(&self) -> u64 {
        self.least.load(Ordering::Relaxed)
    }
}

/// Asks every level, and tells the stream what follows: bytes of residents that may stay.
fn look(target: &mut Target, levels: &[Level], since: Instant, stream: &RwLock<Stream>) -> u64 {
    let readings: Vec<Option<Reading>> = levels.iter().map(Level::read).collect();
    let stream = stream.read().unwrap_or_else(PoisonError::into_inner);
    let limit = target.next(since.elapsed(), stream.kept_bytes(), &readings);
    // All of them is no limit, and the loader may forget what it made for lower ones.
    stream.keep(limit);
    limit
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Should it have panicked, there is nothing left that it could do.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sluice_loader::{ByteRange, FileIndex, Memory, Schedule, Step};
    use tempfile::TempDir;

    use super::*;

    const MB: u64 = 1_000_000;

    /// A group of 1600 MB: a reserve of 100.
    const GROUP: u64 = 1600 * MB;

    /// Looks every 50 ms at a machine that is simulated: what others use, and what we keep (all that we may).
    struct World {
        target: Target,
        now: Duration,
        kept: u64,
        stalled: u64,
    }

    impl World {
        fn new(most: u64) -> Self {
            Self { target: Target::new(most), now: Duration::ZERO, kept: most, stalled: 0 }
        }

        fn look(&mut self, others: u64) -> u64 {
            let left = GROUP.saturating_sub(others + self.kept);
            let group = Reading { size: GROUP, left, stalled: Some(self.stalled) };
            let machine = Reading { size: 100 * GROUP, left: 50 * GROUP, stalled: Some(self.stalled) };
            self.kept = self.target.next(self.now, self.kept, &[Some(group), None, Some(machine)]);
            self.now += POLL;
            self.kept
        }
    }

    #[test]
    fn with_room_everything_stays() {
        let mut world = World::new(1000 * MB);
        for round in 0..1000 {
            let flutter = 50 * MB * (round % 2);
            assert_eq!(world.look(300 * MB + flutter), 1000 * MB, "others use a little more, a little less");
        }
    }

    #[test]
    fn a_neighbour_who_grows_finds_room_and_what_went_comes_back() {
        let mut world = World::new(1000 * MB);
        let (mut lowest, mut falls) = (u64::MAX, 0);
        // 25 MB with every look, 1.1 GB in all, for 20 s.
        for round in 0..44 + 400 {
            let others = 50 * MB + (25 * MB * round).min(1100 * MB);
            let before = world.kept;
            let now = world.look(others);
            assert!(others + now + 75 * MB <= GROUP, "round {round}: {now} kept beside {others}");
            lowest = lowest.min(now);
            falls += u32::from(now < before);
        }
        assert!(falls > 10, "step by step: {falls}");
        assert!((250 * MB..350 * MB).contains(&world.kept), "no more goes than has to: {}", world.kept);
        assert!(world.kept - lowest < 1000 * MB / LEAST_PART + 60 * MB, "it does not swing: {lowest}");
        // It lets go: nothing for three seconds, then step by step, all within ten.
        let before = world.kept;
        for _ in 0..60 {
            assert_eq!(world.look(50 * MB), before);
        }
        assert!(world.look(50 * MB) <= before + 250 * MB);
        let looks = (0..).take_while(|_| world.look(50 * MB) < 1000 * MB).count();
        assert!((30..120).contains(&looks), "{looks} looks");
    }

    #[test]
    fn a_neighbour_who_breathes_does_not_make_us_read_again_and_again() {
        let mut world = World::new(1000 * MB);
        let mut rises = 0;
        for round in 0..2000u64 {
            // 800 MB for a second, then 300 MB for a second.
            let others = if round / 20 % 2 == 0 { 800 * MB } else { 300 * MB };
            let before = world.kept;
            rises += u32::from(world.look(others) > before);
        }
        assert_eq!(rises, 0, "room for a second is not enough");
        assert!(world.kept < 700 * MB);
    }

    #[test]
    fn whoever_stalls_is_helped_where_memory_is_short() {
        let stall = |others, micros| {
            let mut world = World::new(1000 * MB);
            world.look(others);
            for _ in 0..20 {
                world.stalled += micros;
                world.look(others);
            }
            world.kept
        };
        assert_eq!(stall(350 * MB, 0), 1000 * MB);
        assert_eq!(stall(350 * MB, 4_000), 1000 * MB, "under a tenth of the time");
        assert!(stall(350 * MB, 10_000) < 900 * MB, "until a quarter of the group is left");
        assert_eq!(stall(150 * MB, 10_000), 1000 * MB, "there is enough: it is somebody else's limit");
    }

    #[test]
    fn the_first_look_already_counts() {
        let first = |most, others| World { kept: 0, ..World::new(most) }.look(others);
        assert_eq!(first(2000 * MB, 0), 1500 * MB, "more than the group may have");
        assert_eq!(first(1000 * MB, GROUP), 0);
    }

    #[test]
    fn levels_that_say_nothing_change_nothing() {
        let mut target = Target::new(1000);
        assert_eq!(target.next(POLL, 1000, &[None, None]), 1000);
        assert_eq!(target.next(POLL, 1000, &[]), 1000);
        let full = Reading { size: 1600, left: 0, stalled: None };
        assert_eq!(target.next(2 * POLL, 1000, &[Some(full)]), 900);
        // A limit that is lifted while we run.
        assert_eq!(target.next(20 * POLL, 900, &[None]), 900);
        assert_eq!(target.next(90 * POLL, 900, &[None]), 1000);
    }

    /// A stream of 100 resident chunks of 10 kB.
    fn stream() -> Arc<RwLock<Stream>> {
        let range = |i: u64| ByteRange { file: FileIndex(0), offset: i * 10_000, len: 10_000 };
        let steps = (0..100).map(|i| Step { range: range(i), loans: 1, resident: true });
        let schedule = Schedule::new(steps.collect(), vec![(0..100).collect()]).expect("a good schedule");
        let memory = Memory::new(vec![vec![7; 1_000_000]]);
        Arc::new(RwLock::new(Stream::new(Arc::new(memory), schedule, 1).expect("slots")))
    }

    fn walk(stream: &RwLock<Stream>) {
        let stream = stream.read().expect("no panics");
        let first = stream.announce(0);
        (first..first + 100).for_each(|position| assert_eq!(stream.loan(position).expect("no faults")[0], 7));
    }

    fn write(root: &TempDir, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("room");
            // Renamed into place: the monitor must never see half a file.
            let new = path.with_extension("new");
            fs::write(&new, text).expect("room");
            fs::rename(new, path).expect("room");
        }
    }

    /// Waits for `done`, far longer than it takes.
    fn soon(done: impl Fn() -> bool) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        while !done() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        done()
    }

    #[test]
    fn a_group_that_fills_up_is_noticed_by_itself_in_every_kind_of_tree() {
        let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let v2 = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let boxed = v2.replace("0:28 / ", "0:28 /docker/abc ");
        let hybrid = format!("{v1}{}", v2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified "));
        let (one, two) =
            (["memory.limit_in_bytes", "memory.usage_in_bytes"], ["memory.max", "memory.current"]);
        // mountinfo, cgroup, folder of the group that fills up, names of its files
        let trees = [
            (v1, "4:memory:/a/b\n", "memory/a/b", one),
            (v1, "4:memory:/a/b\n", "memory/a", one),
            (v2, "0::/a/b\n", "a/b", two),
            (v2, "0::/a/b\n", "a", two),
            (&*hybrid, "4:memory:/a\n0::/b\n", "memory/a", one),
            (&*hybrid, "4:memory:/a\n0::/b\n", "unified/b", two),
            (&*boxed, "0::/docker/abc\n", "", two),
        ];
        for (mountinfo, cgroup, folder, [limit, used]) in trees {
            let root = TempDir::new().expect("a temporary folder");
            let file = |name| Path::new("sys/fs/cgroup").join(folder).join(name).display().to_string();
            let (limit, used) = (file(limit), file(used));
            write(
                &root,
                &[
                    ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 9000 kB\n"),
                    ("proc/self/mountinfo", mountinfo),
                    ("proc/self/cgroup", cgroup),
                    (&limit, "1600000\n"),
                    (&used, "100000\n"),
                ],
            );
            let stream = stream();
            let kept = || stream.read().expect("no panics").kept_bytes();
            let monitor = Monitor::start_under(root.path(), &stream).expect("there are signals");
            walk(&stream);
            assert_eq!(kept(), 1_000_000, "{folder}");
            assert_eq!(monitor.least(), 1_000_000, "{folder}: all of it so far");
            write(&root, &[(&used, "1700000\n")]);
            assert!(soon(|| kept() <= 900_000), "{folder}: {} kept, and no worker at work", kept());
            assert!(soon(|| monitor.least() <= 900_000), "{folder}: {} at the least", monitor.least());
            drop(monitor);
        }
    }

    #[test]
    fn without_signals_or_residents_nobody_looks() {
        let root = TempDir::new().expect("a temporary folder");
        assert!(Monitor::start_under(root.path(), &stream()).is_none(), "no signal");
        write(&root, &[("proc/meminfo", "MemAvailable: 9000 kB\n")]);
        assert!(Monitor::start_under(root.path(), &stream()).is_some());
        let range = ByteRange { file: FileIndex(0), offset: 0, len: 1 };
        let schedule = Schedule::new(vec![Step { range, loans: 1, resident: false }], vec![vec![0]]);
        let streamed = Stream::new(Arc::new(Memory::new(vec![vec![7]])), schedule.expect("a good one"), 1);
        let streamed = Arc::new(RwLock::new(streamed.expect("slots")));
        assert!(Monitor::start_under(root.path(), &streamed).is_none(), "nothing stays anyway");
    }
}
