//! Rounding activations to 8 bits, and what that leaves of them to 8 bits more.

use super::planes::{BlockPlanes, TILE_TOKENS};
use super::{Columns, FINEST};
use crate::isa::{Isa, Portable};

/// Some tokens of activations whose 8-bit form is to be built; see [`Acts::parts`](super::Acts::parts).
#[derive(Debug)]
#[must_use = "the form is there once every part has been built"]
pub struct Part<'a>(pub(super) Piece<'a>);

/// The values of some tokens, where their form goes, and where the form of what that leaves goes, if it is wanted.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    Per32(&'a [f32], To32<'a>, Option<To32<'a>>),
    Per256(&'a [f32], To256<'a>, Option<To256<'a>>),
}

/// Some tokens of a form with groups of 32.
#[derive(Debug)]
pub(super) struct To32<'a> {
    pub q: &'a mut [i8],
    pub scales: Columns<'a, f32>,
    pub sums: Columns<'a, i32>,
}

/// Some tokens of a form with groups of 256.
#[derive(Debug)]
pub(super) struct To256<'a> {
    pub q: &'a mut [i8],
    pub scales: Columns<'a, f32>,
    pub shifts: &'a mut [u8],
    pub powers: &'a mut [i16],
    pub sums: &'a mut [i16],
    /// Empty where no tile unit wants them.
    pub planes: &'a mut [BlockPlanes],
}

impl Part<'_> {
    /// Builds the form of these tokens.
    pub fn build(self, isa: Isa) {
        isa.run(self);
    }
}

impl Portable for Part<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        match self.0 {
            Piece::Per32(x, to, rest) => fill(x, to, rest),
            Piece::Per256(x, to, rest) => fill(x, to, rest),
        }
    }
}

/// Where groups of `N` values go.
trait To<const N: usize> {
    /// Groups per token.
    fn groups(&self) -> usize;
    /// Rounds group `at`, of `groups` per token.
    fn put(&mut self, at: usize, groups: usize, x: &[f32; N]);
    /// What rounding left of a group.
    fn left(&self, at: usize, groups: usize, x: &[f32; N]) -> [f32; N];
    /// What is made of the groups once all of them are there.
    fn finish(&mut self) {}
}

/// Rounds all groups of some tokens, and what that leaves of them where there is a place for it.
#[inline(always)]
fn fill<const N: usize, T: To<N>>(x: &[f32], mut to: T, mut rest: Option<T>) {
    let groups = to.groups();
    for (at, x) in x.as_chunks().0.iter().enumerate() {
        to.put(at, groups, x);
        if let Some(rest) = &mut rest {
            rest.put(at, groups, &to.left(at, groups, x));
        }
    }
    to.finish();
    if let Some(rest) = &mut rest {
        rest.finish();
    }
}

impl To<32> for To32<'_> {
    #[inline(always)]
    fn groups(&self) -> usize {
        self.scales.len()
    }

    #[inline(always)]
    fn put(&mut self, at: usize, groups: usize, x: &[f32; 32]) {
        let q = &mut self.q.as_chunks_mut::<32>().0[at];
        let (scale, factor) = scale_and_factor(largest(x), 127.0);
        let mut sum = 0;
        for (x, q) in x.as_chunks().0.iter().zip(q.as_chunks_mut().0) {
            sum += quantise_16(x, factor, 1.0, q);
        }
        self.scales[at % groups][at / groups] = scale;
        self.sums[at % groups][at / groups] = sum;
    }

    #[inline(always)]
    fn left(&self, at: usize, groups: usize, x: &[f32; 32]) -> [f32; 32] {
        left(x, self.scales[at % groups][at / groups], &self.q.as_chunks().0[at])
    }
}

