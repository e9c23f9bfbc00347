//! The matrices that have names.

use super::axes::{Budget, Cache, Engine, Head, Limit, Way};
use super::cells::Table;
use super::models::SMOKE;

/// A named matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Every way to read × threads × chunk sizes on two tiny models: are the logits the same? Seconds.
    Smoke,
    /// What streaming the output projection saves and costs, everything else streamed. A minute.
    Seed,
    /// Memory against speed, warm and cold, on a 1.1B and an 8B model. Under an hour.
    Full,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Smoke, Self::Seed, Self::Full];

    /// Its name in flags and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Seed => "seed",
            Self::Full => "full",
        }
    }

    /// Its tables.
    pub fn tables(self) -> Vec<Table> {
        match self {
            Self::Smoke => smoke(),
            Self::Seed => vec![seed()],
            Self::Full => full(),
        }
    }
}

/// Every backend, buffered and direct.
const WAYS: [Way; 5] = [Way::Mmap, Way::Pread, Way::PreadDirect, Way::Uring, Way::UringDirect];

/// Chunk sizes and prompt batches: the usual ones; a head in chunks of 7 rows, which divide no usual vocabulary and are no
/// multiple of what a kernel takes at once; chunks of a few rows with the prompt token by token; chunks that split
/// tensors unevenly with groups that do not divide the prompt.
const WORK: [&str; 4] = [
    "",
    "--lm-head-rows 7",
    "--chunk-bytes 5000 --prompt-batch 1",
    "--lm-head-rows 7 --chunk-bytes 70k --prompt-batch 5",
];

fn smoke() -> Vec<Table> {
    // The plainest way, which all others are compared with: everything in memory, one thread, the kernels that define
    // the numbers.
    let plain = Table {
        engine: Engine::Sluice,
        models: SMOKE.map(String::from).to_vec(),
        ways: vec![Way::Pread],
        budgets: vec![Budget::All],
        heads: vec![Head::Resident],
        threads: vec![1],
        caches: vec![Cache::Any],
        limits: vec![Limit::Auto],
        isas: vec!["scalar"],
        extras: vec![""],
        tokens: 6,
        reps: 1,
    };
    let ways = WAYS.to_vec();
    let usual = Table { ways: ways.clone(), isas: vec![""], ..plain.clone() };
    let streamed = Table {
        budgets: vec![Budget::Stream],
        heads: vec![Head::Resident, Head::Stream],
        threads: vec![1, 2, 3],
        extras: WORK.to_vec(),
        ..usual.clone()
    };
    let resident = Table { threads: vec![2], ..usual.clone() };
    let least = Table { budgets: vec![Budget::Min], heads: vec![Head::Auto], threads: vec![2], ..usual };
    let scalar = Table {
        ways,
        budgets: vec![Budget::Stream],
        heads: vec![Head::Stream],
        extras: vec![WORK[3]],
        ..plain.clone()
    };
    vec![plain, streamed, resident, scalar, least]
}

fn seed() -> Table {
    Table {
        engine: Engine::Sluice,
        models: vec!["tinyllama_1b".into()],
        // Named, because a choice by a measurement of a moment differs now and then, and two ways would be compared.
        ways: vec![Way::Mmap],
        budgets: vec![Budget::Stream],
        heads: vec![Head::Resident, Head::Stream],
        threads: vec![2],
        caches: vec![Cache::Warm],
        limits: vec![Limit::Auto],
        isas: vec![""],
        extras: vec![""],
        // 0.6 s of generating at 50 tokens per second, so that a clock tick doesn't show.
        tokens: 32,
        // Two cells of a second each: more costs nothing, and a difference of a few per cent is what it looks for.
        reps: 15,
    }
}

