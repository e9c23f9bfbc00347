//! Containers: memory control groups of the first and of the second version, one per run.

use crate::sh::Result;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Where this machine lets us make memory control groups.
#[derive(Debug, PartialEq)]
pub struct Groups {
    mount: PathBuf,
    files: &'static Files,
}

/// What the files of a group are called.
#[derive(Debug, PartialEq)]
struct Files {
    limit: &'static str,
    peak: &'static str,
    /// Holds a line `oom_kill N`.
    events: &'static str,
}

const V1: Files =
    Files { limit: "memory.limit_in_bytes", peak: "memory.max_usage_in_bytes", events: "memory.oom_control" };
const V2: Files = Files { limit: "memory.max", peak: "memory.peak", events: "memory.events" };

/// Start of a group's name; the id of the process that made it follows.
const NAME: &str = "sluice-bench-";

impl Groups {
    /// Finds the hierarchy that counts memory.
    ///
    /// # Errors
    /// Says why there is none that we may use.
    pub fn find() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/mounts").map_err(|error| format!("/proc/mounts: {error}"))?;
        let controls = |mount: &Path| {
            fs::read_to_string(mount.join("cgroup.controllers"))
                .is_ok_and(|list| list.split_whitespace().any(|controller| controller == "memory"))
        };
        let groups = Self::from_mounts(&mounts, controls)
            .ok_or("no memory control groups are mounted here, so nothing can run in a container")?;
        if *groups.files == V2 {
            // Children get the controller only when it is passed down; where it is already, writing changes nothing.
            let _ = fs::write(groups.mount.join("cgroup.subtree_control"), "+memory");
        }
        groups.remove_left_overs();
        groups.make(1 << 30).map(drop)?;
        Ok(groups)
    }

    /// The first version's hierarchy where memory is in it, else the second's.
    fn from_mounts(mounts: &str, controls: impl Fn(&Path) -> bool) -> Option<Self> {
        let mut second = None;
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(mount), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let mount = PathBuf::from(mount);
            if kind == "cgroup" && options.split(',').any(|option| option == "memory") {
                return Some(Self { mount, files: &V1 });
            }
            if kind == "cgroup2" && controls(&mount) {
                second = Some(Self { mount, files: &V2 });
            }
        }
        second
    }

    /// Groups of processes that were killed before they could tidy up.
    fn remove_left_overs(&self) {
        for entry in fs::read_dir(&self.mount).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.strip_prefix(NAME));
            if id.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }

    /// A new group that may take `limit` bytes, page cache included.
    pub fn make(&self, limit: u64) -> Result<Group<'_>> {
        let path = self.mount.join(format!("{NAME}{}", std::process::id()));
        let failed = |what: &Path, error| format!("cannot make a container: {}: {error}", what.display());
        fs::create_dir(&path).map_err(|error| failed(&path, error))?;
        let group = Group { path, groups: self };
        let file = group.path.join(self.files.limit);
        fs::write(&file, limit.to_string()).map_err(|error| failed(&file, error))?;
        Ok(group)
    }
}

/// A container for one run; it goes when this is dropped.
pub struct Group<'a> {
    path: PathBuf,
    groups: &'a Groups,
}

impl Group<'_> {
    /// The file that a process writes its id to when it wants in.
    pub fn entrance(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// The most that has been charged to it, page cache included; `None` where the kernel doesn't say.
    pub fn peak_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.path.join(self.groups.files.peak)).ok()?.trim().parse().ok()
    }

    /// How many of its processes the kernel has killed for want of memory.
    pub fn killed(&self) -> u64 {
        let events = fs::read_to_string(self.path.join(self.groups.files.events)).unwrap_or_default();
        let count = events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or(0)
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // The first version would move the cached pages to the parent otherwise; the second has no such file.
        let _ = fs::write(self.path.join("memory.force_empty"), "0");
        // A process that has just ended may still be in it for a moment.
        for _ in 0..50 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_that_has_memory_is_found() {
        let v1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                  cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let v2 = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let find = |mounts: &str, has: bool| Groups::from_mounts(mounts, |_| has);
        let first = Some(Groups { mount: "/sys/fs/cgroup/memory".into(), files: &V1 });
        assert_eq!(find(v1, false), first);
        assert_eq!(find(&format!("{v2}{v1}"), true), first);
        assert_eq!(find(v2, true).unwrap().files, &V2);
        assert_eq!(find(v2, false), None, "a hybrid whose second version has no memory");
        assert_eq!(find("nonsense\n\n", true), None);
    }

    #[test]
    fn events_are_counted_and_left_overs_go() {
        let folder = tempfile();
        let groups = Groups { mount: folder.clone(), files: &V2 };
        // Process ids end at 2^22, so this one never runs.
        fs::create_dir(folder.join(format!("{NAME}99999999"))).unwrap();
        groups.remove_left_overs();
        let group = groups.make(5).unwrap();
        assert_eq!(fs::read_to_string(group.path.join("memory.max")).unwrap(), "5");
        fs::write(group.path.join("memory.events"), "oom 4\noom_kill 3\n").unwrap();
        fs::write(group.path.join("memory.peak"), "7\n").unwrap();
        assert_eq!((group.killed(), group.peak_bytes()), (3, Some(7)));
        let names: Vec<_> = fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path()).collect();
        assert_eq!(names, std::slice::from_ref(&group.path));
        fs::remove_dir_all(&folder).unwrap();
    }

    fn tempfile() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sluice-xtask-group-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }
}
