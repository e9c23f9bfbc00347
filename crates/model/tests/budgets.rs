//! Budgets: whatever stays, the logits are the same; in a process of its own, since what it has taken before counts.

use sluice_fixtures::{Spec, TensorType};
use sluice_model::{BackendChoice, Budget, Direct, Model, Options, Session};

#[test]
fn budgets_fill_up_and_do_not_show_in_the_logits() {
    // 36 MB of weights, most of them in the head; written piece by piece, as what this process takes for it counts too.
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let spec = Spec { vocab: 128_000, ..Spec::tiny(TensorType::Q8_0) };
    spec.write_to(&file).expect("room for a small model");
    let model = Model::open(file.path()).expect("a small model");
    let prompt: Vec<u32> = (0..40).map(|i| 1 + i * 29 % 300).collect();
    let run = |budget, backend| {
        let options = Options { budget, backend, direct: Direct::Off, ..Options::new(64) };
        let mut session = Session::open(&model, &options).expect("a budget that can be kept");
        let mut bits = Vec::new();
        for tokens in [&prompt[..], &[7], &[290]] {
            let logits = session.feed(tokens, tokens.len() > 1).expect("logits");
            bits.extend(logits.iter().map(|v| v.to_bits()));
        }
        (bits, session.report())
    };
    let (wanted, least) = run(Budget::Min, BackendChoice::Pread);
    assert_eq!(least.resident_bytes, 0);
    let weights = least.streamed_bytes_per_pass;
    let mut before = 0;
    for share in [25, 50, 75] {
        let ceiling = least.ledger.total() + weights * share / 100;
        let (bits, report) = run(Budget::Bytes(ceiling), BackendChoice::Pread);
        assert!(bits == wanted, "{share} %");
        let (total, resident) = (report.ledger.total(), report.resident_bytes);
        assert!(total <= ceiling && report.budget == Some(ceiling), "{share} %: {report:?}");
        assert!(before < resident && resident < weights, "{share} %: {report:?}");
        assert_eq!(resident + report.streamed_bytes_per_pass, weights);
        before = resident;
    }
    for backend in [BackendChoice::Auto, BackendChoice::Mmap] {
        let (bits, report) = run(Budget::Bytes(1 << 40), backend);
        assert!(bits == wanted, "{backend:?}");
        assert_eq!((report.resident_bytes, report.backend.as_str()), (weights, "mmap"));
    }
    let options = Options { budget: Budget::Bytes(1_000_000), ..Options::new(64) };
    let Err(refused) = Session::open(&model, &options) else { panic!("a megabyte is too little") };
    let message = refused.to_string();
    assert!(
        !refused.is_usage() && message.contains("--ram-budget 1000000") && message.contains("kv"),
        "{message}"
    );
}
