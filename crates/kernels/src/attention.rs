//! The two products of attention, over a page of positions and the queries that see it.
//!
//! A score is the dot product of a query with a key: 16 partial sums by column modulo 16, joined by halves (8, 4, 2, 1), the
//! tail padded with +0. Keys come transposed, a position per lane, so that the partial sums of 16 positions stand side by
//! side and nothing is ever added across lanes. A weighted sum of values takes positions in ascending order, one fused
//! multiply-add each, so it does not matter where pages or tiles end.

use crate::isa::Isa;
use crate::numbers::{LANES, canonical};
use crate::wide::{Lanes, Wide};

/// Positions in a page of transposed keys: two registers of 16, which share what is fetched of a query.
pub const POSITIONS: usize = 32;

/// One of the sixteen partial sums, or a sum of some, for a page of positions.
type Row<V> = [V; POSITIONS / LANES];

/// `out[i · stride ..]` gets the scores of query `i` with the first `count` positions of the page.
///
/// `queries` is (queries, len) and `keys` transposed, (len, positions). Positions behind `count` may hold anything.
///
/// # Panics
/// When `keys` is empty, `queries` is not whole rows of as many values, `count` is more than a page, or `out` ends before
/// the last score.
pub fn dots(
    isa: Isa,
    queries: &[f32],
    keys: &[[f32; POSITIONS]],
    count: usize,
    out: &mut [f32],
    stride: usize,
) {
    let len = keys.len();
    assert!(len > 0 && queries.len().is_multiple_of(len), "{} values in queries of {len}", queries.len());
    assert!(count <= POSITIONS, "{count} positions in a page of {POSITIONS}");
    check(queries.len() / len, stride, count, out.len(), "scores");
    isa.run_wide(Dots { queries, keys, count, out, stride });
}

struct Dots<'a> {
    queries: &'a [f32],
    keys: &'a [[f32; POSITIONS]],
    count: usize,
    out: &'a mut [f32],
    stride: usize,
}

impl Wide for Dots<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self, proof: V::Proof) {
        let Self { queries, keys, count, out, stride } = self;
        // Two queries at a time: what is fetched of a key serves both.
        for (pair, queries) in queries.chunks(2 * keys.len()).enumerate() {
            let (one, other) = queries.split_at(keys.len());
            let out = &mut out[2 * pair * stride..];
            if other.is_empty() {
                put(out, count, joined::<V, 1>(proof, [one], keys)[0]);
            } else {
                let [one, other] = joined::<V, 2>(proof, [one, other], keys);
                put(out, count, one);
                put(&mut out[stride..], count, other);
            }
        }
    }
}

/// The first `count` scores of a page.
#[inline(always)]
fn put<V: Lanes>(out: &mut [f32], count: usize, row: Row<V>) {
    match out[..count].as_chunks_mut() {
        // A whole page, as all but the last one are.
        ([low, high], []) => {
            row[0].store(low);
            row[1].store(high);
        }
        _ => {
            let mut page = [[0.0; LANES]; POSITIONS / LANES];
            row[0].store(&mut page[0]);
            row[1].store(&mut page[1]);
            out[..count].copy_from_slice(&page.as_flattened()[..count]);
        }
    }
}

/// All sixteen partial sums of `N` queries, joined: each half is added to the one below it.
#[inline(always)]
fn joined<V: Lanes, const N: usize>(
    proof: V::Proof,
    queries: [&[f32]; N],
    keys: &[[f32; POSITIONS]],
) -> [Row<V>; N] {
    // The same tree as `numbers::sum_lanes`, from the leaves: few sums are alive at once.
    let mut halves = [[[V::splat(proof, 0.0); POSITIONS / LANES]; N]; 2];
    for (i, half) in halves.iter_mut().enumerate() {
        let low = add(eighth(proof, queries, keys, i), eighth(proof, queries, keys, i + 4));
        let high = add(eighth(proof, queries, keys, i + 2), eighth(proof, queries, keys, i + 6));
        *half = add(low, high);
    }
    add(halves[0], halves[1])
}

/// The partial sums of the columns that are `c` modulo 8.
#[inline(always)]
fn eighth<V: Lanes, const N: usize>(
    proof: V::Proof,
    queries: [&[f32]; N],
    keys: &[[f32; POSITIONS]],
    c: usize,
) -> [Row<V>; N] {
    add(partial(proof, queries, keys, c), partial(proof, queries, keys, c + 8))
}

