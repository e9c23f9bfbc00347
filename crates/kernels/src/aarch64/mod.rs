//! The ARM levels. With x86 the folder of unsafe code: its border is one type per level that proves the CPU has it.
//!
//! Every AArch64 CPU has NEON; `neon` also wants the dot products of bytes (`sdot`), and `i8mm` the products of two rows with two
//! tokens (`smmla`). One token meets `rows`, several meet `panels`; each result adds its blocks in the order that `scalar` does.
//! Nothing is asked for ahead of its use: what that gains has to be measured on such a CPU.

use core::ops::Range;
use std::arch::is_aarch64_feature_detected;

use self::cells::{Sdot, Smmla};
use crate::acts::Acts;
use crate::isa::Portable;
use crate::rows::QuantRows;
use crate::wide::Wide;

mod blocks_256;
mod blocks_32;
mod cells;
mod floats;
mod instructions;
mod kernels;
mod lanes;
mod panels;
mod rows;
#[cfg(all(test, target_os = "linux"))]
#[path = "../x86/tests.rs"]
mod tests;
mod wide;

/// Proof that this CPU has NEON and dot products of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neon(());

impl Neon {
    /// The proof, if it holds. Kernels take bytes for the low ends of wider lanes, so the order of bytes counts too.
    pub(crate) fn detect() -> Option<Self> {
        let all = cfg!(target_endian = "little")
            && is_aarch64_feature_detected!("neon")
            && is_aarch64_feature_detected!("dotprod");
        all.then_some(Self(()))
    }

    /// Portable code, compiled with the features of this level.
    #[inline]
    pub(crate) fn run<P: Portable>(self, code: P) -> P::Out {
        // SAFETY: `self` exists only where `detect` has found the features that `kernels::run` is compiled with.
        unsafe { kernels::run(code) }
    }

    /// Code for sixteen lanes, compiled with the features of this level.
    #[inline]
    pub(crate) fn run_wide<W: Wide>(self, code: W) -> W::Out {
        // SAFETY: as in `run`.
        unsafe { kernels::run_wide(self, code) }
    }

    /// y = W·x; the caller has checked shapes and forms, and there is at least one row and one token.
    pub(crate) fn matmul(self, w: QuantRows<'_>, x: &Acts, y: &mut [f32]) {
        // SAFETY: as in `run`; `Sdot` asks for no more.
        unsafe { kernels::matmul::<Sdot>(w, x, y) }
    }

    /// Halves to singles, as many as the shorter of the two holds.
    pub(crate) fn decode_f16(self, halves: &[[u8; 2]], out: &mut [f32]) {
        // SAFETY: as in `run`.
        unsafe { floats::decode_f16(halves, out) }
    }

    /// Turns `columns` of `y` (rows × stride) to `out` (columns × rows), or adds them to it; lengths have been checked.
    pub(crate) fn turn<const ADD: bool>(
        self,
        y: &[f32],
        stride: usize,
        columns: Range<usize>,
        out: &mut [f32],
    ) {
        // SAFETY: as in `run`.
        unsafe { floats::turn::<ADD>(y, stride, columns, out) }
    }
}

/// Proof that this CPU has matrix products of bytes and all that [`Neon`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct I8mm(Neon);

impl I8mm {
    /// The proof, if it holds.
    pub(crate) fn detect() -> Option<Self> {
        Neon::detect().filter(|_| is_aarch64_feature_detected!("i8mm")).map(Self)
    }

    /// The proof of what is included.
    pub(crate) fn neon(self) -> Neon {
        self.0
    }

    /// y = W·x; the caller has checked shapes and forms, and there is at least one row and one token.
    pub(crate) fn matmul(self, w: QuantRows<'_>, x: &Acts, y: &mut [f32]) {
        // SAFETY: `self` exists only where `detect` has found i8mm, which `Smmla` asks for, and the features of `matmul`.
        unsafe { kernels::matmul::<Smmla>(w, x, y) }
    }
}
