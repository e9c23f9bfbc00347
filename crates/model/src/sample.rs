//! Choosing the next token from logits.
//!
//! In this order: the repeat penalty; then, unless the temperature is 0, top-k, top-p and min-p on the probabilities at
//! temperature 1, and a draw at the temperature asked for among the tokens that are left (llama.cpp's order). Equal
//! logits rank by id, lowest first. The same seed, logits and history give the same token on every machine.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};
use sluice_kernels::{Isa, vector};
use std::cmp::Ordering;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;

/// How tokens are chosen. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Temperature; 0 takes the largest logit (greedy).
    pub temp: f32,
    /// Choose among this many tokens with the largest logits; 0 for all.
    pub top_k: usize,
    /// Choose among the fewest tokens whose probabilities add up to this, from 0 (the largest alone) to 1 (all).
    pub top_p: f32,
    /// Choose among the tokens that are at least this times as probable as the most probable one; 0 for all.
    pub min_p: f32,
    /// Makes tokens that came before less likely: their logits are divided by it if positive, else multiplied. 1
    /// for off.
    pub repeat_penalty: f32,
    /// How many of the last tokens count as having come before.
    pub repeat_last_n: usize,
    /// Start of the random numbers; `None` for a random one ([`Sampler::seed`] tells which).
    pub seed: Option<u64>,
}

impl Default for SamplerOptions {
    fn default() -> SamplerOptions {
        SamplerOptions {
            temp: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64, // long enough for a loop of some sentences, short enough to let words come back
            seed: None,
        }
    }
}

/// An option outside its range.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerError {
    flag: &'static str,
    wanted: &'static str,
    found: f32,
}

impl SamplerError {
    /// The command-line flag at fault, as in `--temp`.
    pub fn flag(&self) -> &'static str {
        self.flag
    }
}

impl fmt::Display for SamplerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: wanted {}, found {}", self.flag, self.wanted, self.found)
    }
}

impl std::error::Error for SamplerError {}

/// A logit that is not a number, or infinite: the weights are damaged or a sum overflowed, and any choice would be
/// noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NonFinite {
    /// The first token with such a logit.
    pub id: usize,
    /// The logit.
    pub value: f32,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the logit of token {} is {}, wanted a finite number", self.id, self.value)
    }
}

impl std::error::Error for NonFinite {}

/// Chooses tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    seed: u64,
    rng: Pcg64,
    ids: Vec<u32>,     // candidates
    weights: Vec<f32>, // of the first candidates, relative to the most probable one
    isa: Isa,
}

impl Sampler {
    /// A sampler with these options.
    ///
    /// # Errors
    /// When an option is negative, not a number or otherwise out of range; names its flag.
    pub fn new(options: SamplerOptions) -> Result<Sampler, SamplerError> {
        let check = |flag, value: f32, wanted, fits: bool| {
            if fits && !value.is_nan() { Ok(()) } else { Err(SamplerError { flag, wanted, found: value }) }
        };
        let SamplerOptions { temp, top_p, min_p, repeat_penalty, .. } = options;
        check("--temp", temp, "a finite number of at least 0", (0.0..=f32::MAX).contains(&temp))?;
        check("--top-p", top_p, "a number from 0 to 1 (1 is off)", (0.0..=1.0).contains(&top_p))?;
        check("--min-p", min_p, "a number from 0 to 1 (0 is off)", (0.0..=1.0).contains(&min_p))?;
        let positive = repeat_penalty > 0.0 && repeat_penalty.is_finite();
        check("--repeat-penalty", repeat_penalty, "a finite number above 0", positive)?;
        // The standard library's hash keys are random: a source of seeds that needs no crate.
        let seed = options.seed.unwrap_or_else(|| RandomState::new().hash_one("seed"));
        Ok(Sampler {
            options,
            seed,
            rng: Pcg64::seed_from_u64(seed),
            ids: Vec::new(),
            weights: Vec::new(),
            isa: Isa::detect().unwrap_or(Isa::scalar()), // all levels give the same bits
        })
    }

