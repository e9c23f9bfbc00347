//! Measures what [`super::speed`] reckons with: the disk, the page cache, memory and products, on the file itself.
//!
//! It takes a second or three, whatever the length of the file, and reads at most 2 GiB of it from the disk, and
//! up to 320 MiB of its layers (at least one layer) twice through the page cache. In memory are at most that many, and
//! where even so much is not available the products are timed while they are streamed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_loader::{Schedule, Step, Stream};

use super::sample::{Part, Sample, Size, size, walk};
use super::ways::{Run, Runs, Way, Ways};
use super::{Compute, Speed, Streaming, speed};
use crate::available::available;
use crate::budget::Ledger;
use crate::error::Result;
use crate::model::Model;
use crate::options::{Budget, Options};
use crate::plan::Plan;
use crate::stream::PassKind;
use crate::team::Team;

/// Bytes of layers that products are timed on: ten times the last-level cache of this machine. With five times, weights in small
/// pages came up to a tenth faster than those of a whole model (38 against 33 to 36 GB/s), with ten within the noise.
const SAMPLE: u64 = 320 << 20;

/// Most bytes that are read from the disk to know its rate.
const MOST_READ: u64 = 2 << 30;

/// Places in the file that the disk is tried at, one after the other: its parts may differ.
const PLACES: usize = 8;

/// How long the disk is tried for, and how much longer for every gigabyte of the file, up to [`LONGEST_TRIAL`]. The rate of this
/// machine's disk swings by half within seconds: longer tells more, and is what a person waits for.
const SHORTEST_TRIAL: Duration = Duration::from_millis(400);
const TRIAL_PER_GB: Duration = Duration::from_millis(250);
const LONGEST_TRIAL: Duration = Duration::from_millis(1200);

/// Each kind of pass is repeated for this long, but at least [`FEWEST`] times. The mean counts, as it does in a run, with whatever
/// disturbs this machine now and then.
const REPEAT: Duration = Duration::from_millis(100);
const FEWEST: usize = 3;

/// Numbers of tokens that products are timed with: one, the fewest that a prompt's batch has, a whole tile of the kernels', and
/// the longest batch that is chosen where all stays. Longer ones take as much more as they are longer.
const BATCHES: [usize; 3] = [8, 64, crate::budget::MOST_RESIDENT];

/// From this many tokens on a pass is timed once, and only with weights that stay: it takes long, and what it costs to get
/// weights differs no further.
const LONG: usize = 100;

/// A number of tokens is not tried when it would take this long, as it does on a slow machine.
const TOO_LONG: f64 = 1.0;

/// Attention is timed at the position asked for, up to this one; beyond, it grows by as much for each position.
const FAR: usize = 1024;

/// Tokens of the prompt whose speed is predicted, or as many as the context has.
const PROMPT: usize = 512;

/// What was measured, in bytes and seconds; None where there was nothing to measure or no way to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Direct reads of this file.
    pub disk_bytes_s: Option<f64>,
    /// A pass of one token whose weights come from the page cache, products included.
    pub cached_bytes_s: Option<f64>,
    /// A pass of one token whose weights stay, all between products included.
    pub resident_bytes_s: Option<f64>,
    /// Reading what stays and nothing else.
    pub memory_bytes_s: Option<f64>,
    /// Multiplications of weights and activations per second, for the longest batch that was tried.
    pub prefill_products_s: Option<f64>,
    /// How long all this took.
    pub took_s: f64,
}

/// The speed at one budget; None where it cannot be told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Streamed bytes are in the page cache.
    pub warm: Option<Speed>,
    /// Streamed bytes come from the disk in every pass.
    pub cold: Option<Speed>,
}

/// Speeds at several budgets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forecast {
    /// Tokens of the prompt that prefill is told for.
    pub prompt: usize,
    /// Position that decode is told for: the middle of the context, so that it is the mean of a text that fills it.
    pub position: usize,
    /// What it is reckoned from.
    pub measured: Measured,
    /// By budget, in the order they were planned.
    pub outlooks: Vec<Outlook>,
    /// Why something is not told, a line each.
    pub notes: Vec<String>,
}

/// What a run at one budget would take.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// What memory is for; its total is what the run reports as predicted.
    pub ledger: Ledger,
    /// Ceiling that the plan keeps to; None when nobody set one and the system does not say what there is.
    pub budget: Option<u64>,
    /// Bytes of weights that stay.
    pub resident_bytes: u64,
    /// Bytes that a pass with head streams.
    pub streamed_bytes_per_pass: u64,
    /// Backend in force.
    pub backend: &'static str,
    /// What was decided on the caller's behalf, a line each.
    pub notes: Vec<String>,
}

