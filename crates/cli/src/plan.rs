//! `sluice plan`: what a run would keep in memory, what it would read, and how fast it would be, at this budget and at others.
//! The speeds come from a trial of a second or three, see [`sluice_model::speed`].

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;
use sluice_model::speed::{Forecast, Measured, Outlook, Planned, Planner, Speed};
use sluice_model::{Budget, Error, Model};

use crate::io::{Failure, note, print, print_json};
use crate::json::ledger;
use crate::{args, open};

/// Positions of a run that nothing is known of: some paragraphs in and out.
const USUAL_CONTEXT: usize = 512;

/// Budgets of the table in percent of the file, between the least and all.
const SHARES: [u64; 4] = [10, 25, 50, 75];

/// A budget that all of any file fits into.
const WHOLE: u64 = 1 << 50;

#[derive(Serialize)]
struct Document {
    context: usize,
    #[serde(flatten)]
    plan: Row,
    ledger: BTreeMap<String, u64>,
    /// Tokens of the prompt that `prefill_tok_s` is told for.
    prompt_tokens: usize,
    /// Position that `decode_tok_s` is told for.
    decode_position: usize,
    measured: Rates,
    /// The same model at other budgets.
    table: Vec<Row>,
}

/// A run at one budget.
#[derive(Serialize)]
struct Row {
    /// As `--ram-budget` takes it.
    budget: String,
    budget_bytes: Option<u64>,
    predicted_bytes: u64,
    resident_bytes: u64,
    /// Of the weights that a pass uses.
    resident_share: f64,
    streamed_bytes_per_pass: u64,
    backend: String,
    /// With what is streamed in the page cache; null when it would never be.
    warm: Option<Rating>,
    /// With what is streamed read from the disk in every pass; null where that cannot be.
    cold: Option<Rating>,
}

#[derive(Serialize)]
struct Rating {
    prefill_tok_s: f64,
    decode_tok_s: f64,
    /// What the first pass takes beyond a later one, to read what stays.
    start_s: f64,
}

/// What the speeds are reckoned from; null where it was not measured.
#[derive(Serialize)]
struct Rates {
    disk_bytes_s: Option<f64>,
    cached_bytes_s: Option<f64>,
    resident_bytes_s: Option<f64>,
    memory_bytes_s: Option<f64>,
    prefill_products_s: Option<f64>,
    took_s: f64,
}