/// The partial sums of the columns that are `c` modulo 16.
#[inline(always)]
fn partial<V: Lanes, const N: usize>(
    proof: V::Proof,
    queries: [&[f32]; N],
    keys: &[[f32; POSITIONS]],
    c: usize,
) -> [Row<V>; N] {
    let mut sums = [[V::splat(proof, 0.0); POSITIONS / LANES]; N];
    // The tail is padded with +0, which matters: a sum of −0 becomes +0 there.
    for column in (c..keys.len().next_multiple_of(LANES)).step_by(LANES) {
        let key = match keys.get(column) {
            Some(key) => {
                let halves = key.as_chunks().0;
                [V::load(proof, &halves[0]), V::load(proof, &halves[1])]
            }
            None => [V::splat(proof, 0.0); 2],
        };
        for q in 0..N {
            let value = V::splat(proof, queries[q].get(column).copied().unwrap_or(0.0));
            for i in 0..POSITIONS / LANES {
                sums[q][i] = sums[q][i].fma(value, key[i]);
            }
        }
    }
    sums
}

#[inline(always)]
fn add<V: Lanes, const N: usize>(mut a: [Row<V>; N], b: [Row<V>; N]) -> [Row<V>; N] {
    for q in 0..N {
        for i in 0..POSITIONS / LANES {
            a[q][i] = a[q][i].add(b[q][i]);
        }
    }
    a
}

/// `acc[q][d] = fma(weights[q][i], row i [d], acc[q][d])` for ascending `i` below `count`.
///
/// `weights[q]` begins at `q · stride` of `weights`; `rows` is (count, len) and `acc` (queries, len).
///
/// # Panics
/// When `len` is 0, `acc` is not whole rows of as many values, or `weights` or `rows` end before the last one.
pub fn weighted_sums(
    isa: Isa,
    weights: &[f32],
    stride: usize,
    count: usize,
    rows: &[f32],
    len: usize,
    acc: &mut [f32],
) {
    assert!(len > 0 && acc.len().is_multiple_of(len), "{} sums in rows of {len}", acc.len());
    check(acc.len() / len, stride, count, weights.len(), "weights");
    check(count, len, len, rows.len(), "values");
    isa.run_wide(WeightedSums { weights, stride, count, rows, len, acc });
}

struct WeightedSums<'a> {
    weights: &'a [f32],
    stride: usize,
    count: usize,
    rows: &'a [f32],
    len: usize,
    acc: &'a mut [f32],
}

/// Groups of 16 columns that are summed over all positions before the next ones: with two queries eight registers of 16,
/// enough chains to hide the latency of the additions.
const GROUPS: usize = 4;

impl Wide for WeightedSums<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self, proof: V::Proof) {
        let Self { weights, stride, count, rows, len, acc } = self;
        for (pair, acc) in acc.chunks_mut(2 * len).enumerate() {
            let weights = &weights[2 * pair * stride..];
            let (one, other) = acc.split_at_mut(len);
            if other.is_empty() {
                sums::<V, 1>(proof, [&weights[..count]], rows, [one]);
            } else {
                sums::<V, 2>(proof, [&weights[..count], &weights[stride..][..count]], rows, [one, other]);
            }
        }
    }
}

/// The weighted sums of `N` queries over the same rows.
#[inline(always)]
fn sums<V: Lanes, const N: usize>(
    proof: V::Proof,
    weights: [&[f32]; N],
    rows: &[f32],
    mut acc: [&mut [f32]; N],
) {
    let len = acc[0].len();
    let mut column = 0;
    while column + GROUPS * LANES <= len {
        columns::<V, N, GROUPS>(proof, weights, rows, column, &mut acc);
        column += GROUPS * LANES;
    }
    while column + LANES <= len {
        columns::<V, N, 1>(proof, weights, rows, column, &mut acc);
        column += LANES;
    }
    for q in 0..N {
        for d in column..len {
            let mut sum = acc[q][d];
            for (weight, row) in weights[q].iter().zip(rows.chunks_exact(len)) {
                sum = weight.mul_add(row[d], sum);
            }
            acc[q][d] = canonical(sum);
        }
    }
}

/// `G` groups of 16 columns from `column` on.
#[inline(always)]
fn columns<V: Lanes, const N: usize, const G: usize>(
    proof: V::Proof,
    weights: [&[f32]; N],
    rows: &[f32],
    column: usize,
    acc: &mut [&mut [f32]; N],
) {
    let len = acc[0].len();
    let mut sums = [[V::splat(proof, 0.0); G]; N];
    for q in 0..N {
        let acc = acc[q][column..][..G * LANES].as_chunks().0;
        for g in 0..G {
            sums[q][g] = V::load(proof, &acc[g]);
        }
    }
    for (i, row) in rows.chunks_exact(len).enumerate().take(weights[0].len()) {
        let row = row[column..][..G * LANES].as_chunks().0;
        for q in 0..N {
            let weight = V::splat(proof, weights[q][i]);
            for g in 0..G {
                sums[q][g] = sums[q][g].fma(weight, V::load(proof, &row[g]));
            }
        }
    }
    for q in 0..N {
        let acc = acc[q][column..][..G * LANES].as_chunks_mut().0;
        for g in 0..G {
            sums[q][g].store(&mut acc[g]);
        }
    }
}