/// Plans runs of one model at several budgets, and then measures how fast they would be.
///
/// All of them are planned as if each were the first thing this process does, so that memory is what a run by itself reports.
pub struct Planner<'m> {
    model: &'m Model,
    options: &'m Options,
    ways: Ways<'m>,
    runs: Vec<Runs>,
}

impl<'m> Planner<'m> {
    /// A planner of sessions on `model` with `options`, whose budget is not looked at. Memory is counted from now on.
    ///
    /// # Errors
    /// When options contradict each other or the model.
    pub fn new(model: &'m Model, options: &'m Options) -> Result<Self> {
        Ok(Self { model, options, ways: Ways::new(model, options)?, runs: Vec::new() })
    }

    /// Plans a run at `budget`, as [`crate::Session::open`] does: nothing of the weights is read.
    ///
    /// # Errors
    /// As [`crate::Session::open`]. A budget that cannot be kept gets no outlook.
    pub fn plan(&mut self, budget: Budget) -> Result<Planned> {
        let (planned, runs) = self.ways.plan(&Options { budget, ..self.options.clone() })?;
        self.runs.push(runs);
        Ok(planned)
    }

    /// Measures, and tells the speed of every run that was planned.
    ///
    /// # Errors
    /// All that reading can meet.
    pub fn forecast(self) -> Result<Forecast> {
        let Self { model, options, ways, runs } = self;
        let prompt = PROMPT.min(options.context).max(1);
        let began = Instant::now();
        let workers = options.threads.unwrap_or_else(Team::default_workers);
        let all = runs.iter().flat_map(|runs| [runs.warm, runs.cold]).flatten();
        let longest = all.map(|run| run.work.batch).max();
        let mut probe = Probe {
            model,
            options,
            team: Arc::new(Team::new(workers)?),
            prompt,
            position: options.context / 2,
            longest: longest.unwrap_or(1).min(prompt),
            measured: Measured::default(),
        };
        let rates = probe.all(&ways)?;
        let disk = probe.measured.disk_bytes_s;
        let of = |run: Option<Run>, cold: bool| -> Option<Speed> {
            let run = run?;
            let rate = &rates[run.way];
            let mut speed = speed(&run.work, &rate.compute, &rate.streaming, prompt);
            if cold && matches!(rate.streaming, Streaming::InTurn { .. }) {
                // Mapped for good: read once, from the disk.
                speed.start_s = disk.map_or(speed.start_s, |disk| run.work.resident as f64 / disk);
            }
            Some(speed)
        };
        let outlooks = runs.iter().map(|r| Outlook { warm: of(r.warm, false), cold: of(r.cold, true) });
        let outlooks = outlooks.collect();
        probe.measured.took_s = began.elapsed().as_secs_f64();
        let Probe { position, measured, .. } = probe;
        Ok(Forecast { prompt, position, measured, outlooks, notes: ways.notes })
    }
}

/// What was measured of a way.
struct Rate {
    streaming: Streaming,
    compute: Compute,
}

/// Seconds that passes of the whole model take when all is streamed.
struct Streamed {
    /// Of one token, with head.
    pass_s: f64,
    /// Of several, by their number, without.
    several: Vec<(usize, f64)>,
    /// What products alone took, shared among workers, for where there is no memory to keep a sample.
    products: Compute,
}

struct Probe<'m> {
    model: &'m Model,
    options: &'m Options,
    team: Arc<Team>,
    prompt: usize,
    position: usize,
    /// Tokens in the longest batch of all runs.
    longest: usize,
    measured: Measured,
}

