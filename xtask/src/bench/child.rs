//! One run of a program: its output, how it ended, and how much it made the disk deliver.

use super::group::Group;
use crate::sh::{Result, shown};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fs;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How a program is run.
#[derive(Clone, Copy)]
pub struct How<'a> {
    /// It is killed when it takes longer.
    pub limit: Duration,
    /// The container that it runs in.
    pub group: Option<&'a Group<'a>>,
    /// The share of its time, in per cent, that it is kept from running: 0, except to test the comparison of records.
    pub delay_percent: u32,
}

/// What became of a program.
pub struct Finished {
    /// How it ended; `None` when it was killed for taking too long.
    pub status: Option<ExitStatus>,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it said, without blanks at the end.
    pub stderr: String,
    /// Seconds from start to end.
    pub wall_s: f64,
    /// Bytes that the block devices delivered for it, as the kernel accounts them; `None` where it does not.
    pub disk_bytes: Option<u64>,
}

/// Runs `command` to its end.
///
/// # Errors
/// Only when it cannot be started or waited for; a program that fails is a [`Finished`] like any other.
pub fn run(command: Command, how: How) -> Result<Finished> {
    let mut command = match how.group {
        Some(group) => inside(&command, group),
        None => command,
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = shown(&command);
    let failed = |error: io::Error| format!("cannot run {name}: {error}");
    let start = Instant::now();
    let mut child = command.spawn().map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // Both pipes are emptied while we wait: a child that fills one would never end.
    thread::scope(|scope| {
        let stdout = scope.spawn(|| read_all(stdout));
        let stderr = scope.spawn(|| read_all(stderr));
        let in_time = wait(&child, how, start).map_err(failed)?;
        if !in_time {
            child.kill().map_err(failed)?;
            let patient = How { limit: Duration::MAX, delay_percent: 0, ..how };
            wait(&child, patient, start).map_err(failed)?;
        }
        let wall_s = start.elapsed().as_secs_f64();
        // Dead but not yet reaped, it still has its accounts.
        let disk_bytes = disk_bytes(child.id());
        let status = child.wait().map_err(failed)?;
        let join = |reader: thread::ScopedJoinHandle<'_, io::Result<Vec<u8>>>| {
            reader.join().expect("reading does not panic").map_err(failed)
        };
        Ok(Finished {
            status: in_time.then_some(status),
            stdout: join(stdout)?,
            stderr: String::from_utf8_lossy(&join(stderr)?).trim_end().to_string(),
            wall_s,
            disk_bytes,
        })
    })
}

/// The command as a shell runs it after it has moved itself into the container: what the program takes from its first
/// instruction on counts there, and its process id and its memory's peak are its own.
fn inside(command: &Command, group: &Group) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(group.entrance());
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        shell.current_dir(folder);
    }
    shell
}

/// Between looks at a child: short beside the 20 ms that a tiny model takes, long enough to leave it the core.
const POLL: Duration = Duration::from_millis(2);

/// Waits until the child is dead, but leaves it to be reaped; false when it is not dead in time.
fn wait(child: &Child, how: How, start: Instant) -> io::Result<bool> {
    let pid = Pid::from_child(child);
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let mut stopped = Duration::ZERO;
    while start.elapsed() < how.limit {
        if waitid(WaitId::Pid(pid), look)?.is_some() {
            return Ok(true);
        }
        thread::sleep(POLL);
        if how.delay_percent > 0 {
            // As much standing still as the time so far has earned: pauses of a fraction of a millisecond.
            let due = start.elapsed().mul_f64(f64::from(how.delay_percent) / 100.0).saturating_sub(stopped);
            let pause = Instant::now();
            kill_process(pid, Signal::STOP)?;
            thread::sleep(due);
            kill_process(pid, Signal::CONT)?;
            stopped += pause.elapsed();
        }
    }
    Ok(false)
}

fn read_all(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes))?;
    Ok(bytes)
}

/// What the process, its dead threads included, has read from block devices.
fn disk_bytes(id: u32) -> Option<u64> {
    let accounts = fs::read_to_string(format!("/proc/{id}/io")).ok()?;
    accounts.lines().find_map(|line| line.strip_prefix("read_bytes:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: How<'_> = How { limit: Duration::from_secs(20), group: None, delay_percent: 0 };

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_exit_code_are_kept() {
        let done = run(shell("echo out; echo err >&2; exit 3"), PLAIN).unwrap();
        assert_eq!(done.status.unwrap().code(), Some(3));
        assert_eq!((&done.stdout[..], done.stderr.as_str()), (&b"out\n"[..], "err"));
        assert!(done.disk_bytes.is_some());
        assert!(run(Command::new("no-such-program"), PLAIN).err().unwrap().contains("no-such-program"));
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let done = run(Command::new("yes"), How { limit: Duration::from_millis(50), ..PLAIN }).unwrap();
        assert!(done.status.is_none());
        assert!(done.wall_s < 10.0);
    }

    #[test]
    fn a_planted_delay_stops_the_program_itself() {
        // Counting is all CPU, and done by a shell, whose speed we know by its first run.
        let count = || shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");
        let free = run(count(), PLAIN).unwrap().wall_s;
        let slowed = run(count(), How { delay_percent: 60, ..PLAIN }).unwrap().wall_s;
        // Two and a half times as long; half of that is asked for, as other tests run beside this one.
        assert!(slowed > 1.25 * free, "{free} s, then {slowed} s");
    }
}
