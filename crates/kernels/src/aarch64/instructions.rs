//! The instructions that the oldest compiler in use has no stable intrinsics for, one function each.
//!
//! Each is one instruction that reads and writes registers only, so that the compiler may move, merge or drop it: `pure`, `nomem`.

use core::arch::aarch64::*;
use core::arch::asm;

/// `sum` plus, in each lane, four products of neighbouring bytes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: an instruction on registers, of a feature that this function is compiled with.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
    sum
}

/// As [`sdot`], where all lanes take the same four bytes of `b`, those of 32-bit lane `LANE`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn sdot_lane<const LANE: u8>(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: as in `sdot`.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]",
            inout(vreg) sum, in(vreg) a, in(vreg) b, const LANE,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
    sum
}

/// `sum` plus the products of two rows of eight bytes, the halves of `a`, with two others, the halves of `b`: row 0 with both, then
/// row 1 with both.
///
/// # Safety
/// The CPU must have i8mm. It is named to the assembler here, and not to the compiler, since code that is generic over this
/// instruction and [`sdot_lane`] is compiled with the features of the latter.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn smmla(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: an instruction on registers, which the caller says the CPU has.
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
    sum
}

/// Four halves as singles, exactly.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn singles(halves: uint16x4_t) -> float32x4_t {
    let out;
    // SAFETY: an instruction on registers that every AArch64 CPU has.
    unsafe {
        asm!(
            "fcvtl {0:v}.4s, {1:v}.4h",
            lateout(vreg) out, in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
    out
}

/// The upper four of eight halves as singles, exactly.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn singles_high(halves: uint16x8_t) -> float32x4_t {
    let out;
    // SAFETY: as in `singles`.
    unsafe {
        asm!(
            "fcvtl2 {0:v}.4s, {1:v}.8h",
            lateout(vreg) out, in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
    out
}