pub fn run(args: &args::Plan) -> Result<ExitCode, Failure> {
    open::check(&args.session)?;
    let model = open::model(&args.model, &args.session)?;
    let context = open::context(&model, &args.session, 0, USUAL_CONTEXT, "nothing")?;
    let options = args.session.options(context);
    let mut planner = Planner::new(&model, &options)?;
    let asked = planner.plan(options.budget)?;
    asked.notes.iter().filter(|line| line.starts_with("note: ")).for_each(|line| note(line));
    let mut plan = Row::of(name(options.budget), &asked);
    let mut table = table(&model, &mut planner)?;
    let forecast = planner.forecast()?;
    forecast.notes.iter().for_each(|line| note(&format!("note: {line}")));
    for (row, outlook) in std::iter::once(&mut plan).chain(&mut table).zip(&forecast.outlooks) {
        row.rate(outlook);
    }
    if args.json {
        print_json(&Document {
            context,
            plan,
            ledger: ledger(&asked.ledger),
            prompt_tokens: forecast.prompt,
            decode_position: forecast.position,
            measured: Rates::of(&forecast.measured),
            table,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("memory for {context} positions, in MB\n");
    for (item, bytes) in asked.ledger.items().filter(|(_, bytes)| *bytes > 0) {
        text += &format!("{item:>12} {:>9.1}\n", mb(bytes));
    }
    text += &format!("{:>12} {:>9.1}\n\n", "in all", mb(asked.ledger.total()));
    text += &heading(&forecast);
    text += &plan.line();
    text += &table.iter().map(Row::line).collect::<String>();
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The least, shares of the file, and all of it. Budgets that cannot be kept are left out: a file may be smaller than what a
/// run takes beside it.
fn table(model: &Model, planner: &mut Planner<'_>) -> Result<Vec<Row>, Error> {
    let shares = SHARES.map(|share| (format!("{share}%"), Budget::Bytes(model.file_bytes() / 100 * share)));
    let rows = [("min".to_owned(), Budget::Min)].into_iter().chain(shares);
    let rows = rows.chain([("all".to_owned(), Budget::Bytes(WHOLE))]);
    let mut table = Vec::new();
    for (name, budget) in rows {
        match planner.plan(budget) {
            Ok(planned) => table.push(Row::of(name, &planned)),
            Err(Error::Budget(why)) => note(&format!("{name} is left out: {why}")),
            Err(error) => return Err(error),
        }
    }
    Ok(table)
}

fn name(budget: Budget) -> String {
    match budget {
        Budget::Auto => "auto".to_owned(),
        Budget::Min => "min".to_owned(),
        Budget::Bytes(bytes) => bytes.to_string(),
    }
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// What was measured, and the columns' names.
fn heading(forecast: &Forecast) -> String {
    let Forecast { prompt, position, measured, .. } = forecast;
    let gb = |rate: Option<f64>| rate.map_or("not measured".to_owned(), |r| format!("{:.2} GB/s", r / 1e9));
    let mut text = format!("measured in {:.1} s\n", measured.took_s);
    for (what, rate) in [
        ("disk", gb(measured.disk_bytes_s)),
        ("weights from the page cache, multiplied", gb(measured.cached_bytes_s)),
        ("weights in memory, multiplied", gb(measured.resident_bytes_s)),
        ("memory, only read", gb(measured.memory_bytes_s)),
    ] {
        text += &format!("{what:>41} {rate:>13}\n");
    }
    text += &format!(
        "\nspeed in tokens/s: prompt for {prompt} tokens, then single ones at position {position}; start is what the first pass\n\
         takes longer, in s. Warm: what is streamed is in the page cache; cold: it is read from the disk in every pass\n\n"
    );
    text += &format!(
        "{:>12} {:>9} {:>9} {:>6} {:>9}   {:^24}   {:^24}\n",
        "", "", "", "", "streamed", "------- warm -------", "------- cold -------"
    );
    let columns = format!("{:>8} {:>8} {:>6}", "prompt", "text", "start");
    text += &format!(
        "{:>12} {:>9} {:>9} {:>6} {:>9}   {columns}   {columns}\n",
        "budget", "memory", "resident", "", "a pass"
    );
    text
}

impl Row {
    fn of(budget: String, planned: &Planned) -> Self {
        let weights = planned.resident_bytes + planned.streamed_bytes_per_pass;
        Self {
            budget,
            // Of all there is a ceiling only in name.
            budget_bytes: planned.budget.filter(|bytes| *bytes < WHOLE),
            predicted_bytes: planned.ledger.total(),
            resident_bytes: planned.resident_bytes,
            resident_share: planned.resident_bytes as f64 / weights.max(1) as f64,
            streamed_bytes_per_pass: planned.streamed_bytes_per_pass,
            backend: planned.backend.to_owned(),
            warm: None,
            cold: None,
        }
    }

    fn rate(&mut self, outlook: &Outlook) {
        let rating = |speed: Speed| Rating {
            prefill_tok_s: speed.prefill_tok_s,
            decode_tok_s: speed.decode_tok_s,
            start_s: speed.start_s,
        };
        self.warm = outlook.warm.map(rating);
        self.cold = outlook.cold.map(rating);
    }

    fn line(&self) -> String {
        let rating = |rating: &Option<Rating>| match rating {
            Some(r) => format!(
                "{:>8} {:>8} {:>6.1}",
                three_digits(r.prefill_tok_s),
                three_digits(r.decode_tok_s),
                r.start_s
            ),
            None => format!("{:>8} {:>8} {:>6}", "-", "-", "-"),
        };
        format!(
            "{:>12} {:>9.1} {:>9.1} {:>4.0} % {:>9.1}   {}   {}\n",
            self.budget,
            mb(self.predicted_bytes),
            mb(self.resident_bytes),
            100.0 * self.resident_share,
            mb(self.streamed_bytes_per_pass),
            rating(&self.warm),
            rating(&self.cold)
        )
    }
}

impl Rates {
    fn of(measured: &Measured) -> Self {
        let Measured {
            disk_bytes_s,
            cached_bytes_s,
            resident_bytes_s,
            memory_bytes_s,
            prefill_products_s,
            took_s,
        } = *measured;
        Self { disk_bytes_s, cached_bytes_s, resident_bytes_s, memory_bytes_s, prefill_products_s, took_s }
    }
}

/// A rate with as many digits as it is good for.
fn three_digits(rate: f64) -> String {
    let decimals = match rate {
        r if r < 10.0 => 2,
        r if r < 100.0 => 1,
        _ => 0,
    };
    format!("{rate:.decimals$}")
}
