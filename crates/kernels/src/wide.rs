//! Sixteen singles side by side, for code that is written once and must not be left to the compiler to widen.
//!
//! What can be a plain loop is a [`Portable`](crate::isa::Portable). Where many sums are to stay in registers at once,
//! compilers lose track of arrays of arrays, and then it is twenty times slower; such code is [`Wide`] and speaks of [`Lanes`].

use crate::numbers::{LANES, canonical};

/// A register, or two, or an array, of 16 singles. All operations are lane by lane and round as IEEE 754 says, so every
/// implementation gives the same bits.
pub(crate) trait Lanes: Copy {
    /// What must be shown to make one: that the CPU can.
    type Proof: Copy;

    /// The same value in every lane.
    fn splat(proof: Self::Proof, value: f32) -> Self;

    /// The values in order.
    fn load(proof: Self::Proof, from: &[f32; LANES]) -> Self;

    /// `self + a·b`, rounded once.
    fn fma(self, a: Self, b: Self) -> Self;

    /// The sum.
    fn add(self, other: Self) -> Self;

    /// Writes the values in order; every NaN becomes the same one, as in [`canonical`].
    fn store(self, to: &mut [f32; LANES]);
}

/// Code for any [`Lanes`]; [`Isa::run_wide`](crate::isa::Isa::run_wide) compiles it for each level.
///
/// `run` and all that it calls must be `inline(always)`: only then are they compiled with the level's features.
pub(crate) trait Wide {
    /// What it gives.
    type Out;

    /// The code.
    fn run<V: Lanes>(self, proof: V::Proof) -> Self::Out;
}

impl Lanes for [f32; LANES] {
    type Proof = ();

    #[inline(always)]
    fn splat(_proof: (), value: f32) -> Self {
        [value; LANES]
    }

    #[inline(always)]
    fn load(_proof: (), from: &[f32; LANES]) -> Self {
        *from
    }

    #[inline(always)]
    fn fma(mut self, a: Self, b: Self) -> Self {
        for i in 0..LANES {
            self[i] = a[i].mul_add(b[i], self[i]);
        }
        self
    }

    #[inline(always)]
    fn add(mut self, other: Self) -> Self {
        for i in 0..LANES {
            self[i] += other[i];
        }
        self
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.map(canonical);
    }
}
