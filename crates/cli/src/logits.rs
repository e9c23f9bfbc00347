//! `sluice logits`: feeds given ids and prints the highest logits after each, for comparing with other programs.

use std::process::ExitCode;

use serde::Serialize;
use sluice_model::Options;

use crate::io::{Failure, print, print_json};
use crate::{args, interrupt, open};

#[derive(Serialize)]
struct Document {
    positions: Vec<Position>,
    /// Mean negative log-likelihood in nats of each id given those before it; null for a single id.
    nll: Option<f64>,
    logits_digest: String,
}

#[derive(Serialize)]
struct Position {
    /// The highest logits as [id, logit], highest first, ties by lowest id.
    top: Vec<(u32, f32)>,
}

pub fn run(args: &args::Logits) -> Result<ExitCode, Failure> {
    open::check(&args.session)?;
    let cancel = interrupt::flag()?;
    let model = open::model(&args.model, &args.session)?;
    let context = open::context(&model, &args.session, args.ids.len(), 0, "the --ids")?;
    let options = Options { cancel, ..args.session.options(context) };
    let mut session = open::session(&model, &options, false)?;
    let mut positions = Vec::with_capacity(args.ids.len());
    let mut nll = 0.0;
    session.feed_each(&args.ids, |position, row| {
        positions.push(Position { top: highest(row, args.top) });
        if let Some(next) = args.ids.get(position + 1) {
            nll += negative_log_likelihood(row, *next as usize);
        }
    })?;
    let scored = args.ids.len() - 1;
    let nll = (scored > 0).then(|| nll / scored as f64);
    if args.json {
        print_json(&Document { positions, nll, logits_digest: format!("{:016x}", session.digest()) })?;
    } else {
        for (i, (id, position)) in args.ids.iter().zip(&positions).enumerate() {
            let top: Vec<String> = position.top.iter().map(|(id, v)| format!("{id}:{v:.4}")).collect();
            print(&format!("{i} {id} -> {}\n", top.join(" ")))?;
        }
        if let Some(nll) = nll {
            print(&format!("mean nll {nll:.6} nats, perplexity {:.4}\n", libm::exp(nll)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn highest(row: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    let by = |a: &u32, b: &u32| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
    let k = k.min(order.len());
    if k < order.len() {
        order.select_nth_unstable_by(k, by);
        order.truncate(k);
    }
    order.sort_unstable_by(by);
    order.into_iter().map(|id| (id, row[id as usize])).collect()
}

/// The negative logarithm of what softmax gives `id`, in nats, computed in f64.
fn negative_log_likelihood(row: &[f32], id: usize) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = row.iter().map(|v| libm::exp(f64::from(*v) - max)).sum();
    libm::log(sum) + max - f64::from(row[id])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_come_first_and_ties_by_id() {
        let row = [1.0, 3.0, 3.0, -2.0, 3.5];
        assert_eq!(highest(&row, 3), [(4, 3.5), (1, 3.0), (2, 3.0)]);
        assert_eq!(highest(&row, 99).len(), 5);
    }

    #[test]
    fn equal_logits_are_worth_the_log_of_their_number() {
        assert!((negative_log_likelihood(&[7.0; 8], 3) - 8f64.ln()).abs() < 1e-12);
    }
}
