//! What a matrix measures: cells, one for each way to run a model, made from tables of axes.

use super::axes::{Budget, Cache, Engine, Head, Limit, Way, Word};
use super::models::Model;
use super::rates;
use super::runner::LOADER_S;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt;

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
    /// Repetitions of each cell.
    pub reps: u32,
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
    /// Repetitions.
    pub reps: u32,
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
            reps: self.reps,
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
        let only_head = self.budget == Budget::All && self.head == Head::Stream;
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
            (_, Budget::Auto | Budget::All) => None,
            // A mapping keeps everything or nothing: whatever part of it a budget allows, all of it is streamed.
            (_, Budget::Percent(percent)) if self.way != Way::Mmap => {
                Some(self.percent(percent) + COLD_BESIDE)
            }
            (_, Budget::Percent(_) | Budget::Stream | Budget::Min) => Some(COLD_LIMIT),
        }
    }

    /// A guess at what a repetition takes, everything included, for the time left before any has been run.
    pub fn seconds(&self) -> f64 {
        // What disks and memories of this kind deliver; starting, looking at the page cache and measuring the disk.
        const DISK: f64 = 2e9;
        const MEMORY: f64 = 3e10;
        const BESIDE_S: f64 = 1.0;
        let file = self.file_bytes as f64;
        let cold = self.cache == Cache::Cold;
        let slice = if cold { rates::slice_s(self.file_bytes) } else { 0.0 };
        if self.engine == Engine::Loader {
            return BESIDE_S + slice + f64::from(LOADER_S);
        }
        let streamed = match self.budget {
            Budget::Min | Budget::Stream => 1.0,
            Budget::Percent(percent) => (1.0 - f64::from(percent) / 100.0).max(0.0),
            Budget::Auto | Budget::All => {
                self.limit.map_or(0.0, |limit| (1.0 - limit as f64 / file).max(0.0))
            }
        };
        let by_disk = if cold { file / DISK } else { 0.0 };
        // The first pass reads everything.
        let first = by_disk.max(file / MEMORY);
        BESIDE_S + slice + first + f64::from(self.tokens) * (streamed * by_disk).max(file / MEMORY)
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

    /// The flags of `sluice run` that make this cell.
    pub fn flags(&self) -> Vec<String> {
        let (backend, direct) = self.way.flags();
        let head = match (self.head, self.budget) {
            (Head::Auto, Budget::All) => Head::Resident,
            (head, _) => head,
        };
        let mut flags =
            format!("-n {} --backend {backend} --direct {direct} --threads {}", self.tokens, self.threads);
        flags += &match self.budget {
            Budget::Auto => String::new(),
            Budget::Stream => " --layers stream".to_string(),
            Budget::All => " --layers resident".to_string(),
            Budget::Min => " --ram-budget min".to_string(),
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
            "reps": self.reps,
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
            reps: 3,
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
        let (ways, budgets) = (vec![Way::Mmap, Way::Pread], vec![Budget::Percent(25), Budget::All]);
        let all = cells(Table { ways, budgets, ..table() });
        assert_eq!(
            all,
            [
                "m mmap 25% head=auto t2 cold in 128 MiB",
                "m mmap all head=auto t2 cold",
                "m pread 25% head=auto t2 cold in 302 MiB",
                "m pread all head=auto t2 cold"
            ]
        );
        let limited = cells(Table { limits: vec![Limit::Bytes(64 << 20)], ..table() });
        assert_eq!(limited, ["m pread min head=auto t2 cold in 64 MiB"]);
    }

    #[test]
    fn a_cell_of_two_tables_is_there_once() {
        assert_eq!(Table::cells(&[table(), table()], &[model()]).len(), 1);
    }

    #[test]
    fn flags_follow_the_budget_and_the_head() {
        let cell = |budget, head| {
            let table = Table { budgets: vec![budget], heads: vec![head], ..table() };
            Table::cells(&[table], &[model()]).remove(0)
        };
        let flags = |budget, head| cell(budget, head).flags()[8..].join(" ");
        assert_eq!(flags(Budget::Min, Head::Auto), "--ram-budget min");
        assert_eq!(flags(Budget::Min, Head::Resident), "--ram-budget min --lm-head resident");
        assert_eq!(flags(Budget::Percent(50), Head::Stream), "--ram-budget 500000000 --lm-head stream");
        assert_eq!(flags(Budget::Stream, Head::Auto), "--layers stream");
        assert_eq!(flags(Budget::All, Head::Auto), "--layers resident --lm-head resident");
        assert_eq!(flags(Budget::Auto, Head::Auto), "");
        assert_eq!(
            cell(Budget::Min, Head::Auto).flags()[..8].join(" "),
            "-n 16 --backend pread --direct off --threads 2"
        );
    }
}
