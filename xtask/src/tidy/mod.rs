//! `cargo xtask tidy`: the rules on the sources that no lint knows, checked over every file that git knows.

mod crates;
mod rules;
mod source;

use crate::sh::{Result, command, metadata, root, stdout};
use std::fs;

/// Checks the whole tree; prints every finding and fails if there is one.
pub fn tidy() -> Result {
    // Files that are new and not ignored count as well: found before the commit, not after it.
    let list =
        stdout(&mut command("git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
    let mut findings = Vec::new();
    let mut files = 0;
    for path in list.split_terminator('\0') {
        // Deleted but not yet committed files are still listed; files that are not UTF-8 are data.
        let Ok(text) = fs::read_to_string(root().join(path)) else {
            continue;
        };
        files += 1;
        findings
            .extend(rules::check(path, &text).iter().map(|f| format!("{path}:{}: {}", f.line, f.message)));
    }
    findings.extend(crates::check(&metadata(&[])?));
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => println!("tidy: {files} files, nothing to say"),
        count => return Err(format!("tidy: {count} findings")),
    }
    Ok(())
}
