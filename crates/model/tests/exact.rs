//! Tiny models against exact logits: one per format, every matrix of that type, and one per feature of the
//! architecture, in F32.
//!
//! The exact values come from a float64 program that quantises nothing on the way; `data/exact_logits.py` says how
//! they were made.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test that measures says what")]

mod common;

use serde_json::Value;
use sluice_fixtures::{Spec, TensorType};
use sluice_model::{ActBits, Isa, KvFormat, Model, Options, Session};

use common::{data, write};

/// Most that the root mean square of the differences may be, as a share of the logits' root mean square.
///
/// F32, F16 and BF16 keep f32 activations, so only rounding of sums is left. For the others each 8-bit activation is
/// off by up to 1/254 of its block's largest: about 0.7 % of a block of 256 normal values, and some ten products with
/// such inputs lie behind a logit here. A wrong scale, sign or order of weights gives 50 % and more.
///
/// With 16 bits an activation is off by 1/254 of that, twice over; 2e-4 is three times the worst measured.
fn bound(format: TensorType, bits: ActBits) -> f64 {
    match (format, bits) {
        (TensorType::F32 | TensorType::F16 | TensorType::BF16, _) => 1e-5,
        (_, ActBits::Eight) => 0.03,
        (_, ActBits::Sixteen) => 2e-4,
    }
}

/// A single logit may be off by this many times the bound: the largest of 1280 normal errors is below 4.5 sigma.
const LARGEST: f64 = 4.5;

#[test]
fn every_format_and_feature_gives_the_exact_logits_within_its_bound() {
    let text = std::fs::read_to_string(data("exact_logits.json")).expect("oracle values");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    let numbers = |v: &Value| {
        v.as_array().expect("an array").iter().map(|n| n.as_f64().expect("a number")).collect::<Vec<_>>()
    };
    let ids: Vec<u32> = numbers(&golden["ids"]).iter().map(|v| *v as u32).collect();
    let positions: Vec<usize> = numbers(&golden["positions"]).iter().map(|v| *v as usize).collect();
    let models = golden["logits"].as_object().expect("logits by model");
    let wanted = sluice_model::supported_formats().into_iter().chain(Spec::FEATURES);
    for name in wanted {
        assert!(models.contains_key(name), "{name} has no exact values");
    }
    for (name, exact) in models {
        let spec = Spec::named(name).expect("a model that the fixtures know");
        let format = spec.format;
        let exact: Vec<Vec<f64>> = exact.as_array().expect("rows").iter().map(numbers).collect();
        let (_dir, path) = write(&spec);
        let cells =
            Isa::available().into_iter().flat_map(|isa| [(isa, ActBits::Eight), (isa, ActBits::Sixteen)]);
        for (isa, act_bits) in cells {
            let model = Model::open_with(&path, isa).expect("a tiny model");
            // An f32 cache: the exact program rounds nothing there either.
            let options = Options { kv: KvFormat::F32, act_bits: Some(act_bits), ..Options::new(ids.len()) };
            let mut session = Session::open(&model, &options).expect("a session");
            let (mut worst, mut squares, mut count) = (0f64, 0f64, 0);
            session
                .feed_each(&ids, |position, row| {
                    let Some(i) = positions.iter().position(|p| *p == position) else {
                        return;
                    };
                    assert_eq!(row.len(), exact[i].len());
                    let rms = (exact[i].iter().map(|v| v * v).sum::<f64>() / row.len() as f64).sqrt();
                    for (found, exact) in row.iter().zip(&exact[i]) {
                        let difference = (f64::from(*found) - exact) / rms;
                        worst = worst.max(difference.abs());
                        squares += difference * difference;
                        count += 1;
                    }
                })
                .expect("logits");
            assert_eq!(count, positions.len() * 320);
            let mean = (squares / f64::from(count as u32)).sqrt();
            println!(
                "{name:11} on {}, {act_bits:?} bits: largest difference {worst:.2e}, root mean square {mean:.2e} of the logits' own",
                isa.name()
            );
            let bound = bound(format, act_bits);
            assert!(mean < bound && worst < LARGEST * bound, "{name} on {}, {act_bits:?} bits", isa.name());
        }
    }
}