impl<'m> Probe<'m> {
    /// The rates of all ways, in their order.
    fn all(&mut self, ways: &Ways<'_>) -> Result<Vec<Rate>> {
        let mut part = Part::of(self.model, SAMPLE);
        let fits = |part: &Part, plan: &Plan| -> Result<bool> {
            let bytes = part.bytes(plan, self.model)?;
            // As much again for cache and activations, and so that nobody is pushed out.
            Ok(available(self.team.workers()).is_none_or(|left| 2 * bytes < left))
        };
        let mut keeps = match ways.all.first() {
            Some(way) => fits(&part, &way.plan)?,
            None => return Ok(Vec::new()),
        };
        if !keeps {
            part = Part::of(self.model, 1);
            keeps = fits(&part, &ways.all[0].plan)?;
        }
        // Copies and mappings lie in different pages, and one of each is enough: of the ways that copy the first that
        // finds its bytes in the page cache.
        let mut rates: Vec<Option<Rate>> = ways.all.iter().map(|_| None).collect();
        let mut computed: [Option<(Compute, f64)>; 2] = [None, None];
        let mut order: Vec<usize> = (0..ways.all.len()).collect();
        order.sort_by_key(|&i| ways.all[i].backend.depth() > 0);
        for i in order {
            let way = &ways.all[i];
            let kind = usize::from(way.backend.maps());
            let whole = size(&way.plan, &self.model.table, self.model.llama.output.head.weight);
            let lazy = way.backend.depth() == 0;
            // The first to come brings the sample into the page cache.
            let streamed =
                if lazy || !keeps { Some(self.streamed(&part, way, &whole, keeps)?) } else { None };
            let (compute, fill_s_per_byte) = match (&computed[kind], &streamed) {
                (Some(known), _) => known.clone(),
                // Nothing can be kept here, so nothing needs to be got first.
                (None, Some(streamed)) if !keeps => (streamed.products.clone(), 0.0),
                _ => {
                    let other = computed[1 - kind].as_ref().map(|(compute, _)| compute);
                    self.resident(&part, way, &whole, other)?
                }
            };
            computed[kind] = Some((compute.clone(), fill_s_per_byte));
            let streaming = match &streamed {
                Some(streamed) if lazy => {
                    let bytes = whole.layer_bytes + whole.head_bytes;
                    let resident = compute.layers(1) + compute.head;
                    self.measured.cached_bytes_s.get_or_insert(bytes / streamed.pass_s);
                    // A single token's bytes and their order do not make its pass faster, whatever the measurements say.
                    let mut s_per_byte = vec![(1, (streamed.pass_s - resident).max(0.0) / bytes)];
                    let several = streamed.several.iter();
                    s_per_byte.extend(several.map(|&(tokens, seconds)| {
                        (tokens, (seconds - compute.layers(tokens)) / whole.layer_bytes)
                    }));
                    Streaming::InTurn { s_per_byte, fill_s_per_byte }
                }
                _ => {
                    let more = TRIAL_PER_GB.mul_f64(self.model.file_bytes as f64 / 1e9);
                    let bytes_s =
                        self.disk(way, false, MOST_READ, (SHORTEST_TRIAL + more).min(LONGEST_TRIAL))?;
                    let fill_bytes_s = match keeps {
                        true => self.disk(way, true, SAMPLE, SHORTEST_TRIAL)?,
                        false => bytes_s,
                    };
                    self.measured.disk_bytes_s.get_or_insert(bytes_s);
                    Streaming::Ahead { bytes_s, fill_bytes_s }
                }
            };
            rates[i] = Some(Rate { streaming, compute });
        }
        Ok(rates.into_iter().flatten().collect())
    }

