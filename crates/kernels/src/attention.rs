//! The two products of attention for one query head: scores against keys, and the sum of values weighted by them.
//!
//! Rows are f32 at a fixed distance, so that one head's part of wider rows needs no copy. Positions ascend and each output
//! has its own chain of sums, so cutting the positions into tiles changes no bit.

use crate::isa::{Isa, Portable};
use crate::numbers::{canonical, dot};

/// `scores[i]` = q · row i, where row `i` is `rows[i * stride..][..q.len()]`.
///
/// Each is 16 partial sums by index modulo 16, joined by halves, the tail padded with +0. No scores are fine.
///
/// # Panics
/// When `rows` ends before the last row does.
pub fn dots(isa: Isa, q: &[f32], rows: &[f32], stride: usize, scores: &mut [f32]) {
    check(rows, stride, q.len(), scores.len());
    isa.run(Dots { q, rows, stride, scores });
}

struct Dots<'a> {
    q: &'a [f32],
    rows: &'a [f32],
    stride: usize,
    scores: &'a mut [f32],
}

impl Portable for Dots<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for (i, score) in self.scores.iter_mut().enumerate() {
            *score = canonical(dot(self.q, &self.rows[i * self.stride..][..self.q.len()]));
        }
    }
}

/// `acc[d] = fma(weights[i], row i [d], acc[d])` for ascending `i`, where row `i` is `rows[i * stride..][..acc.len()]`.
///
/// # Panics
/// When `rows` ends before the last row does.
pub fn weighted_sum(isa: Isa, weights: &[f32], rows: &[f32], stride: usize, acc: &mut [f32]) {
    check(rows, stride, acc.len(), weights.len());
    isa.run(WeightedSum { weights, rows, stride, acc });
}

struct WeightedSum<'a> {
    weights: &'a [f32],
    rows: &'a [f32],
    stride: usize,
    acc: &'a mut [f32],
}

/// Columns that are summed over all positions before the next ones: four registers of eight, enough chains to hide the
/// latency of the additions.
const COLUMNS: usize = 32;

impl Portable for WeightedSum<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Self { weights, rows, stride, acc } = self;
        let (groups, tail) = acc.as_chunks_mut::<COLUMNS>();
        let whole = groups.len() * COLUMNS;
        for (group, acc) in groups.iter_mut().enumerate() {
            let mut sums = *acc;
            for (i, &weight) in weights.iter().enumerate() {
                let row = &rows[i * stride + group * COLUMNS..][..COLUMNS];
                for d in 0..COLUMNS {
                    sums[d] = weight.mul_add(row[d], sums[d]);
                }
            }
            *acc = sums.map(canonical);
        }
        for (d, acc) in tail.iter_mut().enumerate() {
            for (i, &weight) in weights.iter().enumerate() {
                *acc = weight.mul_add(rows[i * stride + whole + d], *acc);
            }
            *acc = canonical(*acc);
        }
    }
}

/// Panics unless `count` rows of `len` values, `stride` apart, lie within `rows`.
fn check(rows: &[f32], stride: usize, len: usize, count: usize) {
    let end = count.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(len));
    assert!(
        end.is_some_and(|end| end <= rows.len()),
        "{count} rows of {len} values, {stride} apart, in {} values",
        rows.len()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_integers_are_exact() {
        let rows: Vec<f32> = (0..5 * 40).map(|i| (i % 7) as f32 - 3.0).collect();
        let q: Vec<f32> = (0..37).map(|i| (i % 5) as f32 - 2.0).collect();
        for isa in Isa::available() {
            let mut scores = [9.0; 5];
            dots(isa, &q, &rows, 40, &mut scores);
            let mut acc = [1.0; 37];
            weighted_sum(isa, &scores, &rows, 40, &mut acc);
            for (i, &score) in scores.iter().enumerate() {
                let expected: f32 = (0..37).map(|d| q[d] * rows[i * 40 + d]).sum();
                assert_eq!(score, expected, "score {i}, {isa}");
            }
            for (d, &acc) in acc.iter().enumerate() {
                let expected: f32 = 1.0 + (0..5).map(|i| scores[i] * rows[i * 40 + d]).sum::<f32>();
                assert_eq!(acc, expected, "column {d}, {isa}");
            }
        }
    }

    #[test]
    fn tiles_of_positions_change_nothing() {
        let rows: Vec<f32> = (0..9 * 48).map(|i| (i as f32 * 0.37).sin()).collect();
        let weights: Vec<f32> = (0..9).map(|i| (i as f32 * 0.71).cos()).collect();
        for isa in Isa::available() {
            let (mut whole, mut tiled) = ([0.5; 48], [0.5; 48]);
            weighted_sum(isa, &weights, &rows, 48, &mut whole);
            weighted_sum(isa, &weights[..4], &rows, 48, &mut tiled);
            weighted_sum(isa, &weights[4..], &rows[4 * 48..], 48, &mut tiled);
            assert_eq!(whole.map(f32::to_bits), tiled.map(f32::to_bits), "{isa}");
        }
    }

    #[test]
    #[should_panic(expected = "3 rows of 8 values, 10 apart, in 27 values")]
    fn rows_past_the_end_are_a_bug() {
        dots(Isa::scalar(), &[0.0; 8], &[0.0; 27], 10, &mut [0.0; 3]);
    }
}
