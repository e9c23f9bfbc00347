//! Running other programs: the only things xtask does by itself are reading text and comparing.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The error is one message for a person.
pub type Result<T = ()> = std::result::Result<T, String>;

/// The workspace's root folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}

/// A command that runs in the workspace's root.
pub fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// The cargo that runs this xtask, so that the toolchain is the same.
pub fn cargo(args: &[&str]) -> Command {
    command(
        &std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()),
        args,
    )
}

/// Runs a command with its output going to the terminal.
pub fn run(command: &mut Command) -> Result {
    let status = command
        .status()
        .map_err(|error| cannot_start(command, &error))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{} failed: {status}", shown(command)))
    }
}

/// Runs a command and keeps what it prints, whatever its exit code.
pub fn output(command: &mut Command) -> Result<Output> {
    command
        .output()
        .map_err(|error| cannot_start(command, &error))
}

/// Runs a command and gives its standard output; what it says on standard error becomes the error.
pub fn stdout(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "{} failed: {}\n{}",
            shown(command),
            output.status,
            said.trim_end()
        ));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| format!("{}: the output is not UTF-8", shown(command)))
}

/// What `cargo metadata` says of the workspace; with `--no-deps` in `extra` it needs neither network nor lock file.
pub fn metadata(extra: &[&str]) -> Result<Value> {
    let text = stdout(cargo(&["metadata", "--format-version", "1"]).args(extra))?;
    serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))
}

/// The folder that cargo builds into.
pub fn target_dir() -> Result<PathBuf> {
    let folder = metadata(&["--no-deps"])?["target_directory"]
        .as_str()
        .map(PathBuf::from);
    folder.ok_or_else(|| "cargo metadata names no target_directory".into())
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start {}: {error}", shown(command))
}

/// The command line as a person would type it.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