    fn sample(&self, part: &Part, way: &Way, stay: bool) -> Result<Sample<'m>> {
        let mut sample =
            Sample::new(self.model, part, &way.plan, &way.backend, &self.team, self.options, stay)?;
        sample.fill(self.position.min(FAR));
        Ok(sample)
    }

    /// Times passes of the sample when all of it is streamed; those of several tokens only where there is something to compare
    /// them with, because a sample can be kept too.
    fn streamed(&self, part: &Part, way: &Way, whole: &Size, keeps: bool) -> Result<Streamed> {
        let mut sample = self.sample(part, way, false)?;
        let at = self.position.min(FAR);
        // Twice for the page cache: the second finds it filled.
        for _ in 0..2 {
            sample.pass_s(1, at, PassKind::WithHead)?;
        }
        let (before, mut passes) = (sample.compute_s(), 0.0);
        let with = typical(|| {
            passes += 1.0;
            sample.pass_s(1, at, PassKind::WithHead)
        })?;
        let Size { layer_bytes, layer_weights, head_bytes } = sample.size;
        let scale = (whole.layer_bytes + whole.head_bytes) / (layer_bytes + head_bytes);
        let products = (sample.compute_s() - before) / passes / self.team.workers() as f64 * scale;
        let mut several = Vec::new();
        let batches = if keeps { self.batches() } else { BTreeSet::new() };
        for tokens in batches.into_iter().filter(|tokens| *tokens < LONG) {
            if with * tokens as f64 > TOO_LONG {
                break;
            }
            let took = shorter(|| sample.pass_s(tokens, (self.prompt - tokens) / 2, PassKind::WithoutHead))?;
            several.push((tokens, took * whole.layer_weights / layer_weights));
        }
        let products = Compute { layers: vec![(1, products)], head: 0.0 };
        Ok(Streamed { pass_s: with * scale, several, products })
    }

    /// Times passes of the sample with all of it in memory, and how long a byte takes to get there. Of `known`, measured
    /// otherwise, all but the single token holds.
    fn resident(
        &mut self,
        part: &Part,
        way: &Way,
        whole: &Size,
        known: Option<&Compute>,
    ) -> Result<(Compute, f64)> {
        let mut sample = self.sample(part, way, true)?;
        let far = self.position.min(FAR);
        let first = sample.pass_s(1, far, PassKind::WithHead)?;
        let with = typical(|| sample.pass_s(1, far, PassKind::WithHead))?;
        let without = typical(|| sample.pass_s(1, far, PassKind::WithoutHead))?;
        let Size { layer_bytes, layer_weights, head_bytes } = sample.size;
        let fill = (first - with).max(0.0) / sample.resident as f64;
        let mut single = without * whole.layer_bytes / layer_bytes;
        if self.position > FAR {
            let near = typical(|| sample.pass_s(1, 0, PassKind::WithoutHead))?;
            let slope = (without - near).max(0.0) / FAR as f64 * whole.layer_bytes / layer_bytes;
            single += slope * (self.position - FAR) as f64;
        }
        let head = (with - without).max(0.0) * whole.head_bytes / head_bytes;
        let mut layers = vec![(1, single)];
        if let Some(known) = known {
            layers.extend(&known.layers[1..]);
        } else {
            for tokens in self.batches() {
                let (before, took) = layers[layers.len() - 1];
                if took / before as f64 * tokens as f64 * layer_weights / whole.layer_weights > TOO_LONG {
                    break;
                }
                // In the middle of the prompt, so that attention sees as much as it does on average.
                let first = (self.prompt - tokens) / 2;
                let mut once = || sample.pass_s(tokens, first, PassKind::WithoutHead);
                let took = if tokens < LONG { shorter(once)? } else { once()? };
                layers.push((tokens, took * whole.layer_weights / layer_weights));
                self.measured.prefill_products_s = Some(tokens as f64 * layer_weights / took);
            }
            self.measured.memory_bytes_s = Some(sample.read_rate()?);
        }
        let all = whole.layer_bytes + whole.head_bytes;
        self.measured.resident_bytes_s = Some(all / (single + head));
        Ok((Compute { layers, head }, fill))
    }

    /// Numbers of tokens to time beside one.
    fn batches(&self) -> BTreeSet<usize> {
        let usual = BATCHES.into_iter().map(|tokens| tokens.min(self.longest));
        usual.filter(|tokens| *tokens > 1).collect()
    }

    /// Bytes per second that `way` brings from the disk while nobody multiplies, for as long as `time` and up to `most` bytes.
    /// What stays (`stay`) goes into memory of its own, and is brought once.
    fn disk(&self, way: &Way, stay: bool, most: u64, time: Duration) -> Result<f64> {
        let schedule = way.plan.schedule(&self.model.table)?;
        let steps: Vec<Step> = schedule.steps().iter().map(|s| Step { resident: stay, ..*s }).collect();
        let pass = schedule.pass(0);
        let bytes: u64 = pass.iter().map(|step| steps[*step as usize].range.len as u64).sum();
        let order = if bytes <= most { pass.to_vec() } else { places(pass, most, bytes) };
        let passes = if stay { 1 } else { (most / bytes.max(1)).max(1) };
        let stream =
            Stream::new(Arc::clone(&way.backend), Schedule::new(steps, vec![order])?, self.team.workers())?;
        walk(&stream, &self.team, passes, time)
    }
}

/// Of the steps of a pass of `bytes` those that come to about `wanted`, in runs at [`PLACES`] places.
fn places(pass: &[u32], wanted: u64, bytes: u64) -> Vec<u32> {
    let run = pass.len().div_ceil(PLACES);
    let count = ((run as f64 * wanted as f64 / bytes as f64) as usize).clamp(1, run);
    pass.chunks(run).flat_map(|run| &run[..count.min(run.len())]).copied().collect()
}

/// The shorter of two measurements: the first of a number of tokens makes room for its activations.
fn shorter(mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    Ok(measure()?.min(measure()?))
}

