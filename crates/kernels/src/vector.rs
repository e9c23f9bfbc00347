//! Vector functions between the matrix products. One portable text each, compiled for every level with the same bits.
//!
//! Sums over a vector are 16 partial sums by index modulo 16, joined by halves (8, 4, 2, 1), the tail padded with +0. A
//! NaN in the input reaches the output, always as the same quiet NaN.

use crate::isa::{Isa, Portable};
use crate::numbers::{LANES, canonical, dot, padded, sum_lanes};
use crate::transcendental;

/// RMS normalisation of each row: `out = (x · r) · weight` with `r = 1/√(Σx²/n + eps)` and n = `weight.len()`.
///
/// `x` and `out` are (rows, n). Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
///
/// # Panics
/// When `weight` is empty, `x` is not a whole number of rows, or `out` is not as long as `x`.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(
        !weight.is_empty() && x.len().is_multiple_of(weight.len()),
        "{} values per {}",
        x.len(),
        weight.len()
    );
    assert_eq!(x.len(), out.len(), "rows to normalise and their results");
    isa.run(RmsNorm { x, weight, eps, out });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Portable for RmsNorm<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let n = self.weight.len();
        for (x, out) in self.x.chunks_exact(n).zip(self.out.chunks_exact_mut(n)) {
            let factor = 1.0 / (dot(x, x) / n as f32 + self.eps).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight) {
                *out = canonical(x * factor * weight);
            }
        }
    }
}

/// Softmax in place: `e^(x − max) · (1/Σ)`.
///
/// The maximum is exact, −∞ gets 0 beside anything finite. A NaN, a +∞, or nothing but −∞ leaves no answer, and all
/// values become NaN. An empty slice is fine.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    isa.run(Softmax { x });
}

struct Softmax<'a> {
    x: &'a mut [f32],
}

impl Portable for Softmax<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let max = maximum(self.x);
        let mut lanes = [0.0; LANES];
        let (groups, tail) = self.x.as_chunks_mut::<LANES>();
        for group in groups {
            for i in 0..LANES {
                group[i] = transcendental::exp(group[i] - max);
                lanes[i] += group[i];
            }
        }
        for x in tail.iter_mut() {
            *x = transcendental::exp(*x - max);
        }
        for (lane, x) in lanes.iter_mut().zip(padded(tail)) {
            *lane += x;
        }
        let factor = 1.0 / sum_lanes(lanes);
        for x in self.x {
            *x = canonical(*x * factor);
        }
    }
}

/// The largest value; NaNs are passed over, as the difference to the maximum shows them anyway.
#[inline(always)]
fn maximum(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (groups, tail) = x.as_chunks::<LANES>();
    for group in groups {
        for i in 0..LANES {
            lanes[i] = if group[i] > lanes[i] { group[i] } else { lanes[i] };
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max })
}

/// `gate = silu(gate) · up` element by element, with `silu(g) = g / (1 + e^−g)`.
///
/// Source: Shazeer, "GLU Variants Improve Transformer", 2020.
///
/// # Panics
/// When the lengths differ.
pub fn silu_mul(isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gates and what they gate");
    isa.run(SiluMul { gate, up });
}

struct SiluMul<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Portable for SiluMul<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            let g = *gate;
            *gate = canonical(g / (1.0 + transcendental::exp(-g)) * up);
        }
    }
}

/// `x = x + y` element by element.
///
/// # Panics
/// When the lengths differ.
pub fn add(isa: Isa, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "terms of a sum");
    isa.run(Add { x, y });
}

struct Add<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl Portable for Add<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x = canonical(*x + y);
        }
    }
}

/// `x = e^x` element by element, within 1 ULP where the result is normal.
pub fn exp(isa: Isa, x: &mut [f32]) {
    isa.run(Exp { x });
}

struct Exp<'a> {
    x: &'a mut [f32],
}

impl Portable for Exp<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for x in self.x {
            *x = canonical(transcendental::exp(*x));
        }
    }
}