    /// The seed in force; given as an option it reproduces the choices.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next token, given a logit per token of the vocabulary and the tokens so far, oldest first. The repeat
    /// penalty is applied to `logits` in place.
    ///
    /// # Errors
    /// When a logit is not finite.
    ///
    /// # Panics
    /// If `logits` is empty.
    pub fn next(&mut self, logits: &mut [f32], history: &[u32]) -> Result<u32, NonFinite> {
        if let Some(id) = non_finite(logits) {
            return Err(NonFinite { id, value: logits[id] });
        }
        self.penalise(logits, history);
        let best = largest(logits);
        let SamplerOptions { temp, top_k, top_p, .. } = self.options;
        if temp == 0.0 || top_k == 1 || top_p == 0.0 {
            return Ok(best);
        }
        let top = logits[best as usize];
        self.ids.clear();
        match self.options.top_k {
            0 => self.ids.extend(0..logits.len() as u32),
            k => self.best_of_all(logits, k),
        }
        self.keep_top_p(logits, top);
        self.keep_min_p(logits, top);
        Ok(self.draw(logits, top))
    }

    /// Lowers the logits of the tokens that came last, each once.
    fn penalise(&mut self, logits: &mut [f32], history: &[u32]) {
        let SamplerOptions { repeat_penalty, repeat_last_n, .. } = self.options;
        if repeat_penalty == 1.0 {
            return;
        }
        self.ids.clear();
        self.ids.extend_from_slice(&history[history.len().saturating_sub(repeat_last_n)..]);
        self.ids.sort_unstable();
        self.ids.dedup();
        for &id in &self.ids {
            if let Some(logit) = logits.get_mut(id as usize) {
                let lowered = if *logit > 0.0 { *logit / repeat_penalty } else { *logit * repeat_penalty };
                *logit = lowered.clamp(f32::MIN, f32::MAX); // differences of logits must stay numbers
            }
        }
    }

    /// The `k` best of all tokens become the candidates, best first.
    ///
    /// One walk over the logits, in which few are looked at twice: to sort out 40 of 128 thousand by their ids takes milliseconds.
    fn best_of_all(&mut self, logits: &[f32], k: usize) {
        self.ids.clear();
        // Below it nobody is among the best any more; who equals it came too late.
        let mut bar = f32::NEG_INFINITY;
        for (group, values) in logits.chunks(LANES).enumerate() {
            if self.ids.len() >= k && values.iter().map(|&v| u32::from(v > bar)).sum::<u32>() == 0 {
                continue;
            }
            for (i, &value) in values.iter().enumerate() {
                if self.ids.len() < k || value > bar {
                    self.ids.push((group * LANES + i) as u32);
                }
            }
            if self.ids.len() >= k.saturating_mul(2).max(LANES) {
                self.sort_first(logits, k);
                self.ids.truncate(k);
                bar = logits[self.ids[k - 1] as usize];
            }
        }
        let k = k.min(self.ids.len());
        self.sort_first(logits, k);
        self.ids.truncate(k);
    }

    /// Keeps the fewest that have `top_p` of the probability, in order.
    fn keep_top_p(&mut self, logits: &[f32], top: f32) {
        let p = f64::from(self.options.top_p);
        if p >= 1.0 {
            return;
        }
        self.weigh(self.ids.len(), logits, top, 1.0);
        let wanted = p * self.weights.iter().copied().map(f64::from).sum::<f64>();
        // Usually a few tokens have nearly all of the probability: sort no more than that.
        const FIRST_TRY: usize = 256; // sorted in microseconds, against milliseconds for all of them
        let mut sorted = FIRST_TRY;
        let all = self.ids.len();
        loop {
            let n = sorted.min(all);
            if all == logits.len() {
                self.best_of_all(logits, n);
            } else {
                self.sort_first(logits, n);
            }
            self.weigh(n, logits, top, 1.0);
            let mut sum = 0.0;
            let enough = self.weights.iter().position(|&weight| {
                sum += f64::from(weight);
                sum >= wanted
            });
            match enough {
                Some(last) => return self.ids.truncate(last + 1),
                None if n == all => return, // rounding kept the sum just below
                None => sorted *= 8,
            }
        }
    }

