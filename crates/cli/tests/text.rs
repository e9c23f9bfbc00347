//! What `run` and `logits` give: where a text ends and why, what changes it and what does not.

mod common;

use common::{Ran, model, run, sluice, tiny, with_input, write};
use serde_json::Value;
use sluice_fixtures::Spec;

fn document(ran: Ran) -> Value {
    ran.ok().json()
}

/// The parts of a document that must not depend on the machine.
fn result(ran: Ran) -> [Value; 4] {
    let d = document(ran);
    ["text", "ids", "stop_reason", "logits_digest"].map(|key| d[key].clone())
}

#[test]
fn stdout_is_the_text_and_nothing_else() {
    let (_dir, path) = model();
    let plain = run(&path, "-p the -n 12").ok();
    let [text, ids, stop_reason, _] = result(run(&path, "-p the -n 12 --json"));
    assert_eq!(plain.stdout, text.as_str().expect("a text").as_bytes());
    assert!(!plain.stdout.is_empty());
    assert_eq!(stop_reason, "limit");
    assert_eq!(ids.as_array().map(Vec::len), Some(12));
    let lines: Vec<&str> = plain.stderr.lines().collect();
    assert!(lines.len() == 1 && lines[0].starts_with("[limit: 12 tokens after a prompt of 4"), "{plain:?}");
    let verbose = run(&path, "-p the -n 12 --verbose").ok();
    assert_eq!(verbose.stdout, plain.stdout);
    assert!(verbose.stderr.lines().count() > 3, "{verbose:?}");
}

#[test]
fn every_key_of_the_contract_is_there() {
    let (_dir, path) = model();
    let d = document(run(&path, "-p the -n 3 --json --layers stream --lm-head stream --backend pread"));
    for pointer in [
        "/timings/load_s",
        "/timings/ttft_s",
        "/timings/prefill_tok_s",
        "/timings/decode_tok_s",
        "/memory/peak_rss_bytes",
        "/memory/anon_bytes",
        "/memory/file_bytes",
        "/io/bytes_read",
        "/io/reads",
        "/io/streamed_bytes_per_pass",
        "/io/passes",
        "/cpu/threads",
        "/model/file_bytes",
    ] {
        let value = d.pointer(pointer).and_then(Value::as_f64);
        assert!(value.is_some_and(|v| v > 0.0), "{pointer}: {d}");
    }
    for pointer in [
        "/memory/budget_bytes",
        "/memory/predicted_bytes",
        "/memory/ledger",
        "/seed",
        "/io/wait_s",
        "/io/compute_s",
        "/io/pass_s",
        "/io/read_bytes_s",
        "/io/resident_bytes",
    ] {
        assert!(d.pointer(pointer).is_some(), "{pointer}: {d}");
    }
    assert_eq!((&d["prompt_tokens"], &d["generated_tokens"]), (&4.into(), &3.into()));
    assert_eq!((&d["io"]["backend"], &d["io"]["direct"]), (&"pread".into(), &false.into()));
    assert!(d["logits_digest"].as_str().is_some_and(|s| s.len() == 16), "{d}");
    assert!(d["cpu"]["isa"].is_string() && d["model"]["name"].is_string(), "{d}");
}

#[test]
fn nothing_and_one_token_are_texts_too() {
    let (_dir, path) = model();
    let none = document(run(&path, "-p the -n 0 --json"));
    assert_eq!((&none["text"], &none["stop_reason"]), (&"".into(), &"limit".into()));
    assert_eq!((&none["timings"]["ttft_s"], &none["timings"]["decode_tok_s"]), (&Value::Null, &Value::Null));
    assert!(run(&path, "-p the -n 0").ok().stdout.is_empty());
    let one = document(run(&path, "-p the -n 1 --json"));
    assert_eq!((&one["generated_tokens"], &one["timings"]["decode_tok_s"]), (&1.into(), &Value::Null));
    assert!(run(&path, "-p the -n 1").ok().stderr.contains("[limit: 1 token after"));
}

/// A prompt of `tokens` tokens: BOS, and one for each letter (the first takes the space that goes before a text).
fn prompt(tokens: usize) -> String {
    format!("-p {}", "q".repeat(tokens - 1))
}

#[test]
fn the_context_is_used_to_its_last_position_and_not_beyond() {
    let (_dir, path) = write(&Spec { context: 16, ..tiny() }, "short.gguf");
    for (tokens, generated, reason) in
        [(15, 2, "context"), (16, 1, "context"), (8, 9, "limit"), (7, 9, "limit")]
    {
        let d = document(run(&path, &format!("{} -n 9 --json", prompt(tokens))));
        // The last token needs no position: nothing follows it.
        assert_eq!((&d["prompt_tokens"], &d["generated_tokens"]), (&tokens.into(), &generated.into()), "{d}");
        assert_eq!(d["stop_reason"], reason, "{d}");
    }
    let plain = run(&path, &format!("{} -n 9", prompt(16))).ok();
    assert!(plain.stderr.contains("[context: 1 token after a prompt of 16"), "{plain:?}");
}

