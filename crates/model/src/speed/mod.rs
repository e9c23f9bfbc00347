//! How fast a run will be: the arithmetic, from a few measured rates to tokens per second.
//!
//! [`probe`] measures on this machine, this file and this number of threads; what follows from it is here, and is pure:
//!
//! ```text
//! resident pass   C(n)  = layers(n) + head         seconds with all weights in memory, n tokens at a time
//! ahead           pass⁴ = (S / D)⁴ + C⁴            direct reads run ahead of the workers: S bytes streamed, D bytes/s
//! in turn         pass  = C + S · c(n)             the worker that needs a chunk gets it itself: c seconds a byte, with what it
//!                                                  costs to take chunks in their order instead of sharing them out, less
//!                                                  what it saves that a copy lies in the core's cache
//! decode          tok/s = 1 / pass(1 token, with head)
//! prefill         tok/s = P / Σ pass(batch)        over the batches of a prompt of P tokens; the last one with head
//! start           s     = reading what stays, once: its bytes / D', or · f seconds a byte to copy or map it from the cache
//! ```
//!
//! `layers(n)` and `head` come from running the forward pass itself over some of the model's layers and some rows of its
//! head, so that norms, attention at its position, barriers and whatever else no read hides are in them, as are memory's
//! bandwidth and the kernels' rates, whichever is the limit. Layers are alike, so the whole model takes as much more as it has
//! bytes (or, with many tokens, weights) more.
//!
//! **Warm** means that every streamed byte is found in the page cache; **cold** that it comes from the disk by a direct read, in
//! every pass. What stays is read in the first pass and never again, so where everything stays warm and cold differ in their
//! start only.

pub mod probe;
mod sample;
mod ways;

pub use probe::{Forecast, Measured, Outlook, Planned, Planner};

/// Seconds that passes take when all weights are in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Compute {
    /// Of the layers, by the number of tokens in the pass: ascending, at least one. The first is a single token.
    pub layers: Vec<(usize, f64)>,
    /// Of the head, for one token.
    pub head: f64,
}

impl Compute {
    /// Seconds of the layers in a pass of `tokens`: between two measured numbers on the line through them, beyond the last in
    /// proportion to it.
    ///
    /// # Panics
    /// When nothing was measured.
    pub fn layers(&self, tokens: usize) -> f64 {
        match line(&self.layers, tokens) {
            Ok(seconds) => seconds,
            Err((most, seconds)) => seconds * tokens as f64 / most as f64,
        }
    }
}

/// What `points`, ascending and at least one, say of `tokens`: the first of them below it, the line through both neighbours
/// between, and beyond the last that as an error.
fn line(points: &[(usize, f64)], tokens: usize) -> Result<f64, (usize, f64)> {
    match points.iter().position(|(at, _)| *at >= tokens) {
        Some(0) => Ok(points[0].1),
        Some(i) => {
            let ((n0, s0), (n1, s1)) = (points[i - 1], points[i]);
            Ok(s0 + (s1 - s0) * (tokens - n0) as f64 / (n1 - n0) as f64)
        }
        None => Err(points[points.len() - 1]),
    }
}

/// How streamed bytes reach the workers.
#[derive(Clone, Debug, PartialEq)]
pub enum Streaming {
    /// Reads run ahead while workers multiply.
    Ahead {
        /// Bytes per second that arrive when nobody multiplies.
        bytes_s: f64,
        /// The same of what stays: into memory that is new, and in small pages.
        fill_bytes_s: f64,
    },
    /// The worker that needs a chunk copies or maps it.
    InTurn {
        /// Seconds a byte beyond those of a byte that stays, all workers together, by the number of tokens in the pass: ascending,
        /// the first is a single token. With few tokens it is less than nothing: products of 8 tokens wait for memory, and a
        /// copy lies in the core's cache (1.1 billion weights, two workers: a pass of 48 ms copied, 59 ms in place; of one
        /// token 33 and 17).
        s_per_byte: Vec<(usize, f64)>,
        /// Seconds a byte for getting what stays, in the first pass.
        fill_s_per_byte: f64,
    },
}

