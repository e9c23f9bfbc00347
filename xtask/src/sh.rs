//! Running other programs: the only things xtask does by itself are reading text and comparing.

use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The error is one message for a person.
pub type Result<T = ()> = std::result::Result<T, String>;

/// The workspace's root folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// A command that runs in the workspace's root.
pub fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// The cargo that runs this xtask, so that the toolchain is the same; `args` are separated by blanks.
pub fn cargo(args: &str) -> Command {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    command(&program, &args.split_whitespace().collect::<Vec<_>>())
}

/// Runs a command with its output going to the terminal.
pub fn run(command: &mut Command) -> Result {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed: {status}", shown(command))) }
}

/// Runs a command and keeps what it prints, whatever its exit code.
pub fn output(command: &mut Command) -> Result<Output> {
    command.output().map_err(|error| cannot_start(command, &error))
}

/// Like [`output`], but a command that is not done after `limit` is ended, and that is the error.
pub fn output_within(command: &mut Command, limit: Duration) -> Result<Output> {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| cannot_start(command, &error))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let start = Instant::now();
    let failed = |error: std::io::Error| format!("{}: {error}", shown(command));
    // Both pipes are emptied while we wait: a child that fills one would never end.
    thread::scope(|scope| {
        let stdout = scope.spawn(|| read_all(stdout));
        let stderr = scope.spawn(|| read_all(stderr));
        let status = loop {
            match child.try_wait().map_err(failed)? {
                Some(status) => break status,
                None if start.elapsed() < limit => thread::sleep(POLL),
                None => {
                    child.kill().and_then(|()| child.wait()).map_err(failed)?;
                    return Err(format!("{} hangs: not done after {} s", shown(command), limit.as_secs()));
                }
            }
        };
        let read = |reader: thread::ScopedJoinHandle<'_, std::io::Result<Vec<u8>>>| {
            reader.join().expect("reading does not panic").map_err(failed)
        };
        Ok(Output { status, stdout: read(stdout)?, stderr: read(stderr)? })
    })
}

/// Between looks at a child: short beside the 20 ms that a tiny model takes, long enough to leave it the core.
const POLL: Duration = Duration::from_millis(2);

fn read_all(pipe: Option<impl Read>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes))?;
    Ok(bytes)
}

/// Runs a command and gives its standard output; what it says on standard error becomes the error.
pub fn stdout(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} failed: {}\n{}", shown(command), output.status, said.trim_end()));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{}: the output is not UTF-8", shown(command)))
}

/// What `cargo metadata` says of the workspace; with `--no-deps` in `extra` it needs neither network nor lock file.
pub fn metadata(extra: &[&str]) -> Result<Value> {
    let text = stdout(cargo("metadata --format-version 1").args(extra))?;
    serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))
}

/// The folder that cargo builds into.
pub fn target_dir() -> Result<PathBuf> {
    let folder = metadata(&["--no-deps"])?["target_directory"].as_str().map(PathBuf::from);
    folder.ok_or_else(|| "cargo metadata names no target_directory".into())
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start {}: {error}", shown(command))
}

/// The command line as a person would type it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_ended_and_named() {
        let message = output_within(&mut command("sleep", &["60"]), Duration::from_millis(50)).unwrap_err();
        assert!(message.starts_with("sleep 60 hangs"), "{message}");
    }

    #[test]
    fn more_output_than_a_pipe_holds_is_kept() {
        let mut command = command("head", &["-c", "300000", "/dev/zero"]);
        let output = output_within(&mut command, Duration::from_secs(20)).unwrap();
        assert_eq!((output.status.success(), output.stdout.len()), (true, 300_000));
    }

    #[test]
    fn commands_that_fail_or_do_not_exist_are_named() {
        assert!(run(&mut command("false", &[])).unwrap_err().starts_with("false failed"));
        assert!(
            stdout(&mut command("no-such-program", &["-x"]))
                .unwrap_err()
                .starts_with("cannot start no-such-program -x")
        );
    }
}