#[test]
fn the_token_that_ends_a_text_is_counted_and_not_shown() {
    let (_dir, path) = model();
    let before = document(run(&path, "-p the -n 5 --json"));
    let ids: Vec<u32> = serde_json::from_value(before["ids"].clone()).expect("ids");
    assert!(!ids[..4].contains(&ids[4]), "another prompt is needed: {ids:?}");
    // The value follows the key and its type.
    let key = b"tokenizer.ggml.eos_token_id";
    let mut bytes = std::fs::read(&path).expect("the model");
    let at = bytes.windows(key.len()).position(|w| w == key).expect("the key") + key.len() + 4;
    bytes[at..at + 4].copy_from_slice(&ids[4].to_le_bytes());
    std::fs::write(&path, bytes).expect("the model again");
    let d = document(run(&path, "-p the -n 50 --json"));
    assert_eq!((&d["ids"], &d["stop_reason"]), (&before["ids"], &"eos".into()));
    let shown = run(&path, "-p the -n 4").ok();
    assert_eq!(d["text"].as_str().map(str::as_bytes), Some(&shown.stdout[..]));
    assert!(run(&path, "-p the -n 50").ok().stderr.contains("[eos: 5 tokens"));
}

#[test]
fn stop_strings_end_the_text_before_them() {
    let (_dir, path) = model();
    let [text, ..] = result(run(&path, "-p the -n 40 --json"));
    let text = text.as_str().expect("a text");
    let letters: Vec<(usize, char)> = text.char_indices().filter(|(_, c)| c.is_ascii_lowercase()).collect();
    let (_, stop) = letters[letters.len() / 2];
    let before = &text[..text.find(stop).expect("it is there")];
    let stop = stop.to_string();
    let args = |json: &'static str| {
        ["run", path.to_str().expect("plain"), "-p", "the", "-n", "40", "--stop", "∎", "--stop", &stop, json]
    };
    let d = document(sluice(args("--json")));
    assert_eq!((&d["text"], &d["stop_reason"]), (&before.into(), &"stop".into()));
    let plain = sluice(args("--verbose")).ok();
    assert_eq!(plain.stdout, before.as_bytes());
    assert!(plain.stderr.contains("[stop: "), "{plain:?}");
    let never = result(run(&path, "-p the -n 40 --json --stop ∎"));
    assert_eq!((never[0].as_str(), &never[2]), (Some(text), &"limit".into()));
}

#[test]
fn a_seed_reproduces_the_text_and_a_random_one_is_printed() {
    let (_dir, path) = model();
    let random = run(&path, "-p the -n 30 --temp 1.5").ok();
    let seed = random.stderr.lines().find_map(|l| l.strip_prefix("seed: ")).expect("a seed is printed");
    for flags in ["", " --threads 1", " --backend pread --layers stream"] {
        let again = run(&path, &format!("-p the -n 30 --temp 1.5 --seed {seed}{flags}")).ok();
        assert_eq!(again.stdout, random.stdout);
    }
    let d = document(run(&path, &format!("-p the -n 30 --temp 1.5 --seed {seed} --json")));
    assert_eq!(d["seed"].to_string(), seed);
    let others = [1, 2, 3]
        .map(|s| result(run(&path, &format!("-p the -n 30 --temp 1.5 --seed {s} --json")))[1].clone());
    assert!(others[0] != others[1] || others[1] != others[2], "three seeds, one text");
}

#[test]
fn extreme_settings_that_mean_greedy_are_greedy() {
    let (_dir, path) = model();
    let greedy = result(run(&path, "-p the -n 20 --json"));
    for flags in
        ["--temp 1e-30", "--temp 1e-45", "--temp 1 --top-k 1", "--temp 1 --top-p 0", "--temp 1 --min-p 1"]
    {
        assert_eq!(result(run(&path, &format!("-p the -n 20 --json {flags}"))), greedy, "{flags}");
    }
    let off = result(run(&path, "-p the -n 20 --json --temp 0.9 --seed 4"));
    let same = result(run(
        &path,
        "-p the -n 20 --json --temp 0.9 --seed 4 --top-k 0 --top-p 1 --min-p 0 --repeat-penalty 1",
    ));
    assert_eq!(off, same);
}