impl To<256> for To256<'_> {
    #[inline(always)]
    fn groups(&self) -> usize {
        self.scales.len()
    }

    #[inline(always)]
    fn put(&mut self, at: usize, groups: usize, x: &[f32; 256]) {
        let x = x.as_chunks::<32>().0;
        let q = &mut self.q.as_chunks_mut::<32>().0.as_chunks_mut::<8>().0[at];
        let shifts = &mut self.shifts.as_chunks_mut::<8>().0[at];
        let powers = &mut self.powers.as_chunks_mut::<8>().0[at];
        let sums = &mut self.sums.as_chunks_mut::<2>().0.as_chunks_mut::<8>().0[at];
        let mut magnitudes = [0.0; 8];
        for (magnitude, x) in magnitudes.iter_mut().zip(x) {
            *magnitude = largest(x);
        }
        let amax = f32::from_bits(magnitudes.iter().fold(0, |amax: u32, m| amax.max(m.to_bits())));
        let (scale, factor) = scale_and_factor(amax, (127 << FINEST) as f32);
        for (part, (x, q)) in x.iter().zip(q).enumerate() {
            let finer = (1..=FINEST).filter(|e| magnitudes[part] * (1 << e) as f32 <= amax).count() as u32;
            let shift = FINEST - finer;
            for (half, (x, q)) in x.as_chunks().0.iter().zip(q.as_chunks_mut().0).enumerate() {
                let sum = quantise_16(x, factor, (1 << finer) as f32, q);
                sums[part][half] = (sum << shift) as i16; // at most 16·127·8
            }
            shifts[part] = shift as u8;
            powers[part] = 1 << shift;
        }
        self.scales[at % groups][at / groups] = scale;
    }

    #[inline(always)]
    fn finish(&mut self) {
        if self.planes.is_empty() {
            return;
        }
        let blocks = self.scales.len();
        let tokens = self.q.len() / (256 * blocks);
        for (tile, planes) in self.planes.chunks_exact_mut(blocks).enumerate() {
            for (block, planes) in planes.iter_mut().enumerate() {
                for lane in 0..TILE_TOKENS {
                    let at = (tile * TILE_TOKENS + lane) * blocks + block;
                    if tile * TILE_TOKENS + lane < tokens {
                        let q = &self.q.as_chunks().0[at];
                        planes.put(lane, q, &self.shifts.as_chunks().0[at], &self.sums.as_chunks().0[at]);
                    } else {
                        planes.clear(lane);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn left(&self, at: usize, groups: usize, x: &[f32; 256]) -> [f32; 256] {
        let mut rest = [0.0; 256];
        let parts = rest.as_chunks_mut::<32>().0.iter_mut().zip(x.as_chunks().0);
        for (part, (rest, x)) in parts.enumerate() {
            let step = self.scales[at % groups][at / groups] * f32::from(1u8 << self.shifts[8 * at + part]);
            *rest = left(x, step, &self.q.as_chunks().0[8 * at + part]);
        }
        rest
    }
}

/// What rounding left of some values, each rounded once.
#[inline(always)]
fn left(x: &[f32; 32], step: f32, q: &[i8; 32]) -> [f32; 32] {
    let mut left = [0.0; 32];
    for i in 0..32 {
        left[i] = f32::from(q[i]).mul_add(-step, x[i]);
    }
    left
}

/// Adding and subtracting 1.5·2^23 rounds a small float to an integer, ties to even, in every CPU's default mode.
const ROUND: f32 = 12_582_912.0;

/// The largest magnitude of some values; infinity or NaN when one of them is.
#[inline(always)]
fn largest(x: &[f32; 32]) -> f32 {
    // Magnitudes compare as integers, and so do infinities and NaNs above them, whatever the order.
    f32::from_bits(x.iter().fold(0, |amax: u32, x| amax.max(x.to_bits() & 0x7fff_ffff)))
}

/// The scale of a group whose largest magnitude is `amax`, where that value becomes `levels`, and the factor 127/amax.
#[inline(always)]
fn scale_and_factor(amax: f32, levels: f32) -> (f32, f32) {
    let factor = 127.0 / amax;
    if !amax.is_finite() {
        (f32::NAN, 0.0)
    } else if !factor.is_finite() {
        (0.0, 0.0)
    } else {
        (amax / levels, factor)
    }
}

/// Quantises 16 values, times `finer`, and gives their sum.
#[inline(always)]
fn quantise_16(x: &[f32; 16], factor: f32, finer: f32, q: &mut [i8; 16]) -> i32 {
    let mut sum = 0;
    for i in 0..16 {
        // A factor of 0 stands for all zero, also where x is not finite and the product would be NaN. The power of two goes
        // last: together with the factor it might not be finite.
        let scaled = if factor == 0.0 { 0.0 } else { x[i] * factor * finer };
        let rounded = (scaled + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
        q[i] = rounded as i8;
        sum += rounded;
    }
    sum
}
