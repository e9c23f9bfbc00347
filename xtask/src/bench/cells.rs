//! What a matrix measures: cells, one for each way to run a model, made from tables of axes.

use super::models::Model;
use crate::sh::Result;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt;

/// An axis whose values are a few words; the words stand in flags, records and reports.
pub trait Word: Copy + PartialEq + 'static {
    /// What the axis is called in messages.
    const AXIS: &'static str;
    /// Every value with its word.
    const WORDS: &'static [(Self, &'static str)];

    /// The word of a value.
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(value, _)| *value == self).map_or("", |(_, word)| word)
    }

    /// The value of a word.
    fn parse(text: &str) -> Result<Self> {
        let found = Self::WORDS.iter().find(|(_, word)| *word == text);
        found.map(|(value, _)| *value).ok_or_else(|| {
            let known: Vec<&str> = Self::WORDS.iter().map(|(_, word)| *word).collect();
            format!("{} {text}: wanted one of {}", Self::AXIS, known.join(", "))
        })
    }
}

/// Whose speed is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `sluice run`.
    Sluice,
    /// The loader alone: its example streams the file and adds up the bytes.
    Loader,
    /// llama.cpp through its Python package.
    Peer,
}

impl Word for Engine {
    const AXIS: &'static str = "engine";
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Sluice, "sluice"), (Self::Loader, "loader"), (Self::Peer, "llama-cpp-python")];
}

/// A backend, through the page cache or past it. mmap has no direct reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What the program chooses.
    Auto,
    /// Mapped.
    Mmap,
    /// Plain reads through the page cache.
    Pread,
    /// Plain reads past it.
    PreadDirect,
    /// io_uring through the page cache.
    Uring,
    /// io_uring past it.
    UringDirect,
}

impl Word for Way {
    const AXIS: &'static str = "way";
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Auto, "auto"),
        (Self::Mmap, "mmap"),
        (Self::Pread, "pread"),
        (Self::PreadDirect, "pread+direct"),
        (Self::Uring, "uring"),
        (Self::UringDirect, "uring+direct"),
    ];
}

impl Way {
    /// The values of `--backend` and `--direct`.
    pub fn flags(self) -> (&'static str, &'static str) {
        match self {
            Self::Auto => ("auto", "auto"),
            Self::Mmap => ("mmap", "off"),
            Self::Pread => ("pread", "off"),
            Self::PreadDirect => ("pread", "on"),
            Self::Uring => ("uring", "off"),
            Self::UringDirect => ("uring", "on"),
        }
    }

    /// Whether reads go through the page cache; `Auto` may do either.
    pub fn buffered(self) -> bool {
        matches!(self, Self::Mmap | Self::Pread | Self::Uring)
    }
}

/// How much memory a run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Layers streamed, nothing planned.
    Stream,
    /// Layers resident, nothing planned.
    Resident,
    /// The least that works: `--ram-budget min`.
    Min,
    /// `--ram-budget` of so many per cent of the file's length.
    Percent(u32),
    /// Everything resident.
    All,
}

impl Budget {
    /// The value of a word: `stream`, `resident`, `min`, `all`, or a percentage such as `25%`.
    pub fn parse(text: &str) -> Result<Self> {
        let percent = |text: &str| text.strip_suffix('%')?.parse().ok().filter(|p| (1..=1000).contains(p));
        Ok(match text {
            "stream" => Self::Stream,
            "resident" => Self::Resident,
            "min" => Self::Min,
            "all" => Self::All,
            _ => Self::Percent(percent(text).ok_or_else(|| {
                format!("budget {text}: wanted stream, resident, min, all, or a percentage from 1% to 1000%")
            })?),
        })
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Stream => "stream",
            Self::Resident => "resident",
            Self::Min => "min",
            Self::All => "all",
            Self::Percent(percent) => return write!(f, "{percent}%"),
        })
    }
}

/// Where the output projection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// As the budget has it.
    Auto,
    /// Kept.
    Resident,
    /// Read in every pass.
    Stream,
}

impl Word for Head {
    const AXIS: &'static str = "head";
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Auto, "auto"), (Self::Resident, "resident"), (Self::Stream, "stream")];
}