fn full() -> Vec<Table> {
    use Budget::{All, Min, Percent};
    let budgets = vec![Min, Percent(25), Percent(50), Percent(75), All];
    let warm = Table {
        ways: vec![Way::Mmap, Way::Pread, Way::Uring],
        budgets,
        threads: vec![1, 2],
        // As the figures of the design: a short prompt and 16 tokens after it.
        tokens: 16,
        // Of a second each; cold ones take four times as long, and an hour has room for three of them.
        reps: 5,
        ..seed()
    };
    let cold = Table { ways: WAYS.to_vec(), caches: vec![Cache::Cold], reps: 3, ..warm.clone() };
    let large = Table {
        models: vec!["llama3_8b".into()],
        ways: vec![Way::PreadDirect, Way::UringDirect],
        budgets: vec![Min, Percent(25), Percent(50), All],
        heads: vec![Head::Auto],
        threads: vec![2],
        // A pass over 5 GB takes seconds; seven that count are enough for a mean.
        tokens: 8,
        ..cold.clone()
    };
    // What somebody gets who gives no flags, with all memory and in containers that the model fits into many times over,
    // half, and not at all.
    let plain = |models: &Table, caches: &[Cache], limits: &[u64]| Table {
        models: models.models.clone(),
        tokens: models.tokens,
        ways: vec![Way::Auto],
        budgets: vec![Budget::Auto],
        heads: vec![Head::Auto],
        threads: vec![2],
        caches: caches.to_vec(),
        reps: models.reps,
        limits: limits
            .iter()
            .map(|mib| if *mib == 0 { Limit::Auto } else { Limit::Bytes(mib << 20) })
            .collect(),
        ..seed()
    };
    let loader = Table {
        engine: Engine::Loader,
        ways: WAYS.to_vec(),
        budgets: vec![Budget::Stream],
        heads: vec![Head::Auto],
        caches: vec![Cache::Warm, Cache::Cold],
        ..cold.clone()
    };
    vec![
        plain(&warm, &[Cache::Warm], &[0]),
        plain(&cold, &[Cache::Cold], &[0, 32, 256]),
        plain(&large, &[Cache::Cold], &[0, 64, 2048]),
        warm,
        cold,
        large,
        loader,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cells::Cell;
    use crate::bench::models::Model;

    fn cells(preset: Preset) -> Vec<Cell> {
        let names = ["mixed", "tied", "tinyllama_1b", "llama3_8b"];
        let models = names.map(|name| Model { name: name.into(), path: name.into(), bytes: 1 << 30 });
        Table::cells(&preset.tables(), &models)
    }

    #[test]
    fn smoke_covers_every_way_and_starts_with_the_plain_one() {
        let all = cells(Preset::Smoke);
        assert_eq!(all.len(), 2 * (1 + 5 * (2 * 3 * 4) + 5 + 5 + 5));
        assert_eq!(all[0].to_string(), "mixed pread all head=resident t1 scalar");
        for way in WAYS {
            assert!(all.iter().filter(|cell| cell.way == way).count() > 40, "{way:?}");
        }
    }

    #[test]
    fn the_seed_is_two_cells_that_differ_in_the_head() {
        let all: Vec<String> = cells(Preset::Seed).iter().map(ToString::to_string).collect();
        let cell = |head| format!("tinyllama_1b mmap stream head={head} t2 warm");
        assert_eq!(all, [cell("resident"), cell("stream")]);
    }

    #[test]
    fn full_has_what_the_matrix_promises() {
        let all = cells(Preset::Full);
        let count = |wanted: &dyn Fn(&Cell) -> bool| all.iter().filter(|cell| wanted(cell)).count();
        let small = |cell: &Cell| cell.model == "tinyllama_1b" && cell.engine == Engine::Sluice;
        assert_eq!(count(&|cell| cell.way == Way::Auto), 1 + 3 + 3);
        let small = |cell: &Cell| small(cell) && cell.way != Way::Auto;
        assert_eq!(count(&|cell| small(cell) && cell.cache == Cache::Warm), 3 * 5 * 2 * 2);
        // Less the head alone through the page cache, three ways with one or two threads.
        assert_eq!(count(&|cell| small(cell) && cell.cache == Cache::Cold), 5 * 5 * 2 * 2 - 3 * 2);
        assert_eq!(count(&|cell| cell.model == "llama3_8b" && cell.way != Way::Auto), 2 * 4);
        assert_eq!(count(&|cell| cell.engine == Engine::Loader), 2 * (5 + 3));
        let reps =
            |cell: &Cell| if cell.cache == Cache::Warm && cell.engine == Engine::Sluice { 5 } else { 3 };
        assert!(all.iter().all(|cell| cell.reps == reps(cell)));
        // The same number of tokens for a model everywhere, or its digests could not agree.
        assert!(all.iter().all(|cell| cell.tokens == if cell.model == "llama3_8b" { 8 } else { 16 }));
    }
}
