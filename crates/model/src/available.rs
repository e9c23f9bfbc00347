//! How much memory this process could still take: what the machine has, and what every limit on it allows.

use std::fs;
use std::path::{Path, PathBuf};

use crate::memory::kib_field;

/// Bytes that could be taken without pushing others out or running into a limit: the smallest of the kernel's
/// MemAvailable; for every control group from ours to the root (versions 1 and 2), its limit less what is used and cannot
/// be dropped; and the limit on our address space (`ulimit -v`) less what we have of it. None where the kernel says nothing.
///
/// `threads` are still to be started: each reserves addresses that it hardly uses.
pub fn available(threads: usize) -> Option<u64> {
    available_under(Path::new("/"), threads)
}

/// Bytes of memory that this machine has; None where the system does not say.
pub fn total_memory() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Addresses that the C library reserves for a thread: 64 MiB for its part of the heap, and a stack.
const ADDRESSES_PER_THREAD: u64 = 72 << 20;

/// As [`available`], with `/proc` and `/sys` below `root`.
fn available_under(root: &Path, threads: usize) -> Option<u64> {
    let left = levels(root).into_iter().filter_map(|level| level.read()).map(|reading| reading.left);
    let read = |name: &str| fs::read_to_string(root.join("proc/self").join(name)).unwrap_or_default();
    let reserved = (threads as u64).saturating_mul(ADDRESSES_PER_THREAD);
    let addresses =
        addresses_left(&read("limits"), &read("status")).map(|left| left.saturating_sub(reserved));
    left.chain(addresses).min()
}

/// A place where memory may run short: the machine, or a control group that we are in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The folder `proc`.
    Machine(PathBuf),
    /// The folder of a group, and what its files are called.
    Group(PathBuf, Files),
}

/// What a [`Level`] says at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// All the memory there is, or may be used, in bytes.
    pub size: u64,
    /// What could still be taken of it.
    pub left: u64,
    /// Microseconds in which somebody there waited for memory, ever; None where the kernel does not count.
    pub stalled: Option<u64>,
}

/// The machine, and every group from ours to the root in each hierarchy that counts memory, below `root`. To be found once;
/// what they say is asked again and again.
pub(crate) fn levels(root: &Path) -> Vec<Level> {
    let proc = root.join("proc");
    let read = |name: &str| fs::read_to_string(proc.join("self").join(name)).unwrap_or_default();
    let mut levels = Vec::new();
    for Hierarchy { mount, group, files } in hierarchies(&read("mountinfo"), &read("cgroup")) {
        let mount = root.join(mount.strip_prefix("/").unwrap_or(&mount));
        levels.extend(group.ancestors().map(|group| Level::Group(mount.join(group), files)));
    }
    levels.push(Level::Machine(proc));
    levels
}

impl Level {
    /// Asks the kernel; None where it says nothing, or there is no limit.
    pub(crate) fn read(&self) -> Option<Reading> {
        let (size, left, pressure) = match self {
            Level::Machine(proc) => {
                let meminfo = fs::read_to_string(proc.join("meminfo")).ok()?;
                let left = kib_field(&meminfo, "MemAvailable:")?;
                (kib_field(&meminfo, "MemTotal:").unwrap_or(left), left, proc.join("pressure/memory"))
            }
            Level::Group(folder, files) => {
                let limit = files.limit(folder)?;
                (limit, limit.saturating_sub(files.used(folder)), folder.join("memory.pressure"))
            }
        };
        let stalled = fs::read_to_string(pressure).ok().and_then(|text| stalled(&text));
        Some(Reading { size, left, stalled })
    }
}

/// The sum of the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`.
fn stalled(pressure: &str) -> Option<u64> {
    let some = pressure.lines().find(|line| line.starts_with("some "))?;
    some.rsplit_once("total=")?.1.trim().parse().ok()
}

/// Bytes left of the address space that `/proc/self/limits` allows; None when that is unlimited.
fn addresses_left(limits: &str, status: &str) -> Option<u64> {
    let soft = limits.lines().find_map(|l| l.strip_prefix("Max address space"))?.split_whitespace().next()?;
    let limit: u64 = soft.parse().ok()?;
    Some(limit.saturating_sub(kib_field(status, "VmSize:").unwrap_or(0)))
}