#[test]
fn flags_of_chance_without_chance_are_pointed_out() {
    let (_dir, path) = model();
    let plain = run(&path, "-p the -n 5").ok();
    for (flags, note) in [
        ("--top-k 5", "note: --top-k has no effect at --temp 0"),
        ("--top-p 0.9 --seed 4", "note: --top-p, --seed have no effect at --temp 0"),
        ("--temp 0 --min-p 0.1", "note: --min-p has no effect at --temp 0"),
    ] {
        let ran = run(&path, &format!("-p the -n 5 {flags}")).ok();
        assert!(ran.stderr.lines().any(|l| l.starts_with(note)), "{ran:?}");
        assert_eq!(ran.stdout, plain.stdout);
    }
    for flags in ["--repeat-penalty 1.1", "--temp 1 --top-k 5 --top-p 0.9 --min-p 0.1 --seed 4"] {
        let ran = run(&path, &format!("-p the -n 5 {flags}")).ok();
        assert!(!ran.stderr.contains("no effect"), "{ran:?}");
    }
}

#[test]
fn threads_and_memory_do_not_show() {
    let (_dir, path) = model();
    let wanted = result(run(&path, "-p thequickbrownfox -n 20 --json --threads 1"));
    for flags in [
        "--threads 2",
        "--threads 3",
        "--threads 7 --chunk-bytes 1",
        "--backend mmap --layers stream --stream-lm-head",
        "--backend pread --lm-head stream --lm-head-rows 7 --prompt-batch 3",
        "--backend pread --layers resident --chunk-bytes 3KiB",
        "--ctx 100",
    ] {
        assert_eq!(
            result(run(&path, &format!("-p thequickbrownfox -n 20 --json {flags}"))),
            wanted,
            "{flags}"
        );
    }
}

#[test]
fn logits_rank_by_value_then_id_and_check_their_ids() {
    let (_dir, path) = model();
    let logits = |more: &str| {
        let mut args = vec!["logits", path.to_str().expect("plain")];
        args.extend(more.split(' '));
        sluice(args)
    };
    let all = document(logits("--ids 1,5,9 --json --top 18446744073709551615"));
    let positions = all["positions"].as_array().expect("positions");
    assert_eq!(positions.len(), 3);
    for position in positions {
        let top = position["top"].as_array().expect("a list");
        assert_eq!(top.len(), 320, "the whole vocabulary");
        let key = |entry: &Value| (-entry[1].as_f64().expect("a number"), entry[0].as_u64());
        assert!(top.windows(2).all(|w| key(&w[0]) < key(&w[1])), "{position}");
    }
    assert!(all["nll"].as_f64().is_some_and(|n| n > 0.0), "{all}");
    let few = document(logits("--ids 1,5,9 --json --top 2 --threads 3 --chunk-bytes 1"));
    assert_eq!(few["logits_digest"], all["logits_digest"]);
    assert_eq!(document(logits("--ids 1 --json"))["nll"], Value::Null);
    let spaced = sluice(["logits", path.to_str().expect("plain"), "--ids", " 1, 5 ,9", "--json"]);
    assert_eq!(document(spaced)["logits_digest"], all["logits_digest"]);
    logits("--ids 1,320").refused(2, &["320"]);
    logits("--ids 1,4294967295").refused(2, &["4294967295", "320"]);
    logits("--ids 1,2,3 --ctx 2").refused(2, &["3", "2", "--ctx"]);
    let plain = logits("--ids 1,5").ok();
    assert_eq!(String::from_utf8_lossy(&plain.stdout).lines().count(), 3, "{plain:?}");
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_before_any_weight_is_read() {
    // NaN for every scale of the last rows of the head: any pass with logits shows it.
    let (_dir, path) = write(&Spec { context: 16, ..tiny() }, "damaged.gguf");
    let mut bytes = std::fs::read(&path).expect("the model");
    let rows = bytes.len() - 1000;
    bytes[rows..].fill(0xff);
    std::fs::write(&path, bytes).expect("the model again");
    let shown = run(&path, "-p the -n 4").refused(1, &["damaged.gguf", "non-finite", "position"]);
    assert!(shown.stderr.contains("NaN"), "{shown:?}");
    for tokens in [17, 1000] {
        run(&path, &prompt(tokens)).refused(2, &[&tokens.to_string(), "16", "shorten the prompt", "--ctx"]);
    }
    let huge = vec![b'x'; 10_000_000];
    with_input(["run".as_ref(), path.as_os_str()], &huge)
        .refused(2, &["10000000 bytes", "16", "shorten the prompt"]);
    let long = vec![b'x'; 100_000];
    with_input(["run".as_ref(), path.as_os_str()], &long).refused(2, &["100001", "16", "shorten the prompt"]);
    let over = run(&path, &format!("{} --ctx 8", prompt(12))).refused(2, &["12", "8", "raise --ctx", "16"]);
    assert!(!over.stderr.contains("shorten"), "{over:?}");
}