/// What the page cache holds of the file before a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Whatever it holds: for cells whose speed is not looked at.
    Any,
    /// All of it, in large folios.
    Warm,
    /// Nothing, and no pass finds anything that an earlier one has left.
    Cold,
}

impl Word for Cache {
    const AXIS: &'static str = "cache";
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Any, "any"), (Self::Warm, "warm"), (Self::Cold, "cold")];
}

/// The ceiling of the container that a cell runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// None, unless a cell could not be cold without one.
    Auto,
    /// So many bytes, page cache included.
    Bytes(u64),
}

/// Values for every axis; their product is the cells, less those that cannot be.
#[derive(Clone, Debug)]
pub struct Table {
    /// Whose speed.
    pub engine: Engine,
    /// Names of models.
    pub models: Vec<String>,
    /// Backends, buffered or direct.
    pub ways: Vec<Way>,
    /// Memory.
    pub budgets: Vec<Budget>,
    /// The output projection.
    pub heads: Vec<Head>,
    /// Worker threads.
    pub threads: Vec<u32>,
    /// States of the page cache.
    pub caches: Vec<Cache>,
    /// Containers.
    pub limits: Vec<Limit>,
    /// Forced CPU levels; "" forces none.
    pub isas: Vec<&'static str>,
    /// More flags of `sluice run`, separated by blanks.
    pub extras: Vec<&'static str>,
    /// Tokens to generate; the same in all tables of a model, or the digests could not agree.
    pub tokens: u32,
}

/// One way to run one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Whose speed.
    pub engine: Engine,
    /// Name of the model.
    pub model: String,
    /// Length of its file.
    pub file_bytes: u64,
    /// Backend, buffered or direct.
    pub way: Way,
    /// Memory.
    pub budget: Budget,
    /// The output projection.
    pub head: Head,
    /// Worker threads.
    pub threads: u32,
    /// State of the page cache.
    pub cache: Cache,
    /// The container's ceiling in bytes.
    pub limit: Option<u64>,
    /// Forced CPU level.
    pub isa: &'static str,
    /// More flags.
    pub extra: &'static str,
    /// Tokens to generate.
    pub tokens: u32,
}

/// What a buffered cold cell with the least memory gets as a container: it leaves the program some 60 MiB for a head that
/// stays, and so little page cache that a pass over any model of the presets finds nothing of the one before.
const COLD_LIMIT: u64 = 128 << 20;
/// The same beside a budget: cache for a few chunks in flight and what the kernel keeps per process.
const COLD_BESIDE: u64 = 64 << 20;

impl Table {
    /// All cells of `tables`, each once; `models` gives files by their names.
    pub fn cells(tables: &[Self], models: &[Model]) -> Vec<Cell> {
        let mut seen = HashSet::new();
        let mut cells = Vec::new();
        for table in tables {
            for model in models.iter().filter(|model| table.models.contains(&model.name)) {
                cells.extend(table.of_model(model).into_iter().filter(|cell| seen.insert(cell.to_string())));
            }
        }
        cells
    }

    fn of_model(&self, model: &Model) -> Vec<Cell> {
        let plain = Cell {
            engine: self.engine,
            model: model.name.clone(),
            file_bytes: model.bytes,
            way: Way::Auto,
            budget: Budget::Stream,
            head: Head::Auto,
            threads: 1,
            cache: Cache::Any,
            limit: None,
            isa: "",
            extra: "",
            tokens: self.tokens,
        };
        let cells = product(vec![plain], &self.ways, |cell, &way| cell.way = way);
        let cells = product(cells, &self.budgets, |cell, &budget| cell.budget = budget);
        let cells = product(cells, &self.heads, |cell, &head| cell.head = head);
        let cells = product(cells, &self.threads, |cell, &threads| cell.threads = threads);
        let cells = product(cells, &self.caches, |cell, &cache| cell.cache = cache);
        let cells = product(cells, &self.isas, |cell, &isa| cell.isa = isa);
        let cells = product(cells, &self.extras, |cell, &extra| cell.extra = extra);
        let mut cells = product(cells, &self.limits, |cell, &limit| cell.limit = cell.container(limit));
        cells.retain(Cell::possible);
        cells
    }
}