/// Names of the files in which a version of control groups says what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Files {
    /// Limits in bytes, of which the smallest counts; `max` for none in version 2, a number near 2^63 in version 1.
    limits: &'static [&'static str],
    used: &'static str,
    /// Line of `memory.stat` with the page cache that can be dropped, of the group and those below it.
    droppable: &'static str,
}

const V1: Files = Files {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    droppable: "total_inactive_file ",
};
const V2: Files = Files {
    limits: &["memory.max", "memory.high"], // above the second nobody is killed, but everybody is held up
    used: "memory.current",
    droppable: "inactive_file ",
};

/// No machine has as much, so it is version 1's way to say that there is no limit.
const NO_LIMIT: u64 = 1 << 60;

/// A mounted hierarchy that counts memory, and our place in it.
struct Hierarchy {
    mount: PathBuf,
    /// Our group, as a path below `mount`.
    group: PathBuf,
    files: Files,
}

impl Files {
    fn limit(&self, group: &Path) -> Option<u64> {
        let limits = self.limits.iter().filter_map(|name| number(&group.join(name))); // "max" is no number
        limits.filter(|&limit| limit < NO_LIMIT).min()
    }

    /// Bytes used that cannot be dropped.
    fn used(&self, group: &Path) -> u64 {
        let used = number(&group.join(self.used)).unwrap_or(0);
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let droppable = stat.lines().find_map(|l| l.strip_prefix(self.droppable)?.trim().parse::<u64>().ok());
        used.saturating_sub(droppable.unwrap_or(0))
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The hierarchies that count memory: at most one of each version on a machine that has both.
fn hierarchies(mountinfo: &str, cgroup: &str) -> Vec<Hierarchy> {
    // Lines of /proc/self/cgroup: number, controllers, path. Version 2 has no controllers there.
    let ours = |wanted: fn(&str) -> bool| {
        cgroup.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            wanted(controllers).then(|| PathBuf::from(path))
        })
    };
    let mounts = mountinfo.lines().filter_map(|line| {
        // Before " - ": ids, device, the part of the hierarchy that is mounted, where. After it: type, source, options.
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (mounted, mount) = (PathBuf::from(place.next()?), PathBuf::from(place.next()?));
        let mut kind = kind.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1).unwrap_or(""));
        let counts_memory = |list: &str| list.split(',').any(|c| c == "memory");
        let (files, path) = match kind {
            "cgroup2" => (V2, ours(str::is_empty)?),
            "cgroup" if counts_memory(options) => (V1, ours(|list| list.split(',').any(|c| c == "memory"))?),
            _ => return None,
        };
        // In a container the mount may begin at our own group, or our path be told from outside: then what is mounted
        // is the nearest that we can see.
        let group = path.strip_prefix(&mounted).unwrap_or(Path::new("")).to_owned();
        Some(Hierarchy { mount, group, files })
    });
    mounts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const V1_MOUNT: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
    const V2_MOUNT: &str = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    /// A machine with 1000 kB available, and these files.
    fn machine(files: &[(&str, &str)]) -> TempDir {
        let root = TempDir::new().expect("a temporary folder");
        let meminfo = ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    1000 kB\n");
        for (path, text) in files.iter().chain([&meminfo]) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("room");
            fs::write(path, text).expect("room");
        }
        root
    }

    fn left(files: &[(&str, &str)]) -> Option<u64> {
        available_under(machine(files).path(), 0)
    }

    const MACHINE: Option<u64> = Some(1000 << 10);

    #[test]
    fn without_groups_the_machine_counts() {
        assert_eq!(left(&[]), MACHINE);
        assert_eq!(available_under(Path::new("/nowhere"), 0), None);
    }

    #[test]
    fn version_2_takes_the_tightest_group_above_us() {
        let tree = |outer, inner| {
            left(&[
                ("proc/self/mountinfo", V2_MOUNT),
                ("proc/self/cgroup", "0::/outer/inner\n"),
                ("sys/fs/cgroup/outer/memory.max", outer),
                ("sys/fs/cgroup/outer/memory.current", "70000\n"),
                ("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 20000\n"),
                ("sys/fs/cgroup/outer/inner/memory.max", inner),
                ("sys/fs/cgroup/outer/inner/memory.current", "1000\n"),
            ])
        };
        assert_eq!(tree("max\n", "max\n"), MACHINE);
        assert_eq!(tree("90000\n", "max\n"), Some(90000 - 50000), "droppable cache is not in the way");
        assert_eq!(tree("90000\n", "30000\n"), Some(29000));
        assert_eq!(tree("40000\n", "30000\n"), Some(0), "more used than allowed");
    }

    #[test]
    fn version_1_has_its_own_names_and_a_huge_number_for_no_limit() {
        let tree = |limit| {
            left(&[
                ("proc/self/mountinfo", V1_MOUNT),
                ("proc/self/cgroup", "4:cpu,memory:/box\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "50000\n"),
                ("sys/fs/cgroup/memory/box/memory.stat", "inactive_file 1\ntotal_inactive_file 30000\n"),
            ])
        };
        assert_eq!(tree("64000\n"), Some(44000));
        assert_eq!(tree("9223372036854771712\n"), MACHINE);
    }

    #[test]
    fn hybrid_machines_have_both() {
        let v2 = V2_MOUNT.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ");
        let files = [
            ("proc/self/mountinfo", &*format!("{V1_MOUNT}{v2}")),
            ("proc/self/cgroup", "4:memory:/box\n0::/other\n"),
            ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "64000\n"),
            ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "4000\n"),
            ("sys/fs/cgroup/unified/other/memory.max", "50000\n"),
            ("sys/fs/cgroup/unified/other/memory.current", "1000\n"),
        ];
        assert_eq!(left(&files), Some(49000));
    }

    #[test]
    fn version_2_slows_down_before_it_refuses() {
        let files = [
            ("proc/self/mountinfo", V2_MOUNT),
            ("proc/self/cgroup", "0::/box\n"),
            ("sys/fs/cgroup/box/memory.max", "90000\n"),
            ("sys/fs/cgroup/box/memory.high", "60000\n"),
            ("sys/fs/cgroup/box/memory.current", "10000\n"),
        ];
        assert_eq!(left(&files), Some(50000));
    }

    #[test]
    fn levels_say_how_long_somebody_waited() {
        let some = |total| {
            format!("some avg10=0.12 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 total=3\n")
        };
        let root = machine(&[
            ("proc/self/mountinfo", V2_MOUNT),
            ("proc/self/cgroup", "0::/box\n"),
            ("proc/pressure/memory", &some(70)),
            ("sys/fs/cgroup/box/memory.max", "90000\n"),
            ("sys/fs/cgroup/box/memory.current", "10000\n"),
            ("sys/fs/cgroup/box/memory.pressure", &some(50)),
        ]);
        let read: Vec<_> = levels(root.path()).iter().map(Level::read).collect();
        let group = Reading { size: 90000, left: 80000, stalled: Some(50) };
        let whole = Reading { size: 9000 << 10, left: 1000 << 10, stalled: Some(70) };
        assert_eq!(read, [Some(group), None, Some(whole)], "the root group has no limit");
        assert_eq!((stalled(""), stalled("some total=x"), stalled("full total=1")), (None, None, None));
    }

    #[test]
    fn a_limit_on_addresses_counts_too() {
        let limits = |soft| {
            format!(
                "Limit   Soft Limit   Hard Limit   Units\nMax address space   {soft}   unlimited   bytes\n"
            )
        };
        let tree =
            |soft| left(&[("proc/self/limits", &*limits(soft)), ("proc/self/status", "VmSize:\t  100 kB\n")]);
        assert_eq!(tree("unlimited"), MACHINE);
        assert_eq!(tree("500000"), Some(500_000 - (100 << 10)));
        let root = machine(&[("proc/self/limits", &limits("500000"))]);
        assert_eq!(available_under(root.path(), 1), Some(0), "a thread's heap alone is larger");
    }

    #[test]
    fn a_mount_that_begins_at_our_group_is_our_group() {
        let mount = V2_MOUNT.replace("0:28 / ", "0:28 /docker/abc ");
        for path in ["0::/docker/abc\n", "0::/\n", "0::/../elsewhere\n"] {
            let files = [
                ("proc/self/mountinfo", &*mount),
                ("proc/self/cgroup", path),
                ("sys/fs/cgroup/memory.max", "80000\n"),
                ("sys/fs/cgroup/memory.current", "10000\n"),
            ];
            assert_eq!(left(&files), Some(70000), "{path}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_memory_left() {
        assert!(available(2).is_some_and(|a| a > 1 << 20));
    }
}