impl Streaming {
    /// Seconds of a pass of `tokens` that takes `compute` seconds with all weights in memory and streams `bytes`.
    ///
    /// # Panics
    /// When nothing was measured.
    pub fn pass_s(&self, bytes: u64, tokens: usize, compute: f64) -> f64 {
        match self {
            Self::Ahead { bytes_s, .. } => both(bytes as f64 / bytes_s, compute),
            Self::InTurn { s_per_byte, .. } => {
                compute + bytes as f64 * line(s_per_byte, tokens).unwrap_or_else(|(_, last)| last)
            }
        }
    }

    /// Seconds of getting `bytes` that stay.
    pub fn fill_s(&self, bytes: u64) -> f64 {
        match self {
            Self::Ahead { fill_bytes_s, .. } => bytes as f64 / fill_bytes_s,
            Self::InTurn { fill_s_per_byte, .. } => bytes as f64 * fill_s_per_byte,
        }
    }
}

/// Seconds of two things that go on beside each other and hold each other up a little: the longer of them, and a fifth more where
/// they take equally long. The power is chosen to fit one case (8B with 2.5 GB and a prompt of 64 tokens: disk 0.95 s, cores 0.98 s,
/// the pass 1.2 s); where one takes half as long as the other it adds 1.5 %.
fn both(a: f64, b: f64) -> f64 {
    // Rounding may take it below either.
    (a * a).hypot(b * b).sqrt().max(a).max(b)
}

/// What a run reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes streamed by a pass with head.
    pub streamed: u64,
    /// Bytes streamed by a pass without.
    pub streamed_without_head: u64,
    /// Bytes that stay.
    pub resident: u64,
    /// Tokens of a prompt that go through together, at least 1.
    pub batch: usize,
}

/// Predicted speed of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Tokens per second while generating.
    pub decode_tok_s: f64,
    /// Tokens per second of a prompt, once what stays has been read.
    pub prefill_tok_s: f64,
    /// Seconds that the first pass takes beyond a later one, to read what stays.
    pub start_s: f64,
}

