//! Grouped-query attention over the cached positions.

use sluice_kernels::Isa;
use sluice_kernels::attention::{dots, weighted_sums};
use sluice_kernels::transpose::transpose;
use sluice_kernels::vector::softmax;

use crate::config::Config;
use crate::error::Result;
use crate::kv::{LayerKv, PAGE};
use crate::layers::{Linear, Pass, by_tokens};
use crate::state::{add_bias, scratch, sized};
use crate::team::Team;
use crate::weights::Weights;

/// Below this many multiplications attention stays on one worker: they take it some microseconds, and a region of workers that
/// spin one or two. Measured with one token at a time: 2^18 is 4 % slower with SmolLM2; 2^12 to 2^16 are alike, and models of
/// 1 and 8 billion weights do not care.
const WORTH_A_REGION: usize = 1 << 15;

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
        let (dim, tokens, isa, team) = (config.dim, pass.tokens, pass.isa, pass.team);
        let (heads, kv_heads) = (config.heads, config.kv_heads[layer]);
        pass.norm(&self.norm, 0);

        let s = &mut *pass.state;
        let widths = [heads * config.key_len, kv_heads * config.key_len, kv_heads * config.value_len];
        let [yq, yk, yv] = &mut s.y;
        let (yq, yk, yv) = (
            scratch(yq, widths[0] * tokens),
            scratch(yk, widths[1] * tokens),
            scratch(yv, widths[2] * tokens),
        );
        let group = [self.q.weight, self.k.weight, self.v.weight];
        pass.weights.matmul(&group, &mut s.acts, &mut [&mut *yq, &mut *yk, &mut *yv])?;
        let pairs = config.rope.dim / 2;
        let rotate = |token: usize, x: &mut [f32]| {
            let (cos, sin) = (&s.cos[token * pairs..][..pairs], &s.sin[token * pairs..][..pairs]);
            x.chunks_exact_mut(config.key_len).for_each(|head| config.rope.style.apply(head, cos, sin));
        };
        for (linear, y, turned, width, rotated) in [
            (&self.q, yq, &mut s.q, widths[0], true),
            (&self.k, yk, &mut s.k, widths[1], true),
            (&self.v, yv, &mut s.v, widths[2], false),
        ] {
            add_bias(y, linear.bias.as_deref(), tokens);
            let y = &*y;
            by_tokens(team, tokens, sized(turned, y.len()), width, |range, out| {
                transpose(isa, y, tokens, range.clone(), out);
                if rotated {
                    range.zip(out.chunks_exact_mut(width)).for_each(|(token, x)| rotate(token, x));
                }
            });
        }
        let kv = pass.kv.layer(layer);
        kv.store(pass.first, &s.k, &s.v);

        let width = heads * config.value_len;
        let by_head = scratch(&mut s.y[0], tokens * width);
        Attend { isa, config, kv_heads, kv, first: pass.first, q: &s.q }.run(team, by_head);
        let by_head = &*by_head;
        let per_head = width / kv_heads;
        by_tokens(team, tokens, s.acts.reset(tokens, width), width, |range, out| {
            for (token, out) in range.zip(out.chunks_exact_mut(width)) {
                for (head, out) in out.chunks_exact_mut(per_head).enumerate() {
                    out.copy_from_slice(&by_head[(head * tokens + token) * per_head..][..per_head]);
                }
            }
        });
        let y = scratch(&mut s.y[0], dim * tokens);
        pass.weights.matmul(&[self.out.weight], &mut s.acts, &mut [y])?;
        add_bias(y, self.out.bias.as_deref(), tokens);
        pass.add_product();
        Ok(())
    }
}

/// Softmax(q·kᵀ/√d)·v, one task per kv head and tile of tokens: a page of keys or values is decoded once for all of
/// them.
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

/// Rows of scores that a task keeps, a query head of a token each: enough that decoding a page of the cache is small beside
/// its use, and at 4096 positions still only half a megabyte per worker.
const SCORE_ROWS: usize = 32;

/// Bytes that a worker's buffers take at most when `context` positions are seen.
pub fn scores_bytes(config: &Config, context: usize) -> usize {
    let kv_heads = config.kv_heads.iter().min().copied().unwrap_or(1).max(1);
    let rows = SCORE_ROWS.max(config.heads / kv_heads);
    let pages = PAGE * (config.key_len.max(config.value_len) + config.key_len);
    context.saturating_mul(rows).saturating_add(pages).saturating_mul(size_of::<f32>())
}

