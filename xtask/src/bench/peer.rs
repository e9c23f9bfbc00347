//! llama.cpp beside us: the same file, prompt and container, through the Python package `llama-cpp-python`.
//!
//! Met with version 0.3.36, built for the machine (`CMAKE_ARGS=-DGGML_NATIVE=ON`), beside llama-bench of the same sources,
//! 2 threads, from the page cache: 54 against 57 tok/s and 1212 against 1171 MB on the 1.1B model, 173 against 201 and 176
//! against 135 on the 135M one. The difference is Python's own part: 0.8 ms a token, and 40 MB.

use super::axes::{Budget, Cache, Engine, Head, Way};
use super::cells::Cell;
use super::models::Model;
use crate::sh::{Result, command, stdout};
use std::process::Command;

/// Loads the file as that package does by default (mapped), generates greedily, and reports in our own words.
///
/// Arguments: file, prompt, tokens, threads.
const PROGRAM: &str = r#"
import json, sys, time
start = time.perf_counter()
import llama_cpp
path, prompt, count, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = llama_cpp.Llama(model_path=path, n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False)
ids = model.tokenize(prompt.encode(), add_bos=True, special=True)
loaded = time.perf_counter()
times = []
for token in model.generate(ids, temp=0.0):
    times.append(time.perf_counter())
    if len(times) == count:
        break
peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM:'))
print(json.dumps({
    'version': llama_cpp.__version__,
    'prompt_tokens': len(ids),
    'generated_tokens': len(times),
    'timings': {
        'load_s': loaded - start,
        'ttft_s': times[0] - start,
        'prefill_tok_s': len(ids) / (times[0] - loaded),
        'decode_tok_s': (len(times) - 1) / (times[-1] - times[0]),
    },
    'memory': {'peak_rss_bytes': 1024 * int(peak)},
}))
"#;

/// Its version.
///
/// # Errors
/// When the package cannot be imported.
pub fn version() -> Result<String> {
    let ask = ["-c", "import llama_cpp; print(llama_cpp.__version__)"];
    stdout(&mut command("python3", &ask)).map(|version| version.trim().to_string())
}

/// Its cells: one for each model, number of threads and container that ours have, warm or in a container.
///
/// Without one its later passes would find the file in the page cache, so there is no cold cell of that kind.
pub fn cells(ours: &[Cell]) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    for cell in ours.iter().filter(|cell| cell.engine == Engine::Sluice) {
        let comparable = cell.cache == Cache::Warm || (cell.cache == Cache::Cold && cell.limit.is_some());
        let peer = Cell {
            engine: Engine::Peer,
            way: Way::Auto,
            budget: Budget::All,
            head: Head::Auto,
            isa: "",
            extra: "",
            ..cell.clone()
        };
        if comparable && !cells.contains(&peer) {
            cells.push(peer);
        }
    }
    cells
}

/// The command that runs a cell of it.
pub fn command_for(cell: &Cell, model: &Model, prompt: &str) -> Command {
    let mut python = command("python3", &["-c", PROGRAM]);
    python.arg(&model.path).arg(prompt).args([cell.tokens.to_string(), cell.threads.to_string()]);
    python
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::axes::Limit;
    use crate::bench::cells::{Table, tests};

    #[test]
    fn it_gets_a_cell_for_each_container_and_number_of_threads() {
        let table = Table {
            ways: vec![Way::Mmap, Way::Pread, Way::UringDirect],
            threads: vec![1, 2],
            caches: vec![Cache::Warm, Cache::Cold],
            limits: vec![Limit::Auto],
            ..tests::table()
        };
        let ours = Table::cells(&[table], &[tests::model()]);
        let shown: Vec<String> = cells(&ours).iter().map(ToString::to_string).collect();
        let name = "m llama-cpp-python";
        assert_eq!(
            shown,
            [
                format!("{name} t1 warm"),
                format!("{name} t1 cold in 128 MiB"),
                format!("{name} t2 warm"),
                format!("{name} t2 cold in 128 MiB")
            ]
        );
    }
}