/// The speed of `work`: a prompt of `prompt` tokens, and single tokens.
///
/// # Panics
/// When nothing was measured, or the prompt or the batch is empty.
pub fn speed(work: &Work, compute: &Compute, streaming: &Streaming, prompt: usize) -> Speed {
    assert!(prompt > 0 && work.batch > 0, "a prompt of {prompt} in batches of {}", work.batch);
    let single = compute.layers(1) + compute.head;
    let decode = streaming.pass_s(work.streamed, 1, single);
    let last = (prompt - 1) % work.batch + 1;
    let before = (prompt - last) / work.batch;
    let full = streaming.pass_s(work.streamed_without_head, work.batch, compute.layers(work.batch));
    let prefill =
        before as f64 * full + streaming.pass_s(work.streamed, last, compute.layers(last) + compute.head);
    Speed {
        decode_tok_s: 1.0 / decode,
        prefill_tok_s: prompt as f64 / prefill,
        start_s: streaming.fill_s(work.resident),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compute() -> Compute {
        Compute { layers: vec![(1, 0.015), (8, 0.030), (264, 0.600)], head: 0.002 }
    }

    fn work(streamed: u64, batch: usize) -> Work {
        Work { streamed, streamed_without_head: streamed * 9 / 10, resident: 630_000_000 - streamed, batch }
    }

    #[test]
    fn a_slow_disk_is_all_that_counts_and_a_fast_one_does_not() {
        let slow = Streaming::Ahead { bytes_s: 1e9, fill_bytes_s: 5e8 };
        let s = speed(&work(500_000_000, 100), &compute(), &slow, 100);
        let near = |got: f64, wanted: f64| (got / wanted - 1.0).abs() < 1e-3;
        assert!(near(s.decode_tok_s, 1.0 / 0.5) && near(s.start_s, 0.26), "{s:?}");
        // 100 tokens take 0.24 s by themselves: a little over one hundredth of the pass.
        assert!(
            (0.98..0.99).contains(&(s.prefill_tok_s / (100.0 / 0.5))),
            "one pass, and it has a head: {s:?}"
        );
        let fast = Streaming::Ahead { bytes_s: 1e12, fill_bytes_s: 1e12 };
        let s = speed(&work(500_000_000, 264), &compute(), &fast, 528);
        assert!(near(s.decode_tok_s, 1.0 / (0.015 + 0.002)), "{s:?}");
        assert!(near(s.prefill_tok_s, 528.0 / (0.6 + (0.6 + 0.002))), "{s:?}");
        let even = slow.pass_s(1_000_000_000, 1, 1.0);
        assert!((1.18..1.2).contains(&even), "{even}: the disk and the cores hold each other up");
    }

    #[test]
    fn bytes_that_workers_fetch_themselves_come_on_top() {
        let s_per_byte = vec![(1, 1e-11), (8, -5e-12), (22, 5e-12)];
        let in_turn = Streaming::InTurn { s_per_byte, fill_s_per_byte: 1e-10 };
        let s = speed(&work(600_000_000, 8), &compute(), &in_turn, 16);
        assert_eq!(s.decode_tok_s, 1.0 / (0.015 + 0.002 + 0.006));
        assert!((s.start_s - 0.003).abs() < 1e-12);
        let two = (0.030 - 0.0027) + (0.030 + 0.002 - 0.003);
        assert!((s.prefill_tok_s - 16.0 / two).abs() < 1e-6, "{s:?}");
        let all = speed(&work(0, 8), &compute(), &in_turn, 16);
        assert_eq!(all.decode_tok_s, 1.0 / (0.015 + 0.002), "nothing is streamed, nothing is paid for");
        assert!((in_turn.pass_s(1_000_000_000, 15, 1.0) - 1.0).abs() < 1e-9, "half way");
        assert_eq!(in_turn.pass_s(1_000_000_000, 500, 1.0), 1.005, "beyond, as the last");
    }

    #[test]
    fn between_measured_batches_lies_a_line_and_beyond_them_a_rate() {
        let c = compute();
        assert_eq!([c.layers(1), c.layers(8), c.layers(264)], [0.015, 0.030, 0.600]);
        assert!((c.layers(136) - 0.315).abs() < 1e-12, "half way");
        assert_eq!(c.layers(528), 1.2);
        let single = Compute { layers: vec![(1, 0.5)], head: 0.0 };
        assert_eq!(single.layers(3), 1.5);
    }

    proptest! {
        /// More that stays is never slower, whatever the way.
        #[test]
        fn memory_never_costs_speed(
            less in 0..630_000_000u64,
            more in 0..630_000_000u64,
            batch in 1..600usize,
            prompt in 1..600usize,
            bytes_s in 1e7..1e11f64,
            ahead: bool,
        ) {
            let streaming = match ahead {
                true => Streaming::Ahead { bytes_s, fill_bytes_s: bytes_s },
                false => Streaming::InTurn {
                    s_per_byte: vec![(1, 1.0 / bytes_s)],
                    fill_s_per_byte: 1.0 / bytes_s,
                },
            };
            let at = |streamed| speed(&work(streamed, batch), &compute(), &streaming, prompt);
            let (small, large) = (at(less.max(more)), at(less.min(more)));
            prop_assert!(small.decode_tok_s.is_finite() && small.decode_tok_s > 0.0);
            prop_assert!(large.decode_tok_s >= small.decode_tok_s);
            prop_assert!(large.prefill_tok_s >= small.prefill_tok_s);
            prop_assert!(large.start_s >= small.start_s);
        }

        /// No pass is faster than its disk, nor than its products.
        #[test]
        fn both_limits_hold(bytes in 0..10_000_000_000u64, compute in 1e-4..10f64, bytes_s in 1e7..1e11f64) {
            let pass = Streaming::Ahead { bytes_s, fill_bytes_s: bytes_s }.pass_s(bytes, 1, compute);
            prop_assert!(pass >= compute && pass >= bytes as f64 / bytes_s);
            prop_assert!(pass <= 1.2 * compute.max(bytes as f64 / bytes_s));
        }
    }
}