/// Buffers of one worker.
#[derive(Default)]
struct Scratch {
    /// A page of keys or values, positions × size.
    rows: Vec<f32>,
    /// A page of keys, size × positions.
    keys: Vec<[f32; PAGE]>,
    /// Tokens of the tile × query heads of the kv head × positions.
    scores: Vec<f32>,
}

impl Attend<'_> {
    /// `out` is kv heads × tokens × (query heads of the kv head · value size).
    fn run(&self, team: &Team, out: &mut [f32]) {
        let Config { heads, key_len, value_len, .. } = *self.config;
        let tokens = self.q.len() / (heads * key_len);
        if tokens == 0 {
            return;
        }
        let group = heads / self.kv_heads;
        let tile = (SCORE_ROWS / group).clamp(1, tokens);
        // The last tiles see the most positions: they come first, so that the small ones fill the gaps at the end.
        let tiles =
            out.chunks_exact_mut(tokens * group * value_len).enumerate().flat_map(|(kv_head, out)| {
                let tiles = out.chunks_mut(tile * group * value_len).enumerate();
                tiles.map(move |(i, out)| (kv_head, i * tile, out)).rev()
            });
        let work = |scratch: &mut Scratch, (kv_head, first, out)| self.tile(kv_head, first, scratch, out);
        if tokens * (self.first + tokens) * heads * (key_len + value_len) < WORTH_A_REGION {
            let mut scratch = Scratch::default();
            tiles.for_each(|tile| work(&mut scratch, tile));
        } else {
            team.share_with(tiles, Scratch::default, work);
        }
    }

    /// The query heads of `kv_head` for tokens from `first` on; `out` is tokens × those heads × value size.
    fn tile(&self, kv_head: usize, first: usize, scratch: &mut Scratch, out: &mut [f32]) {
        let Config { heads, key_len, value_len, .. } = *self.config;
        let group = heads / self.kv_heads;
        let tokens = out.len() / (group * value_len);
        // Positions that token i of the tile sees, and those that the last one does.
        let seen = |i: usize| self.first + first + i + 1;
        let most = seen(tokens - 1);
        let query =
            |i: usize| &self.q[((first + i) * heads + kv_head * group) * key_len..][..group * key_len];
        // 1/√d by division and square root, both exactly rounded everywhere.
        let scale = 1.0 / (key_len as f32).sqrt();

        let scores = sized(&mut scratch.scores, tokens * group * most);
        let rows = sized(&mut scratch.rows, PAGE * key_len.max(value_len));
        scratch.keys.resize(key_len, [0.0; PAGE]);
        for (page, start) in (0..most).step_by(PAGE).enumerate() {
            self.kv.keys(self.isa, page, kv_head, (most - start).min(PAGE), rows);
            let keys = scratch.keys.as_flattened_mut();
            transpose(self.isa, &rows[..PAGE * key_len], key_len, 0..key_len, keys);
            for (i, scores) in scores.chunks_exact_mut(group * most).enumerate() {
                let count = seen(i).saturating_sub(start).min(PAGE);
                if count > 0 {
                    dots(self.isa, query(i), &scratch.keys, count, &mut scores[start..], most);
                }
            }
        }
        for (i, scores) in scores.chunks_exact_mut(group * most).enumerate() {
            for scores in scores.chunks_exact_mut(most) {
                let scores = &mut scores[..seen(i)];
                scores.iter_mut().for_each(|s| *s *= scale);
                softmax(self.isa, scores);
            }
        }
        out.fill(0.0);
        for (page, start) in (0..most).step_by(PAGE).enumerate() {
            self.kv.values(self.isa, page, kv_head, (most - start).min(PAGE), rows);
            let tiles = out.chunks_exact_mut(group * value_len).zip(scores.chunks_exact(group * most));
            for (i, (out, scores)) in tiles.enumerate() {
                let count = seen(i).saturating_sub(start).min(PAGE);
                if count > 0 {
                    weighted_sums(self.isa, &scores[start..], most, count, rows, value_len, out);
                }
            }
        }
    }
}