    /// Keeps those at least `min_p` times as probable as the most probable.
    fn keep_min_p(&mut self, logits: &[f32], top: f32) {
        if self.options.min_p > 0.0 {
            self.weigh(self.ids.len(), logits, top, 1.0);
            let mut weights = self.weights.iter();
            let min_p = self.options.min_p;
            self.ids.retain(|_| weights.next().is_some_and(|&weight| weight >= min_p));
        }
    }

    /// Draws one of the candidates at the temperature.
    fn draw(&mut self, logits: &[f32], top: f32) -> u32 {
        self.weigh(self.ids.len(), logits, top, self.options.temp);
        let total: f64 = self.weights.iter().copied().map(f64::from).sum();
        // 53 random bits make a number in [0, 1) that f64 holds exactly.
        let mut left = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
        let mut chosen = None;
        for (&id, &weight) in self.ids.iter().zip(&self.weights) {
            if weight > 0.0 {
                chosen = Some(id);
                if left < f64::from(weight) {
                    break;
                }
            }
            left -= f64::from(weight);
        }
        chosen.expect("the most probable token is a candidate of weight 1")
    }

    /// Weighs the first `n` candidates: e^((logit − top) / temp).
    fn weigh(&mut self, n: usize, logits: &[f32], top: f32, temp: f32) {
        let exponent = |&id: &u32| {
            let below = f64::from(logits[id as usize]) - f64::from(top);
            // f64 holds the quotient for any temperature above 0; f32 may make it −∞, whose power is 0.
            (below / f64::from(temp)) as f32
        };
        self.weights.clear();
        self.weights.extend(self.ids[..n].iter().map(exponent));
        vector::exp(self.isa, &mut self.weights);
    }

    /// Moves the `n` best candidates to the front, best first.
    fn sort_first(&mut self, logits: &[f32], n: usize) {
        let order = |&a: &u32, &b: &u32| {
            let by_logit = logits[b as usize].partial_cmp(&logits[a as usize]);
            by_logit.unwrap_or(Ordering::Equal).then(a.cmp(&b))
        };
        if n < self.ids.len() {
            self.ids.select_nth_unstable_by(n, order);
        }
        self.ids[..n].sort_unstable_by(order);
    }
}

/// Logits looked at side by side.
const LANES: usize = 16;

/// The id of the largest logit, the lowest of equal ones.
fn largest(logits: &[f32]) -> u32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (groups, rest) = logits.as_chunks::<LANES>();
    for group in groups {
        for (max, &logit) in lanes.iter_mut().zip(group) {
            *max = if logit > *max { logit } else { *max };
        }
    }
    let max = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    first(logits, |logit| logit == max).unwrap_or(0) as u32
}

/// The first of these that is no number, or not a finite one.
pub fn non_finite(logits: &[f32]) -> Option<usize> {
    first(logits, |logit| !logit.is_finite())
}

