//! The flags of `cargo xtask bench`.

use super::axes::{Budget, Cache, Engine, Head, Limit, Way, Word};
use super::cells::Table;
use super::presets::Preset;
use crate::sh::Result;
use std::path::PathBuf;
use std::time::Duration;

/// Shown when a flag is not understood.
pub const USAGE: &str = "\
usage: cargo xtask bench [--preset smoke|seed|full] [FLAGS]      measure; smoke unless told otherwise
       cargo xtask bench --compare A B [--threshold PERCENT]     which cells of record B differ from those of record A
       cargo xtask bench --report RECORD                         the report and pictures of a record once more
       cargo xtask bench --update-readme                         README's figures from the records

  LIST is values with commas between them; each of these flags replaces an axis of the preset
  --model LIST      files, or models of synth, which are written when they are needed; those of the preset keep their axes
  --engine LIST     sluice, loader
  --way LIST        auto, mmap, pread, pread+direct, uring, uring+direct
  --budget LIST     auto, stream, min, all, or a percentage of the file such as 25%
  --head LIST       auto, resident, stream
  --threads LIST
  --cache LIST      any, warm, cold
  --limit LIST      containers in MiB, or none but those without which a cell could not be cold
  --tokens N        tokens to generate, at least 2: speed is what lies between them
  --reps N          repetitions of each cell
  --timeout S       seconds after which a run is killed (300)
  --binary FILE     the program, instead of the one that is built now
  --out FILE        the record; report and pictures lie beside it (bench/record/PRESET.jsonl; smoke: in the build's folder)
  --fresh           replace a record that is there; without it an interrupted run goes on
  --list            name the cells, and stop
  --peer llama-cpp-python   the same through llama.cpp, where the python3 on PATH can import that package: in the warm cells, and
                    in those in containers, one for each number of threads (where it does not fit, it takes the --timeout)
  --plant-delay PERCENT     hold every program up by so much, to see --compare find it; the record says so";

/// What is asked for.
#[derive(Debug)]
pub enum Action {
    /// Run a matrix.
    Run(Box<Options>),
    /// Compare two records.
    Compare {
        /// The record to compare with.
        before: PathBuf,
        /// The record that is judged.
        after: PathBuf,
        /// A loss of more than this share is a regression.
        threshold: f64,
    },
    /// Write a record's report again.
    Report(PathBuf),
    /// Put figures into README.
    UpdateReadme,
}

/// A matrix and how to run it.
#[derive(Debug)]
pub struct Options {
    /// Where the tables come from.
    pub preset: Preset,
    /// After which a run is killed.
    pub timeout: Duration,
    /// The program; `None` builds it.
    pub binary: Option<PathBuf>,
    /// The record; `None` for the preset's own place.
    pub out: Option<PathBuf>,
    /// Replace a record that is there.
    pub fresh: bool,
    /// Only name the cells.
    pub list: bool,
    /// Run llama.cpp too.
    pub peer: bool,
    /// Hold programs up by so many per cent of their time.
    pub delay_percent: u32,
    /// Values that replace those of the preset's tables.
    axes: Axes,
}

#[derive(Debug, Default, PartialEq)]
struct Axes {
    models: Option<Vec<String>>,
    engines: Option<Vec<Engine>>,
    ways: Option<Vec<Way>>,
    budgets: Option<Vec<Budget>>,
    heads: Option<Vec<Head>>,
    threads: Option<Vec<u32>>,
    caches: Option<Vec<Cache>>,
    limits: Option<Vec<Limit>>,
    tokens: Option<u32>,
    reps: Option<u32>,
}

/// A loss of less is within what two runs of one program differ by on a shared machine.
const THRESHOLD: f64 = 0.05;

/// Seconds: the slowest cell, 8B from a cold disk, takes about one minute.
const TIMEOUT_S: u32 = 300;

impl Action {
    /// Reads the flags.
    ///
    /// # Errors
    /// Names the flag, what it got and what it wants.
    pub fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Options {
            preset: Preset::Smoke,
            timeout: Duration::from_secs(TIMEOUT_S.into()),
            binary: None,
            out: None,
            fresh: false,
            list: false,
            peer: false,
            delay_percent: 0,
            axes: Axes::default(),
        };
        let mut threshold = THRESHOLD;
        let (mut compare, mut report, mut readme) = (None, None, false);
        let mut words = words.iter();
        while let Some(&flag) = words.next() {
            let mut value = || words.next().copied().ok_or_else(|| format!("{flag}: wants a value\n{USAGE}"));
            let axes = &mut options.axes;
            match flag {
                "--preset" => options.preset = preset(value()?)?,
                "--model" => axes.models = Some(value()?.split(',').map(String::from).collect()),
                "--engine" => axes.engines = Some(list(value()?, Engine::parse)?),
                "--way" => axes.ways = Some(list(value()?, Way::parse)?),
                "--budget" => axes.budgets = Some(list(value()?, Budget::parse)?),
                "--head" => axes.heads = Some(list(value()?, Head::parse)?),
                "--threads" => axes.threads = Some(list(value()?, |text| number(flag, text))?),
                "--cache" => axes.caches = Some(list(value()?, Cache::parse)?),
                "--limit" => axes.limits = Some(list(value()?, limit)?),
                "--tokens" => axes.tokens = Some(tokens(value()?)?),
                "--reps" => axes.reps = Some(number(flag, value()?)?),
                "--timeout" => options.timeout = Duration::from_secs(number(flag, value()?)?.into()),
                "--binary" => options.binary = Some(value()?.into()),
                "--out" => options.out = Some(value()?.into()),
                "--fresh" => options.fresh = true,
                "--list" => options.list = true,
                "--peer" => match value()? {
                    "llama-cpp-python" => options.peer = true,
                    other => return Err(format!("--peer {other}: wanted llama-cpp-python")),
                },
                "--plant-delay" => options.delay_percent = delay(value()?)?,
                "--compare" => compare = Some((value()?.into(), value()?.into())),
                "--threshold" => threshold = f64::from(number(flag, value()?)?) / 100.0,
                "--report" => report = Some(value()?.into()),
                "--update-readme" => readme = true,
                _ => return Err(format!("{flag}: no such flag\n{USAGE}")),
            }
        }
        Ok(match (compare, report, readme) {
            (Some((before, after)), None, false) => Self::Compare { before, after, threshold },
            (None, Some(path), false) => Self::Report(path),
            (None, None, true) => Self::UpdateReadme,
            (None, None, false) => Self::Run(Box::new(options)),
            _ => return Err(format!("--compare, --report, --update-readme: one of them\n{USAGE}")),
        })
    }
}

