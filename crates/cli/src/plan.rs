//! `sluice plan`: what a run would keep in memory and what it would read, at this budget and at others. No weight is read.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;
use sluice_model::{Budget, Error, Model, Options, Report, Session};

use crate::io::{Failure, note, print, print_json};
use crate::json::ledger;
use crate::{args, open};

/// Positions of a run that nothing is known of: some paragraphs in and out.
const USUAL_CONTEXT: usize = 512;

/// Budgets of the table in percent of the file, between the least and all.
const SHARES: [u64; 4] = [10, 25, 50, 75];

#[derive(Serialize)]
struct Document {
    context: usize,
    #[serde(flatten)]
    plan: Row,
    ledger: BTreeMap<String, u64>,
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
}

impl Row {
    fn of(budget: String, report: &Report) -> Self {
        let weights = report.resident_bytes + report.streamed_bytes_per_pass;
        Self {
            budget,
            budget_bytes: report.budget,
            predicted_bytes: report.ledger.total(),
            resident_bytes: report.resident_bytes,
            resident_share: report.resident_bytes as f64 / weights.max(1) as f64,
            streamed_bytes_per_pass: report.streamed_bytes_per_pass,
            backend: report.backend.clone(),
        }
    }

    fn line(&self) -> String {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        format!(
            "{:>8} {:>9.1} {:>9.1} {:>5.0} % {:>9.1}  {}\n",
            self.budget,
            mb(self.predicted_bytes),
            mb(self.resident_bytes),
            100.0 * self.resident_share,
            mb(self.streamed_bytes_per_pass),
            self.backend
        )
    }
}

pub fn run(args: &args::Plan) -> Result<ExitCode, Failure> {
    open::check(&args.session)?;
    let model = open::model(&args.model, &args.session)?;
    let context = open::context(&model, &args.session, 0, USUAL_CONTEXT, "nothing")?;
    let options = args.session.options(context);
    let asked = open::session(&model, &options, false)?.report();
    let name = match options.budget {
        Budget::Auto => "auto".to_owned(),
        Budget::Min => "min".to_owned(),
        Budget::Bytes(bytes) => bytes.to_string(),
    };
    let plan = Row::of(name, &asked);
    let table = table(&model, &options)?;
    if args.json {
        print_json(&Document { context, plan, ledger: ledger(&asked.ledger), table })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("memory for {context} positions, in MB\n");
    for (item, bytes) in asked.ledger.items().filter(|(_, bytes)| *bytes > 0) {
        text += &format!("{item:>12} {:>9.1}\n", bytes as f64 / 1e6);
    }
    text += &format!("{:>12} {:>9.1}\n\n", "in all", asked.ledger.total() as f64 / 1e6);
    text += "  budget  predicted  resident          streamed a pass\n";
    text += &plan.line();
    text += &table.iter().map(Row::line).collect::<String>();
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The least, shares of the file, and all of it. Budgets that cannot be kept are left out: a file may be smaller than what a
/// run takes beside it.
fn table(model: &Model, options: &Options) -> Result<Vec<Row>, Error> {
    const WHOLE: u64 = 1 << 50; // no file is as long
    let shares = SHARES.map(|share| (format!("{share}%"), Budget::Bytes(model.file_bytes() / 100 * share)));
    let rows = [("min".to_owned(), Budget::Min)].into_iter().chain(shares);
    let rows = rows.chain([("all".to_owned(), Budget::Bytes(WHOLE))]);
    let mut table = Vec::new();
    for (name, budget) in rows {
        match Session::open(model, &Options { budget, ..options.clone() }) {
            Ok(session) => {
                let mut row = Row::of(name, &session.report());
                // Of all there is a ceiling only in name.
                row.budget_bytes = row.budget_bytes.filter(|bytes| *bytes < WHOLE);
                table.push(row);
            }
            Err(Error::Budget(why)) => note(&format!("{name} is left out: {why}")),
            Err(error) => return Err(error),
        }
    }
    Ok(table)
}