/// Where the first of these is. Not as a search from the front: a loop that may end anywhere is not done with vectors.
fn first(logits: &[f32], is: impl Fn(f32) -> bool) -> Option<usize> {
    let found = |logit: &f32| u32::from(is(*logit));
    let group = logits.chunks(LANES * LANES).position(|group| group.iter().map(found).sum::<u32>() > 0)?;
    let start = group * LANES * LANES;
    logits[start..].iter().position(|logit| is(*logit)).map(|i| start + i)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(options: SamplerOptions) -> Sampler {
        Sampler::new(SamplerOptions { seed: options.seed.or(Some(1)), ..options }).unwrap()
    }

    /// How often each of the tokens is drawn.
    fn counts(options: SamplerOptions, logits: &[f32], draws: usize) -> Vec<usize> {
        let mut sampler = sampler(options);
        let mut counts = vec![0; logits.len()];
        for _ in 0..draws {
            counts[sampler.next(&mut logits.to_vec(), &[]).unwrap() as usize] += 1;
        }
        counts
    }

    fn warm(temp: f32) -> SamplerOptions {
        SamplerOptions { temp, ..Default::default() }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        let mut greedy = sampler(SamplerOptions::default());
        assert_eq!(greedy.next(&mut [1.0, 3.0, 3.0, -7.0], &[]), Ok(1));
        assert_eq!(greedy.next(&mut [0.0; 5], &[]), Ok(0));
        assert_eq!(greedy.next(&mut [-0.0, 0.0], &[]), Ok(0));
    }

    #[test]
    fn damaged_logits_are_an_error() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for options in [warm(0.0), warm(1.0)] {
                let found = sampler(options).next(&mut [0.0, bad, bad], &[]).unwrap_err();
                assert_eq!(found.id, 1);
                assert_eq!(found.value.to_bits(), bad.to_bits());
            }
        }
    }

    /// χ² of observed counts against probabilities.
    fn chi_square(counts: &[usize], probabilities: &[f64]) -> f64 {
        let draws: usize = counts.iter().sum();
        let term = |(&n, &p): (&usize, &f64)| (n as f64 - p * draws as f64).powi(2) / (p * draws as f64);
        counts.iter().zip(probabilities).map(term).sum()
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.0, 1.0, 2.0, -1.0, 0.5];
        for temp in [0.5, 1.0, 2.0] {
            let weights: Vec<f64> = logits.iter().map(|&l| f64::from(l / temp).exp()).collect();
            let total: f64 = weights.iter().sum();
            let probabilities: Vec<f64> = weights.iter().map(|w| w / total).collect();
            let found = chi_square(&counts(warm(temp), &logits, 20_000), &probabilities);
            assert!(found < 18.5, "{found}"); // exceeded once in 1000 by chance (4 degrees of freedom); the seed is fixed
        }
    }

    #[test]
    fn extreme_temperatures_work() {
        assert_eq!(counts(warm(1e-30), &[1.0, 1.0001, 0.0], 100), [0, 100, 0]);
        assert_eq!(counts(warm(f32::from_bits(1)), &[-3e38, 3e38], 100), [0, 100]);
        let flat = counts(warm(f32::MAX), &[1.0, -5.0], 10_000);
        assert!(flat.iter().all(|&n| n > 4500), "{flat:?}");
        let tied = counts(warm(1e-30), &[2.0, 2.0, 0.0], 10_000);
        assert!(tied[0] > 4500 && tied[1] > 4500, "{tied:?}");
    }

    #[test]
    fn top_k_keeps_the_largest_and_the_lowest_of_equals() {
        let top = |top_k| SamplerOptions { top_k, ..warm(1.0) };
        let found = counts(top(2), &[1.0, 2.0, 1.0, 1.0], 2000);
        assert!(found[0] > 0 && found[1] > 0 && found[2..] == [0, 0], "{found:?}");
        assert_eq!(counts(top(1), &[1.0, 1.1], 50), [0, 50]);
        assert!(counts(top(99), &[1.0, 1.0], 200).iter().all(|&n| n > 0));
    }

    #[test]
    fn the_best_of_all_are_those_of_a_whole_sort() {
        for (len, values) in [(1, 3), (15, 2), (16, 50), (700, 4), (5000, 7), (5000, 4999)] {
            let logits: Vec<f32> = (0..len).map(|i: u64| (i * i * 31 % values) as f32 - 1.0).collect();
            let mut sorted: Vec<u32> = (0..len as u32).collect();
            sorted.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
            for k in [1, 2, 7, 16, 40, 256, 6000] {
                let mut sampler = sampler(warm(1.0));
                sampler.best_of_all(&logits, k);
                assert_eq!(sampler.ids, sorted[..k.min(sorted.len())], "{k} of {len}");
            }
        }
    }

    #[test]
    fn top_p_keeps_the_fewest_that_suffice() {
        let top = |top_p| SamplerOptions { top_p, ..warm(1.0) };
        let logits = [0.1f32.ln(), 0.5f32.ln(), 0.1f32.ln(), 0.3f32.ln()];
        assert_eq!(counts(top(0.0), &logits, 100), [0, 100, 0, 0]);
        assert_eq!(counts(top(0.49), &logits, 100), [0, 100, 0, 0]);
        let found = counts(top(0.7), &logits, 1000);
        assert!(found[0] == 0 && found[2] == 0 && found[3] > 200, "{found:?}");
        let found = counts(top(0.85), &logits, 1000); // of the two tenths the lower id comes first
        assert!(found[0] > 50 && found[2] == 0, "{found:?}");
        assert!(counts(top(1.0), &logits, 1000).iter().all(|&n| n > 0));
        // A flat distribution needs more than the first try: exactly half of the tokens have half of it.
        let found = counts(top(0.5), &[0.0; 600], 3000);
        assert!(
            found[..300].iter().filter(|&&n| n > 0).count() > 290 && found[301..].iter().all(|&n| n == 0)
        );
    }

    #[test]
    fn min_p_is_relative_to_the_most_probable() {
        let options = SamplerOptions { min_p: 0.25, ..warm(1.0) };
        let found = counts(options, &[0.8f32.ln(), 0.19f32.ln(), 0.21f32.ln()], 2000);
        assert!(found[1] == 0 && found[2] > 100, "{found:?}");
        assert_eq!(counts(SamplerOptions { min_p: 1.0, ..warm(1.0) }, &[1.0, 2.0], 50), [0, 50]);
    }

    #[test]
    fn the_penalty_lowers_each_token_once() {
        let options = SamplerOptions { repeat_penalty: 2.0, repeat_last_n: 3, ..Default::default() };
        let mut logits = [4.0, -4.0, 3.0, 0.0, 4.0];
        // Token 4 is too long ago, 99 is no token, 0 came twice.
        assert_eq!(sampler(options.clone()).next(&mut logits, &[4, 0, 0, 1]), Ok(4));
        assert_eq!(logits, [2.0, -8.0, 3.0, 0.0, 4.0]);
        assert_eq!(sampler(options).next(&mut logits, &[99]), Ok(4));
        let off = SamplerOptions { repeat_penalty: 2.0, repeat_last_n: 0, ..Default::default() };
        assert_eq!(sampler(off).next(&mut [4.0, 3.0], &[0]), Ok(0));
        let up = SamplerOptions { repeat_penalty: 0.1, ..warm(1.0) };
        assert_eq!(sampler(up).next(&mut [3e38, 0.0], &[0]), Ok(0));
    }

    #[test]
    fn a_seed_reproduces_and_seeds_differ() {
        let run = |seed| {
            let mut sampler = Sampler::new(SamplerOptions { seed, ..warm(1.0) }).unwrap();
            let ids: Vec<u32> = (0..50).map(|_| sampler.next(&mut [0.0; 100], &[]).unwrap()).collect();
            (sampler.seed(), ids)
        };
        assert_eq!(run(Some(7)), run(Some(7)));
        assert_ne!(run(Some(7)).1, run(Some(8)).1);
        let (seed, ids) = run(None);
        assert_eq!(run(Some(seed)).1, ids);
        assert_ne!(run(None).0, seed);
    }

    #[test]
    fn options_out_of_range_name_their_flag() {
        let good = SamplerOptions::default;
        for bad in [-1.0, f32::NAN, f32::NEG_INFINITY] {
            let flag = |options| Sampler::new(options).unwrap_err().flag();
            assert_eq!(flag(SamplerOptions { temp: bad, ..good() }), "--temp");
            assert_eq!(flag(SamplerOptions { top_p: bad, ..good() }), "--top-p");
            assert_eq!(flag(SamplerOptions { min_p: bad, ..good() }), "--min-p");
            assert_eq!(flag(SamplerOptions { repeat_penalty: bad, ..good() }), "--repeat-penalty");
        }
        for bad in [1.001, 7.0, f32::INFINITY] {
            let flag = |options| Sampler::new(options).unwrap_err().flag();
            assert_eq!(flag(SamplerOptions { top_p: bad, ..good() }), "--top-p");
            assert_eq!(flag(SamplerOptions { min_p: bad, ..good() }), "--min-p");
        }
        let error = Sampler::new(SamplerOptions { repeat_penalty: 0.0, ..good() }).unwrap_err();
        assert_eq!(error.to_string(), "--repeat-penalty: wanted a finite number above 0, found 0");
    }
}