impl Options {
    /// Whether flags replace any axis of the preset.
    pub fn other_axes(&self) -> bool {
        self.axes != Axes::default()
    }

    /// Puts the given axes into the tables of the preset.
    pub fn apply(&self, tables: &mut Vec<Table>) {
        let axes = &self.axes;
        if let Some(engines) = &axes.engines {
            let of_loader = Table { engine: Engine::Loader, ..tables[0].clone() };
            if engines.contains(&Engine::Loader) && tables.iter().all(|t| t.engine != Engine::Loader) {
                tables.push(Table { budgets: vec![Budget::Stream], heads: vec![Head::Auto], ..of_loader });
            }
            tables.retain(|table| engines.contains(&table.engine));
        }
        if let Some(given) = &axes.models {
            choose_models(tables, given);
        }
        for table in tables {
            replace(&mut table.ways, &axes.ways);
            replace(&mut table.threads, &axes.threads);
            replace(&mut table.caches, &axes.caches);
            replace(&mut table.limits, &axes.limits);
            table.tokens = axes.tokens.unwrap_or(table.tokens);
            table.reps = axes.reps.unwrap_or(table.reps);
            // The loader alone keeps nothing and knows no head.
            if table.engine == Engine::Sluice {
                replace(&mut table.budgets, &axes.budgets);
                replace(&mut table.heads, &axes.heads);
            }
        }
    }
}

/// Models of the preset stay where it has them, with the axes that it gives them; others take the place of its first.
fn choose_models(tables: &mut Vec<Table>, given: &[String]) {
    let known: Vec<String> = tables.iter().flat_map(|table| table.models.clone()).collect();
    let new: Vec<String> = given.iter().filter(|name| !known.contains(name)).cloned().collect();
    let first = tables.first().map(|table| table.models.clone()).unwrap_or_default();
    for table in tables.iter_mut() {
        let takes_new = table.models == first;
        table.models.retain(|name| given.contains(name));
        if takes_new {
            table.models.extend_from_slice(&new);
        }
    }
    tables.retain(|table| !table.models.is_empty());
}