/// Every cell with every value put into it.
fn product<T>(cells: Vec<Cell>, values: &[T], put: impl Fn(&mut Cell, &T)) -> Vec<Cell> {
    let with = |cell: &Cell, value| {
        let mut cell = cell.clone();
        put(&mut cell, value);
        cell
    };
    cells.iter().flat_map(|cell| values.iter().map(move |value| with(cell, value))).collect()
}

impl Cell {
    /// Direct reads don't look at the page cache, so a warm one makes no difference to them. And a streamed head beside
    /// resident layers is so little that no container holds the one without room for the other.
    fn possible(&self) -> bool {
        let direct = matches!(self.way, Way::PreadDirect | Way::UringDirect);
        let layers_stay = matches!(self.budget, Budget::Resident | Budget::All);
        let only_head = layers_stay && self.head == Head::Stream;
        match self.cache {
            Cache::Any => true,
            Cache::Warm => !direct,
            Cache::Cold => !(only_head && self.way.buffered()),
        }
    }

    /// Reads through the page cache are cold in every pass only in a container too small for what is streamed.
    fn container(&self, limit: Limit) -> Option<u64> {
        match (limit, self.budget) {
            (Limit::Bytes(bytes), _) => Some(bytes),
            _ if self.cache != Cache::Cold || !self.way.buffered() => None,
            (_, Budget::Resident | Budget::All) => None,
            (_, Budget::Percent(percent)) => Some(self.percent(percent) + COLD_BESIDE),
            (_, Budget::Stream | Budget::Min) => Some(COLD_LIMIT),
        }
    }

    fn percent(&self, percent: u32) -> u64 {
        self.file_bytes / 100 * u64::from(percent)
    }

    /// The ceiling on the process's memory, where the cell has one as a number.
    pub fn budget_bytes(&self) -> Option<u64> {
        match self.budget {
            Budget::Percent(percent) => Some(self.percent(percent)),
            _ => None,
        }
    }

    /// The flags of `sluice run` that make this cell; `has_budget` says whether the program knows `--ram-budget`.
    ///
    /// Without it `min` streams everything that `head` leaves open; percentages are no cells then.
    pub fn flags(&self, has_budget: bool) -> Vec<String> {
        let (backend, direct) = self.way.flags();
        let head = match (self.head, self.budget) {
            (Head::Auto, Budget::Min | Budget::Stream) if !has_budget => Head::Stream,
            (Head::Auto, Budget::All | Budget::Resident) => Head::Resident,
            (head, _) => head,
        };
        let mut flags =
            format!("-n {} --backend {backend} --direct {direct} --threads {}", self.tokens, self.threads);
        flags += &match self.budget {
            Budget::Stream => " --layers stream".to_string(),
            Budget::Resident | Budget::All => " --layers resident".to_string(),
            Budget::Min if has_budget => " --ram-budget min".to_string(),
            Budget::Min => " --layers stream".to_string(),
            Budget::Percent(percent) => format!(" --ram-budget {}", self.percent(percent)),
        };
        if head != Head::Auto {
            flags += &format!(" --lm-head {}", head.word());
        }
        flags.split_whitespace().chain(self.extra.split_whitespace()).map(String::from).collect()
    }

    /// The cell in a record.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.to_string(),
            "engine": self.engine.word(),
            "model": self.model,
            "file_bytes": self.file_bytes,
            "way": self.way.word(),
            "budget": self.budget.to_string(),
            "head": self.head.word(),
            "threads": self.threads,
            "cache": self.cache.word(),
            "limit_bytes": self.limit,
            "isa": self.isa,
            "extra": self.extra,
            "tokens": self.tokens,
        })
    }
}