/// The mean of at least [`FEWEST`] measurements, for as long as [`REPEAT`].
fn typical(mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let began = Instant::now();
    let (mut sum, mut count) = (0.0, 0);
    while count < FEWEST || began.elapsed() < REPEAT {
        sum += measure()?;
        count += 1;
    }
    Ok(sum / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::kv::KvFormat;
    use crate::options::{BackendChoice, Direct, Placement};

    #[test]
    fn places_are_spread_and_come_to_what_was_wanted() {
        let pass: Vec<u32> = (0..1000).collect();
        let some = places(&pass, 100, 1000);
        assert_eq!(some.len(), PLACES * 12);
        assert!(some.is_sorted() && some.contains(&0) && some.contains(&875));
        assert_eq!(places(&pass[..3], 1, 1000), [0, 1, 2], "a step of each at the least");
    }

    #[test]
    fn every_budget_of_a_model_has_speeds() {
        use sluice_fixtures::{Spec, TensorType};
        let dir = tempfile::TempDir::new().expect("a temporary folder");
        let path = dir.path().join("tiny.gguf");
        let spec = Spec::tiny(TensorType::Q8_0);
        std::fs::write(&path, spec.to_bytes().expect("a valid spec")).expect("room for a tiny model");
        let model = Model::open(&path).expect("a whole model");
        for (context, kv) in [(1, KvFormat::F32), (100, KvFormat::F16)] {
            for (direct, backend) in [(Direct::Auto, BackendChoice::Auto), (Direct::Off, BackendChoice::Mmap)]
            {
                let place = [Placement::Auto, Placement::Stream][context % 2];
                let options = Options {
                    kv,
                    direct,
                    backend,
                    layers: place,
                    head: place,
                    threads: Some(2),
                    ..Options::new(context)
                };
                let mut planner = Planner::new(&model, &options).expect("sound options");
                for budget in [Budget::Auto, Budget::Min, Budget::Bytes(1 << 40)] {
                    planner.plan(budget).expect("a budget that can be kept");
                }
                let refused = planner.plan(Budget::Bytes(1));
                assert!(matches!(refused, Err(Error::Budget(_))), "{refused:?}");
                let forecast = planner.forecast().expect("speeds");
                assert_eq!((forecast.prompt, forecast.position), (context, context / 2));
                assert_eq!(forecast.outlooks.len(), 3, "none for a budget that cannot be kept");
                for outlook in &forecast.outlooks {
                    assert!(outlook.warm.is_some(), "{forecast:?}");
                    for speed in [outlook.warm, outlook.cold].into_iter().flatten() {
                        let Speed { decode_tok_s, prefill_tok_s, start_s } = speed;
                        assert!(decode_tok_s.is_finite() && decode_tok_s > 0.0, "{forecast:?}");
                        assert!(prefill_tok_s.is_finite() && prefill_tok_s > 0.0, "{forecast:?}");
                        assert!(start_s.is_finite() && start_s >= 0.0, "{forecast:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn plans_do_not_count_what_the_process_has_grown_by_meanwhile() {
        use sluice_fixtures::{Spec, TensorType};
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let spec = Spec { vocab: 50_000, ..Spec::tiny(TensorType::Q8_0) };
        spec.write_to(&file).expect("room for a small model");
        let model = Model::open(file.path()).expect("a whole model");
        let options = Options { direct: Direct::Off, threads: Some(2), ..Options::new(64) };
        let mut planner = Planner::new(&model, &options).expect("sound options");
        let least = planner.plan(Budget::Min).expect("the least always works").ledger;
        // Watching memory is priced where something may stay: 28 KiB.
        let tight = Budget::Bytes(least.total() + 100_000);
        let first = planner.plan(tight).expect("more than the least");
        std::hint::black_box(vec![1u8; 8 << 20]);
        let grown = std::hint::black_box(vec![1u8; 8 << 20]);
        assert_eq!(planner.plan(Budget::Min).expect("the least always works").ledger, least);
        assert_eq!(planner.plan(tight).expect("what could be kept still can"), first);
        drop(grown);
        let forecast = planner.forecast().expect("speeds");
        assert!(forecast.outlooks.iter().all(|outlook| outlook.warm.is_some()), "{forecast:?}");
    }

    #[test]
    fn typical_is_the_mean_of_some() {
        let mut values = [5.0, 1.0, 3.0].into_iter();
        let took = typical(|| {
            std::thread::sleep(REPEAT / 3);
            Ok(values.next().expect("no more than are needed"))
        });
        assert_eq!(took.expect("no error"), 3.0);
    }
}
