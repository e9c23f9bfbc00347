//! Grouped-query attention over the cached positions.

use std::sync::Mutex;

use sluice_kernels::Isa;
use sluice_kernels::attention::{dots, weighted_sum};
use sluice_kernels::vector::{rms_norm, softmax};

use crate::config::Config;
use crate::error::Result;
use crate::kv::{LayerKv, PAGE};
use crate::layers::{Linear, Pass};
use crate::state::{add_bias, add_product, sized, to_token_major};
use crate::team::Team;
use crate::weights::Weights;

/// Below this many multiplications a parallel region costs more than it saves (waking a worker takes tens of
/// microseconds, in which a core does a few hundred thousand).
const WORTH_A_REGION: usize = 1 << 18;

/// Weights of one attention.
#[derive(Clone, Debug)]
pub struct Attention {
    /// RMSNorm before it, dim values.
    pub norm: Vec<f32>,
    /// heads · key size × dim.
    pub q: Linear,
    /// kv heads · key size × dim.
    pub k: Linear,
    /// kv heads · value size × dim.
    pub v: Linear,
    /// dim × heads · value size.
    pub out: Linear,
}

impl Attention {
    /// Adds the attention of layer `layer` to the hidden state, and its keys and values to the cache.
    pub fn run<W: Weights>(&self, pass: &mut Pass<'_, W>, layer: usize) -> Result<()> {
        let config = pass.config;
        let (dim, tokens, isa) = (config.dim, pass.tokens, pass.isa);
        let (heads, kv_heads) = (config.heads, config.kv_heads[layer]);
        let s = &mut *pass.state;
        rms_norm(isa, &s.x, &self.norm, config.eps, sized(&mut s.normed, tokens * dim));
        s.acts.fill(&s.normed, dim);

        let widths = [heads * config.key_len, kv_heads * config.key_len, kv_heads * config.value_len];
        let [yq, yk, yv] = &mut s.y;
        let (yq, yk, yv) =
            (sized(yq, widths[0] * tokens), sized(yk, widths[1] * tokens), sized(yv, widths[2] * tokens));
        let group = [self.q.weight, self.k.weight, self.v.weight];
        pass.weights.matmul(&group, &mut s.acts, &mut [&mut *yq, &mut *yk, &mut *yv])?;
        for (linear, y, turned) in [(&self.q, yq, &mut s.q), (&self.k, yk, &mut s.k), (&self.v, yv, &mut s.v)]
        {
            add_bias(y, linear.bias.as_deref(), tokens);
            let turned = sized(turned, y.len());
            to_token_major(y, tokens, turned);
        }

        let pairs = config.rope.dim / 2;
        for (x, width) in [(&mut s.q, widths[0]), (&mut s.k, widths[1])] {
            let rotations = s.cos.chunks_exact(pairs).zip(s.sin.chunks_exact(pairs));
            for (token, (cos, sin)) in x.chunks_exact_mut(width).zip(rotations) {
                for head in token.chunks_exact_mut(config.key_len) {
                    config.rope.style.apply(head, cos, sin);
                }
            }
        }
        let kv = pass.kv.layer(layer);
        kv.store(pass.first, &s.k, &s.v);

        let attended = sized(&mut s.attended, tokens * heads * config.value_len);
        Attend { isa, config, kv_heads, kv, first: pass.first, q: &s.q }.run(pass.team, attended);

        s.acts.fill(&s.attended, heads * config.value_len);
        let y = sized(&mut s.y[0], dim * tokens);
        pass.weights.matmul(&[self.out.weight], &mut s.acts, &mut [y])?;
        add_bias(y, self.out.bias.as_deref(), tokens);
        add_product(&mut s.x, y, tokens);
        Ok(())
    }
}

/// Softmax(q·kᵀ/√d)·v, one task per token and kv head.
///
/// Every sum runs over absolute positions in ascending order, so neither the batch nor the number of workers
/// shows in the result.
struct Attend<'a> {
    isa: Isa,
    config: &'a Config,
    kv_heads: usize,
    kv: &'a LayerKv,
    /// Position of the first token.
    first: usize,
    /// tokens × heads × key size.
    q: &'a [f32],
}

/// Buffers of one worker.
#[derive(Default)]
struct Scratch {
    /// A page of keys or values, positions × size.
    rows: Vec<f32>,
    /// Query heads of the kv head × positions.
    scores: Vec<f32>,
}

impl Attend<'_> {
    /// `out` is tokens × heads × value size.
    fn run(&self, team: &Team, out: &mut [f32]) {
        let per_task = self.config.heads / self.kv_heads * self.config.value_len;
        let tokens = self.q.len() / (self.config.heads * self.config.key_len);
        let work = tokens
            * (self.first + tokens)
            * self.config.heads
            * (self.config.key_len + self.config.value_len);
        let tasks = Mutex::new(out.chunks_exact_mut(per_task).enumerate());
        let worker = |_| {
            let mut scratch = Scratch::default();
            loop {
                let task = tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                let Some((index, out)) = task else { break };
                self.one(index / self.kv_heads, index % self.kv_heads, &mut scratch, out);
            }
        };
        if work < WORTH_A_REGION {
            worker(0);
        } else {
            team.run(worker);
        }
    }

    /// The query heads of `kv_head` for token `t`; `out` is those heads × value size.
    fn one(&self, t: usize, kv_head: usize, scratch: &mut Scratch, out: &mut [f32]) {
        let Config { heads, key_len, value_len, .. } = *self.config;
        let group = heads / self.kv_heads;
        let positions = self.first + t + 1;
        let queries = &self.q[(t * heads + kv_head * group) * key_len..][..group * key_len];
        // 1/√d by division and square root, both exactly rounded everywhere.
        let scale = 1.0 / (key_len as f32).sqrt();

        let scores = sized(&mut scratch.scores, group * positions);
        let rows = sized(&mut scratch.rows, PAGE * key_len.max(value_len));
        for (page, start) in (0..positions).step_by(PAGE).enumerate() {
            let count = (positions - start).min(PAGE);
            self.kv.keys(self.isa, page, kv_head, count, rows);
            for (query, scores) in queries.chunks_exact(key_len).zip(scores.chunks_exact_mut(positions)) {
                dots(self.isa, query, rows, key_len, &mut scores[start..start + count]);
            }
        }
        for scores in scores.chunks_exact_mut(positions) {
            scores.iter_mut().for_each(|s| *s *= scale);
            softmax(self.isa, scores);
        }
        out.fill(0.0);
        for (page, start) in (0..positions).step_by(PAGE).enumerate() {
            let count = (positions - start).min(PAGE);
            self.kv.values(self.isa, page, kv_head, count, rows);
            for (out, scores) in out.chunks_exact_mut(value_len).zip(scores.chunks_exact(positions)) {
                weighted_sum(self.isa, &scores[start..start + count], rows, value_len, out);
            }
        }
    }
}
