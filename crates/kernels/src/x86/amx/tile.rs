//! The tile unit: finding it, its registers, and the few instructions that are used.
//!
//! Stable Rust has no intrinsics for it, hence inline assembly. The compiler never uses tile registers, so what one piece of
//! assembly leaves in them is there for the next. [`Tiles`] sets them up for a thread and gives them back.

use core::arch::asm;
use core::marker::PhantomData;

use crate::x86::cpuid;

/// Rows of a tile, and the 32-bit elements in one.
pub(super) const SIDE: usize = 16;

/// A tile in memory: 16 rows of 64 bytes.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Tile(pub(super) [[i8; 64]; SIDE]);

/// The sums of a tile.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct TileSums(pub(super) [[i32; SIDE]; SIDE]);

impl Tile {
    pub(super) const ZERO: Self = Self([[0; 64]; SIDE]);
}

impl TileSums {
    pub(super) const ZERO: Self = Self([[0; SIDE]; SIDE]);
}

/// Whether this CPU has the tile unit for bytes, and the system lets this process use it.
pub(in crate::x86) fn detect() -> bool {
    // Leaf 7, Intel SDM volume 2: EDX bit 24 tiles, bit 25 their products of bytes. Leaf 1: ECX bit 27, XGETBV may be used.
    let (features, basic) = (cpuid(7, 0).edx, cpuid(1, 0).ecx);
    if features >> 24 & 3 != 3 || basic >> 27 & 1 == 0 {
        return false;
    }
    let enabled: u32;
    // SAFETY: the instruction exists, as bit 27 says, and reads register 0 into EDX:EAX.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") enabled, out("edx") _, options(nomem, nostack)) };
    // Bits 17 and 18: the system saves the configuration and the contents of tiles.
    enabled >> 17 & 3 == 3 && permitted()
}

/// Asks the system for the use of tiles, once for all threads of the process.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    /// `arch_prctl` on x86-64, its request and the number of the tiles' contents: Linux, arch/x86/include/uapi/asm/prctl.h.
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let result: isize;
    // SAFETY: this call changes nothing in memory; the registers that the kernel overwrites are named.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack)
        );
    }
    result == 0
}

/// Other systems have other ways of asking.
#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Tile registers that are set up for this thread: all eight have 16 rows of 64 bytes. Dropping it gives them back, so that
/// the system need not save them.
pub(super) struct Tiles(PhantomData<*const ()>); // of this thread only

/// Palette 1; bytes 16 and on: 64 bytes a row for each of eight registers, bytes 48 and on: 16 rows. Intel SDM, LDTILECFG.
const CONFIGURATION: [u8; 64] = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = SIDE as u8;
        tile += 1;
    }
    bytes
};

impl Tiles {
    /// Sets them up.
    ///
    /// # Safety
    /// [`detect`] must have said yes.
    pub(super) unsafe fn new() -> Self {
        // SAFETY: the CPU has tiles, as the caller vouches for, and 64 bytes are there.
        unsafe { asm!("ldtilecfg [{}]", in(reg) CONFIGURATION.as_ptr(), options(nostack, readonly)) };
        Self(PhantomData)
    }

    /// Register `T` becomes zero.
    #[inline(always)]
    pub(super) fn zero<const T: u8>(&self) {
        // SAFETY: registers are set up as long as there is a `Tiles`; nothing but a register changes.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, nomem)) };
    }

    /// Register `T` becomes a copy of `tile`.
    #[inline(always)]
    pub(super) fn load<const T: u8>(&self, tile: &Tile) {
        // SAFETY: as in `zero`; 16 rows of 64 bytes are there, 64 bytes apart.
        unsafe {
            asm!("tileloadd tmm{t}, [{at} + {step}*1]", t = const T, at = in(reg) tile, step = in(reg) 64usize,
                options(nostack, readonly));
        }
    }

    /// Row m, element n of register `C` grows by the sum over k of byte k of row m of `A` × byte 4n + k mod 4 of row k/4 of
    /// `B`, all of them signed.
    #[inline(always)]
    pub(super) fn multiply<const C: u8, const A: u8, const B: u8>(&self) {
        // SAFETY: as in `zero`.
        unsafe {
            asm!("tdpbssd tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B, options(nostack, nomem));
        }
    }

    /// Register `T` to memory.
    #[inline(always)]
    pub(super) fn store<const T: u8>(&self, to: &mut TileSums) {
        // SAFETY: as in `zero`; there is room for 16 rows of 64 bytes, 64 bytes apart.
        unsafe {
            asm!("tilestored [{at} + {step}*1], tmm{t}", t = const T, at = in(reg) to, step = in(reg) 64usize,
                options(nostack));
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: as in `zero`.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
