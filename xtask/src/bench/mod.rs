//! `cargo xtask bench`: what memory buys, measured in cells, each a process of its own.
//!
//! `axes`, `cells` and `presets` say what is measured, `matrix` prepares it, `runner` runs it with `cache`, `group`, `rates` and
//! `child`, `judge` decides whether a run counts, `record` keeps it. `summary` makes figures of a record, `report`, `chart` and `pictures` show
//! them, `compare` compares two, `readme` copies them.

mod axes;
mod cache;
mod cells;
mod chart;
mod child;
mod compare;
mod group;
mod host;
mod judge;
mod matrix;
mod models;
mod options;
mod peer;
mod pictures;
mod presets;
mod rates;
mod readme;
mod record;
mod report;
mod runner;
mod summary;

use crate::sh::Result;
use options::Action;

/// Does what the flags say, see [`options::USAGE`].
pub fn bench(words: &[&str]) -> Result {
    if let ["--help" | "-h"] = words {
        println!("{}", options::USAGE);
        return Ok(());
    }
    match Action::parse(words)? {
        Action::Run(options) => matrix::run(&options),
        Action::Compare { before, after, threshold } => compare::compare(&before, &after, threshold),
        Action::Report(path) => report::write(&path).map(|report| println!("{}", report.display())),
        Action::UpdateReadme => readme::update(),
    }
}
