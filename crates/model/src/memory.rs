//! What the kernel says of this process's memory.

use std::fs;

/// Memory of this process as the kernel counts it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// VmHWM: the most that was ever resident at once.
    pub peak: u64,
    /// RssAnon: heap, stacks, buffers.
    pub anon: u64,
    /// RssFile: mapped files, the binary and mapped weights among them.
    pub file: u64,
}

impl ProcessMemory {
    /// Reads `/proc/self/status`; zeros where there is no such file.
    pub fn now() -> Self {
        fs::read_to_string("/proc/self/status").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Self {
        let field = |name: &str| kib_field(text, name).unwrap_or(0);
        Self { peak: field("VmHWM:"), anon: field("RssAnon:"), file: field("RssFile:") }
    }
}

/// The value of a line `Name:   123 kB`, in bytes.
pub(crate) fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines_are_read_in_bytes() {
        let text = "Name:\tx\nVmHWM:\t    2048 kB\nRssAnon:\t     100 kB\nRssFile:\t      28 kB\n";
        let m = ProcessMemory::parse(text);
        assert_eq!(m, ProcessMemory { peak: 2048 << 10, anon: 100 << 10, file: 28 << 10 });
        assert_eq!(ProcessMemory::parse("nothing"), ProcessMemory::default());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_memory() {
        assert!(ProcessMemory::now().peak > 100 << 10);
    }
}
