//! The shared collection of hostile and odd files, where it is at hand: `SLUICE_SHARED` names the folder that has
//! `cases/files` in it. Elsewhere this test says that it skips; `hostile.rs` has every kind of its own.

use std::fs;
use std::path::PathBuf;

use sluice_gguf::Gguf;

/// Files that are sound as GGUF and refused by the model for what they say.
const FOR_THE_MODEL: [&str; 2] = ["G40-empty-vocab", "G42-block-count-"];

#[test]
#[allow(clippy::print_stderr)] // a skip must be seen
fn shared_cases() {
    let Some(shared) = std::env::var_os("SLUICE_SHARED") else {
        eprintln!("skipped: SLUICE_SHARED is not set");
        return;
    };
    let folder = PathBuf::from(shared).join("cases/files");
    let index = fs::read_to_string(folder.join("index.tsv")).expect("index.tsv");
    let mut seen = 0;
    for row in index.lines().skip(1) {
        let [name, kind, what, words] = row.split('\t').collect::<Vec<_>>().try_into().expect("four columns");
        let about_format =
            name.starts_with('G') && !FOR_THE_MODEL.iter().any(|prefix| name.starts_with(prefix));
        match Gguf::open(&folder.join(name)) {
            Ok(model) => {
                assert!(kind != "must-reject" || !about_format, "{name} was accepted: {what}");
                for (key, _) in model.keys() {
                    read_array(&model, key);
                }
            }
            Err(e) => {
                let line = e.to_string();
                assert!(about_format && kind != "must-accept", "{line}");
                assert!(line.contains(name.split('-').next().unwrap_or(name)), "no file name: {line}");
                for group in words.split(" | ") {
                    let found = group
                        .split('/')
                        .any(|word| line.to_lowercase().contains(&word.trim().to_lowercase()));
                    assert!(found, "{name}: none of {group:?} in {line:?}");
                }
            }
        }
        seen += 1;
    }
    assert!(seen > 0, "no cases in {}", folder.display());
}

fn read_array(model: &Gguf, key: &str) {
    if let Ok(Some(mut strings)) = model.strings(key) {
        let mut seen = 0;
        while let Some(item) = strings.next() {
            item.unwrap_or_else(|e| panic!("{e}"));
            seen += 1;
        }
        assert_eq!(seen, strings.len());
    }
    if let Ok(Some(numbers)) = model.floats(key) {
        let numbers: Vec<f64> = numbers.collect::<Result<_, _>>().unwrap_or_else(|e| panic!("{e}"));
        let array = model.array(key).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(array.map(|a| a.len), Some(numbers.len() as u64));
    }
}