/// What identifies the cell in records: every axis that is not at rest.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { model, way, budget, threads, .. } = self;
        write!(f, "{model}")?;
        if self.engine != Engine::Sluice {
            write!(f, " {}", self.engine.word())?;
        }
        match self.engine {
            Engine::Peer => {}
            Engine::Loader => write!(f, " {}", way.word())?,
            Engine::Sluice => write!(f, " {} {budget} head={}", way.word(), self.head.word())?,
        }
        write!(f, " t{threads}")?;
        if self.cache != Cache::Any {
            write!(f, " {}", self.cache.word())?;
        }
        if let Some(bytes) = self.limit {
            write!(f, " in {} MiB", bytes >> 20)?;
        }
        if !self.isa.is_empty() {
            write!(f, " {}", self.isa)?;
        }
        if !self.extra.is_empty() {
            write!(f, " {}", self.extra)?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A table with one value per axis.
    pub fn table() -> Table {
        Table {
            engine: Engine::Sluice,
            models: vec!["m".into()],
            ways: vec![Way::Pread],
            budgets: vec![Budget::Min],
            heads: vec![Head::Auto],
            threads: vec![2],
            caches: vec![Cache::Cold],
            limits: vec![Limit::Auto],
            isas: vec![""],
            extras: vec![""],
            tokens: 16,
        }
    }

    /// A model that lies nowhere.
    pub fn model() -> Model {
        Model { name: "m".into(), path: PathBuf::from("m.gguf"), bytes: 1_000_000_000 }
    }

    fn cells(table: Table) -> Vec<String> {
        Table::cells(&[table], &[model()]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_cannot_be_is_no_cell() {
        let ways = vec![Way::Mmap, Way::UringDirect];
        let all = cells(Table { ways, caches: vec![Cache::Warm, Cache::Cold], ..table() });
        assert_eq!(
            all,
            [
                "m mmap min head=auto t2 warm",
                "m mmap min head=auto t2 cold in 128 MiB",
                "m uring+direct min head=auto t2 cold"
            ]
        );
    }

    #[test]
    fn a_head_alone_is_cold_only_with_direct_reads() {
        let ways = vec![Way::Mmap, Way::PreadDirect];
        let all = cells(Table { ways, budgets: vec![Budget::All], heads: vec![Head::Stream], ..table() });
        assert_eq!(all, ["m pread+direct all head=stream t2 cold"]);
    }

    #[test]
    fn buffered_cold_cells_get_a_container_that_is_smaller_than_what_they_stream() {
        let budgets = vec![Budget::Percent(25), Budget::All];
        let all = cells(Table { budgets, ..table() });
        assert_eq!(all, ["m pread 25% head=auto t2 cold in 302 MiB", "m pread all head=auto t2 cold"]);
        let limited = cells(Table { limits: vec![Limit::Bytes(64 << 20)], ..table() });
        assert_eq!(limited, ["m pread min head=auto t2 cold in 64 MiB"]);
    }

    #[test]
    fn a_cell_of_two_tables_is_there_once() {
        assert_eq!(Table::cells(&[table(), table()], &[model()]).len(), 1);
    }

    #[test]
    fn flags_follow_the_budget_and_the_programs_age() {
        let cell = |budget, head| {
            let table = Table { budgets: vec![budget], heads: vec![head], ..table() };
            Table::cells(&[table], &[model()]).remove(0)
        };
        let flags = |budget, head, new: bool| cell(budget, head).flags(new)[8..].join(" ");
        assert_eq!(flags(Budget::Min, Head::Auto, true), "--ram-budget min");
        assert_eq!(flags(Budget::Min, Head::Auto, false), "--layers stream --lm-head stream");
        assert_eq!(flags(Budget::Min, Head::Resident, true), "--ram-budget min --lm-head resident");
        assert_eq!(flags(Budget::Percent(50), Head::Stream, true), "--ram-budget 500000000 --lm-head stream");
        assert_eq!(flags(Budget::All, Head::Auto, true), "--layers resident --lm-head resident");
        assert_eq!(
            cell(Budget::Min, Head::Auto).flags(true)[..8].join(" "),
            "-n 16 --backend pread --direct off --threads 2"
        );
    }

    #[test]
    fn words_are_parsed_and_refused_with_what_was_wanted() {
        assert!(Way::parse("uring+direct") == Ok(Way::UringDirect));
        assert!(Way::parse("mmap+direct").unwrap_err().contains("pread+direct"));
        assert_eq!(Budget::parse("25%").unwrap(), Budget::Percent(25));
        for bad in ["0%", "25", "%", "-1%", "lots"] {
            assert!(Budget::parse(bad).unwrap_err().contains("percentage"), "{bad}");
        }
    }
}