fn replace<T: Clone>(axis: &mut Vec<T>, given: &Option<Vec<T>>) {
    if let Some(values) = given {
        axis.clone_from(values);
    }
}

fn preset(text: &str) -> Result<Preset> {
    let found = Preset::ALL.into_iter().find(|preset| preset.name() == text);
    found
        .ok_or_else(|| format!("--preset {text}: wanted one of {}", Preset::ALL.map(Preset::name).join(", ")))
}

fn list<T>(text: &str, parse: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    text.split(',').map(|word| parse(word.trim())).collect()
}

fn number(flag: &str, text: &str) -> Result<u32> {
    let parsed = text.parse().ok().filter(|number| (1..=1_000_000).contains(number));
    parsed.ok_or_else(|| format!("{flag} {text}: wanted a whole number, at least 1"))
}

fn tokens(text: &str) -> Result<u32> {
    let tokens = number("--tokens", text)?;
    if tokens >= 2 { Ok(tokens) } else { Err(format!("--tokens {text}: wanted at least 2")) }
}

/// A program that stands still all the time would never end.
fn delay(text: &str) -> Result<u32> {
    let percent = number("--plant-delay", text)?;
    if percent <= 90 { Ok(percent) } else { Err(format!("--plant-delay {text}: wanted at most 90")) }
}

fn limit(text: &str) -> Result<Limit> {
    match text {
        "none" => Ok(Limit::Auto),
        _ => number("--limit", text).map(|mib| Limit::Bytes(u64::from(mib) << 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<Options> {
        match Action::parse(&line.split_whitespace().collect::<Vec<_>>())? {
            Action::Run(options) => Ok(*options),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn flags_replace_the_axes_of_the_preset() {
        let given = options("--preset seed --way mmap,uring --threads 1 --budget min,25% --reps 3").unwrap();
        let mut tables = given.preset.tables();
        given.apply(&mut tables);
        assert!(given.other_axes() && !options("--preset seed --fresh").unwrap().other_axes());
        assert_eq!(tables[0].ways, [Way::Mmap, Way::Uring]);
        assert_eq!(tables[0].threads, [1]);
        assert_eq!(tables[0].budgets, [Budget::Min, Budget::Percent(25)]);
        assert_eq!(tables[0].heads, [Head::Resident, Head::Stream], "untouched");
        assert_eq!((tables[0].reps, given.preset.tables()[0].reps), (3, 15));
    }

    #[test]
    fn models_keep_the_axes_that_the_preset_gives_them() {
        let models = |line: &str| {
            let given = options(line).unwrap();
            let mut tables = given.preset.tables();
            given.apply(&mut tables);
            tables.iter().map(|table| (table.models.join("+"), table.tokens)).collect::<Vec<_>>()
        };
        let pair = |name: &str, tokens| (name.to_string(), tokens);
        assert_eq!(models("--preset full --model llama3_8b"), vec![pair("llama3_8b", 8); 2]);
        assert_eq!(models("--preset full --model a.gguf"), vec![pair("a.gguf", 16); 5]);
        assert_eq!(models("--preset seed --model a,b"), [pair("a+b", 32)]);
    }

    #[test]
    fn the_loader_can_be_asked_for_in_any_preset() {
        let given = options("--preset seed --engine loader --budget all").unwrap();
        let mut tables = given.preset.tables();
        given.apply(&mut tables);
        assert_eq!(tables.len(), 1);
        assert_eq!((tables[0].engine, &tables[0].budgets[..]), (Engine::Loader, &[Budget::Stream][..]));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, word) in [
            ("--preset huge", "smoke, seed, full"),
            ("--way mmap+direct", "uring+direct"),
            ("--threads 0", "--threads 0"),
            ("--reps", "--reps: wants a value"),
            ("--speed 3", "--speed: no such flag"),
            ("--peer vllm", "llama-cpp-python"),
            ("--plant-delay 91", "at most 90"),
            ("--tokens 1", "at least 2"),
            ("--compare a", "wants a value"),
            ("--compare a b --update-readme", "one of them"),
        ] {
            let message = options(line).unwrap_err();
            assert!(message.contains(word), "{line}: {message}");
        }
        let action = Action::parse(&["--compare", "a", "b", "--threshold", "8"]).unwrap();
        assert!(matches!(action, Action::Compare { threshold: 0.08, .. }), "{action:?}");
    }
}
