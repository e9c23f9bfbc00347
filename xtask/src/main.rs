//! The `cargo xtask` command.

fn main() {}