/// Panics unless `count` rows of `len` values, `stride` apart, lie within `there` values.
fn check(count: usize, stride: usize, len: usize, there: usize, what: &str) {
    let end = count.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(len));
    assert!(
        end.is_some_and(|end| end <= there),
        "{count} rows of {len} {what}, {stride} apart, in {there} values"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::dot;

    /// Queries, keys (positions × len) and the keys transposed.
    fn case(queries: usize, len: usize) -> (Vec<f32>, Vec<f32>, Vec<[f32; POSITIONS]>) {
        let value = |i: usize| ((i * 7919) % 1013) as f32 * 0.37 - 150.0;
        let q: Vec<f32> = (0..queries * len).map(|i| value(i + 5)).collect();
        let keys: Vec<f32> = (0..POSITIONS * len).map(value).collect();
        let turned = (0..len).map(|c| std::array::from_fn(|p| keys[p * len + c])).collect();
        (q, keys, turned)
    }

    #[test]
    fn scores_have_the_bits_of_a_dot_product() {
        for len in [1, 5, 15, 16, 17, 31, 48, 64, 80, 128] {
            for queries in 1..5 {
                let (q, keys, turned) = case(queries, len);
                for (isa, count) in
                    Isa::available().into_iter().flat_map(|isa| [(isa, 32), (isa, 7), (isa, 0)])
                {
                    let stride = count + 3;
                    let mut out = vec![9.0; queries * stride];
                    dots(isa, &q, &turned, count, &mut out, stride);
                    for (i, out) in out.chunks(stride).enumerate() {
                        for (p, out) in out.iter().enumerate() {
                            let expected = match p < count {
                                true => dot(&q[i * len..][..len], &keys[p * len..][..len]),
                                false => 9.0,
                            };
                            assert_eq!(out.to_bits(), expected.to_bits(), "{isa} {len} {queries} {i} {p}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_underflow_at_the_tail_is_the_same_zero() {
        let mut turned = [[0.0; POSITIONS]; 17];
        turned[3] = [-1e-30; POSITIONS];
        let mut q = [0.0; 17];
        q[3] = 1e-30;
        let key: Vec<f32> = turned.iter().map(|row| row[0]).collect();
        for isa in Isa::available() {
            let mut out = [9.0; 2];
            dots(isa, &q, &turned, 2, &mut out, 2);
            assert_eq!(out[0].to_bits(), dot(&q, &key).to_bits(), "{isa}");
        }
    }

    #[test]
    fn weighted_sums_go_by_ascending_positions_wherever_pages_end() {
        for len in [1, 15, 16, 48, 64, 80, 128, 137] {
            for queries in 1..5 {
                let (_, rows, _) = case(1, len);
                let weights: Vec<f32> = (0..queries * 40).map(|i| (i as f32 * 0.71).cos()).collect();
                let mut expected = vec![0.5; queries * len];
                for (q, expected) in expected.chunks_mut(len).enumerate() {
                    for (i, row) in rows.chunks(len).enumerate() {
                        for (sum, value) in expected.iter_mut().zip(row) {
                            *sum = weights[q * 40 + i].mul_add(*value, *sum);
                        }
                    }
                }
                for isa in Isa::available() {
                    for cut in [0, 1, 13, 32] {
                        let mut acc = vec![0.5; queries * len];
                        weighted_sums(isa, &weights, 40, cut, &rows, len, &mut acc);
                        weighted_sums(isa, &weights[cut..], 40, 32 - cut, &rows[cut * len..], len, &mut acc);
                        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                        assert_eq!(bits(&acc), bits(&expected), "{isa} {len} {queries} {cut}");
                    }
                }
            }
        }
    }

    #[test]
    fn one_nan() {
        let keys = [[f32::INFINITY; POSITIONS]; 2];
        for isa in Isa::available() {
            let (mut out, mut acc) = ([0.0], [0.0]);
            dots(isa, &[1.0, -1.0], &keys, 1, &mut out, 1);
            weighted_sums(isa, &[-f32::NAN], 1, 1, &[1.0], 1, &mut acc);
            assert_eq!((out[0].to_bits(), acc[0].to_bits()), (0x7fc0_0000, 0x7fc0_0000), "{isa}");
        }
    }

    #[test]
    #[should_panic(expected = "3 rows of 8 values, 8 apart, in 23 values")]
    fn rows_past_the_end_are_a_bug() {
        weighted_sums(Isa::scalar(), &[0.0; 3], 3, 3, &[0.0; 23], 8, &mut [0.0; 8]);
    }
}
