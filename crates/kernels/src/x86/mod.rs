//! The x86-64 levels. The only folder with unsafe code: its border is one type per level that proves the CPU has it.

use core::ops::Range;
use std::arch::is_x86_feature_detected;

use crate::acts::Acts;
use crate::isa::Portable;
use crate::rows::QuantRows;
use crate::tuning::Tuning;
use crate::wide::Wide;

/// See [`Isa::scratch_bytes_per_token`](crate::Isa::scratch_bytes_per_token).
pub(crate) const AMX_SCRATCH_PER_TOKEN: usize = amx::SCRATCH_PER_TOKEN;

mod amx;
mod avx2;
mod avx512;
mod memory;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod wide;

/// What the CPU says of itself.
pub(crate) fn cpuid(leaf: u32, sub: u32) -> core::arch::x86_64::CpuidResult {
    #[allow(unused_unsafe)]
    // the intrinsic is unsafe in the oldest compiler that we support, safe in later ones
    // SAFETY: every x86-64 CPU has the instruction; a leaf that it lacks gives zeros or another leaf's values.
    unsafe {
        core::arch::x86_64::__cpuid_count(leaf, sub)
    }
}

/// Proof that this CPU has AVX2, FMA and F16C, and that the system saves the wide registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, if it holds.
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        all.then_some(Self(()))
    }

    /// Portable code, compiled with wide registers.
    #[inline]
    pub(crate) fn run<P: Portable>(self, code: P) -> P::Out {
        // SAFETY: `self` exists only where `detect` has found the features that `avx2::run` is compiled with.
        unsafe { avx2::run(code) }
    }

    /// Code for sixteen lanes, compiled with wide registers.
    #[inline]
    pub(crate) fn run_wide<W: Wide>(self, code: W) -> W::Out {
        // SAFETY: as in `run`.
        unsafe { avx2::run_wide(self, code) }
    }

    /// y = W·x; the caller has checked shapes and forms, and there is at least one row and one token.
    pub(crate) fn matmul(self, w: QuantRows<'_>, x: &Acts, y: &mut [f32], tuning: Tuning) {
        // SAFETY: as in `run`.
        unsafe { avx2::matmul(w, x, y, tuning) }
    }

    /// Halves to singles, as many as the shorter of the two holds.
    pub(crate) fn decode_f16(self, halves: &[[u8; 2]], out: &mut [f32]) {
        // SAFETY: as in `run`.
        unsafe { avx2::decode_f16(halves, out) }
    }
}

/// Proof that this CPU has AVX-512 with VNNI and all that AVX2 asks for, and that the system saves the wide registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx512 {
    avx2: Avx2,
    amx: bool,
}

impl Avx512 {
    /// The proof, if it holds.
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        Avx2::detect().filter(|_| all).map(|avx2| Self { avx2, amx: false })
    }

    /// The proof of what is included.
    pub(crate) fn avx2(self) -> Avx2 {
        self.avx2
    }

    /// The proof of a tile unit for bytes besides, if it holds; asks the system for its use.
    pub(crate) fn detect_amx(self) -> Option<Self> {
        amx::detect().then_some(Self { amx: true, ..self })
    }

    /// Whether the tile unit is proved.
    pub(crate) const fn amx(self) -> bool {
        self.amx
    }

    /// Portable code, compiled with the widest registers.
    #[inline]
    pub(crate) fn run<P: Portable>(self, code: P) -> P::Out {
        // SAFETY: `self` exists only where `detect` has found the features that `avx512::run` is compiled with.
        unsafe { avx512::run(code) }
    }

    /// Code for sixteen lanes, compiled with wide registers.
    #[inline]
    pub(crate) fn run_wide<W: Wide>(self, code: W) -> W::Out {
        // SAFETY: as in `run`.
        unsafe { avx512::run_wide(self, code) }
    }

    /// y = W·x; the caller has checked shapes and forms, and there is at least one row and one token.
    pub(crate) fn matmul(self, w: QuantRows<'_>, x: &Acts, y: &mut [f32], tuning: Tuning) {
        if let (true, Some(planes)) = (self.amx, x.planes())
            && let Some(product) = amx::product(w.format())
        {
            // SAFETY: as in `run`, and `detect_amx` has found the unit.
            return unsafe { product(w, x, planes, y) };
        }
        // SAFETY: as in `run`.
        unsafe { avx512::matmul(w, x, y, tuning) }
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
        unsafe { avx512::turn::<ADD>(y, stride, columns, out) }
    }
}
