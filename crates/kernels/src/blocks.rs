//! Quantisation blocks as they lie in a file, and the one integer form that all of them unpack to.
//!
//! Whatever the format, weight `i` of a block is `d·scale[i/16]·q[i] − dmin·min[i/16]`, where everything but `d` and `dmin`
//! is a small integer. Formats with fewer scales repeat them; formats without minima have none. Q4_1 and Q5_1 *add* their
//! minimum `m`, so for them `dmin = −m` and every `min` is 1.

use crate::numbers::f16_to_f32;

/// Weights that share a scale in the finest format (Q6_K); the others repeat theirs.
pub(crate) const SUB: usize = 16;

/// A block of `N` weights in integers, `S = N / 16` groups.
#[derive(Clone, Debug)]
pub(crate) struct Unpacked<const N: usize, const S: usize> {
    /// Scale of the scales.
    pub d: f32,
    /// Scale of the minima; 0 without minima.
    pub dmin: f32,
    /// The weights, offset included: −128 to 127.
    pub q: [i8; N],
    /// Per 16 weights: −128 to 127.
    pub scale: [i8; S],
    /// Per 16 weights: 0 to 63.
    pub min: [i8; S],
}

/// A block of 32 weights.
pub(crate) type Unpacked32 = Unpacked<32, 2>;
/// A block of 256 weights.
pub(crate) type Unpacked256 = Unpacked<256, 16>;

/// A block as it lies in a file: byte arrays only, so that it may lie at any address.
pub(crate) trait Block<const N: usize, const S: usize>: Sized {
    /// Whether `min` and `dmin` mean anything.
    const HAS_MIN: bool;
    /// Takes a block from the first bytes of `bytes`.
    ///
    /// # Panics
    /// When there are fewer bytes than a block has.
    fn read(bytes: &[u8]) -> Self;
    /// The block in integers.
    fn unpack(&self) -> Unpacked<N, S>;
}

/// Q4_0: weight `i` is a nibble less 8; low nibbles are weights 0 to 15.
#[repr(C)]
pub(crate) struct BlockQ4_0 {
    pub d: [u8; 2],
    pub qs: [u8; 16],
}

/// Q4_1: as Q4_0, but a minimum in place of the 8.
#[repr(C)]
pub(crate) struct BlockQ4_1 {
    pub d: [u8; 2],
    pub m: [u8; 2],
    pub qs: [u8; 16],
}

/// Q5_0: as Q4_0 with the fifth bit of weight `i` in bit `i` of `qh`, less 16.
#[repr(C)]
pub(crate) struct BlockQ5_0 {
    pub d: [u8; 2],
    pub qh: [u8; 4],
    pub qs: [u8; 16],
}

/// Q5_1: as Q5_0, but a minimum in place of the 16.
#[repr(C)]
pub(crate) struct BlockQ5_1 {
    pub d: [u8; 2],
    pub m: [u8; 2],
    pub qh: [u8; 4],
    pub qs: [u8; 16],
}

/// Q8_0: signed bytes.
#[repr(C)]
pub(crate) struct BlockQ8_0 {
    pub d: [u8; 2],
    pub qs: [u8; 32],
}

/// Q2_K: halves of 128 weights; bits 2j and 2j+1 of `qs[l]` are weight `l` of group `j` of the half. A byte of `scales` is
/// the scale of 16 weights below their minimum.
#[repr(C)]
pub(crate) struct BlockQ2K {
    pub scales: [u8; 16],
    pub qs: [u8; 64],
    pub d: [u8; 2],
    pub dmin: [u8; 2],
}

/// Q3_K: `qs` as in Q2_K; the third bit of weight `l` of group `j`, of eight, is bit `j` of `hmask[l]`; less 4.
#[repr(C)]
pub(crate) struct BlockQ3K {
    pub hmask: [u8; 32],
    pub qs: [u8; 64],
    pub scales: [u8; 12],
    pub d: [u8; 2],
}

/// Q4_K: 32 bytes of `qs` hold 64 weights, low nibbles first.
#[repr(C)]
pub(crate) struct BlockQ4K {
    pub d: [u8; 2],
    pub dmin: [u8; 2],
    pub scales: [u8; 12],
    pub qs: [u8; 128],
}

/// Q5_K: as Q4_K with the fifth bit of weight `l` of group `j` in bit `j` of `qh[l]`.
#[repr(C)]
pub(crate) struct BlockQ5K {
    pub d: [u8; 2],
    pub dmin: [u8; 2],
    pub scales: [u8; 12],
    pub qh: [u8; 32],
    pub qs: [u8; 128],
}

/// Q6_K: halves of 128 weights; 64 bytes of `ql` hold the low nibbles of groups 0, 1 and, above them, 2, 3; bits 2j and
/// 2j+1 of `qh[l]` top weight `l` of group `j`.
#[repr(C)]
pub(crate) struct BlockQ6K {
    pub ql: [u8; 128],
    pub qh: [u8; 64],
    pub scales: [u8; 16], // signed
    pub d: [u8; 2],
}

/// IQ4_NL: as Q4_0, but a nibble is an index into [`IQ4`].
#[repr(C)]
pub(crate) struct BlockIq4Nl {
    pub d: [u8; 2],
    pub qs: [u8; 16],
}

/// IQ4_XS: eight groups of 32 with nibbles as in IQ4_NL. Scales have their low four bits in `scales_l`, low nibble first,
/// their top two in `scales_h`, lowest bits first; less 32.
#[repr(C)]
pub(crate) struct BlockIq4Xs {
    pub d: [u8; 2],
    pub scales_h: [u8; 2],
    pub scales_l: [u8; 4],
    pub qs: [u8; 128],
}

/// The scales of a block, two halves of a single: that of the weights or of their scales, and the minimum or the scale of the
/// minima.
pub(crate) trait Head {
    /// Both, zero for what the format lacks.
    fn head(&self) -> [u8; 4];
}

impl Head for BlockQ4_0 {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], 0, 0]
    }
}

impl Head for BlockQ4_1 {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], self.m[0], self.m[1]]
    }
}

impl Head for BlockQ5_0 {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], 0, 0]
    }
}

impl Head for BlockQ5_1 {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], self.m[0], self.m[1]]
    }
}

impl Head for BlockQ8_0 {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], 0, 0]
    }
}

impl Head for BlockIq4Nl {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], 0, 0]
    }
}

impl Head for BlockQ2K {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], self.dmin[0], self.dmin[1]]
    }
}

impl Head for BlockQ3K {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], 0, 0]
    }
}

impl Head for BlockQ4K {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], self.dmin[0], self.dmin[1]]
    }
}

impl Head for BlockQ5K {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], self.dmin[0], self.dmin[1]]
    }
}

impl Head for BlockQ6K {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], 0, 0]
    }
}

impl Head for BlockIq4Xs {
    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], 0, 0]
    }
}

/// The values that the nibbles of IQ4_NL and IQ4_XS stand for: part of the file format.
pub(crate) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Fails the build when a block is not laid out as in the file.
const fn laid_out<T>(bytes: usize) {
    assert!(size_of::<T>() == bytes && align_of::<T>() == 1);
}

const _: () = {
    laid_out::<BlockQ4_0>(18);
    laid_out::<BlockQ4_1>(20);
    laid_out::<BlockQ5_0>(22);
    laid_out::<BlockQ5_1>(24);
    laid_out::<BlockQ8_0>(34);
    laid_out::<BlockQ2K>(84);
    laid_out::<BlockQ3K>(110);
    laid_out::<BlockQ4K>(144);
    laid_out::<BlockQ5K>(176);
    laid_out::<BlockQ6K>(210);
    laid_out::<BlockIq4Nl>(18);
    laid_out::<BlockIq4Xs>(136);
};

/// The `LEN` bytes from `at` on.
#[inline(always)]
fn take<const LEN: usize>(bytes: &[u8], at: usize) -> [u8; LEN] {
    let mut out = [0; LEN];
    out.copy_from_slice(&bytes[at..at + LEN]);
    out
}

/// 32 weights from nibbles and, if the format has them, fifth bits.
#[inline(always)]
fn unpack_32(d: f32, dmin: f32, qs: &[u8; 16], qh: u32, offset: i8) -> Unpacked32 {
    let mut q = [0; 32];
    for i in 0..16 {
        q[i] = (qs[i] & 15 | ((qh >> i & 1) << 4) as u8) as i8 - offset;
        q[i + 16] = (qs[i] >> 4 | ((qh >> (i + 16) & 1) << 4) as u8) as i8 - offset;
    }
    Unpacked { d, dmin, q, scale: [1; 2], min: [1; 2] }
}

impl Block<32, 2> for BlockQ4_0 {
    const HAS_MIN: bool = false;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self { d: take(bytes, 0), qs: take(bytes, 2) }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked32 {
        unpack_32(f16_to_f32(self.d), 0.0, &self.qs, 0, 8)
    }
}

impl Block<32, 2> for BlockQ4_1 {
    const HAS_MIN: bool = true;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self { d: take(bytes, 0), m: take(bytes, 2), qs: take(bytes, 4) }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked32 {
        unpack_32(f16_to_f32(self.d), -f16_to_f32(self.m), &self.qs, 0, 0)
    }
}

impl Block<32, 2> for BlockQ5_0 {
    const HAS_MIN: bool = false;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self { d: take(bytes, 0), qh: take(bytes, 2), qs: take(bytes, 6) }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked32 {
        unpack_32(f16_to_f32(self.d), 0.0, &self.qs, u32::from_le_bytes(self.qh), 16)
    }
}

impl Block<32, 2> for BlockQ5_1 {
    const HAS_MIN: bool = true;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self { d: take(bytes, 0), m: take(bytes, 2), qh: take(bytes, 4), qs: take(bytes, 8) }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked32 {
        unpack_32(f16_to_f32(self.d), -f16_to_f32(self.m), &self.qs, u32::from_le_bytes(self.qh), 0)
    }
}

impl Block<32, 2> for BlockQ8_0 {
    const HAS_MIN: bool = false;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self { d: take(bytes, 0), qs: take(bytes, 2) }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked32 {
        Unpacked { d: f16_to_f32(self.d), dmin: 0.0, q: self.qs.map(|q| q as i8), scale: [1; 2], min: [1; 2] }
    }
}

/// The 6-bit scales and minima of Q4_K and Q5_K, each per 32 weights.
///
/// Bytes 0 to 3 and 4 to 7 hold scales and minima 0 to 3 in their low six bits; bytes 8 to 11 hold the low four bits of
/// scales and minima 4 to 7, whose top two bits are the top bits of bytes 0 to 3 and 4 to 7.
#[inline(always)]
fn scales_and_mins(packed: &[u8; 12]) -> ([i8; 16], [i8; 16]) {
    let (mut scale, mut min) = ([0; 16], [0; 16]);
    for j in 0..4 {
        let pairs = [
            (j, packed[j] & 63, packed[j + 4] & 63),
            (j + 4, packed[j + 8] & 15 | packed[j] >> 6 << 4, packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4),
        ];
        for (group, s, m) in pairs {
            scale[2 * group..2 * group + 2].fill(s as i8);
            min[2 * group..2 * group + 2].fill(m as i8);
        }
    }
    (scale, min)
}

/// 256 weights of Q4_K, or of Q5_K with its fifth bits.
#[inline(always)]
fn unpack_k(d: [u8; 2], dmin: [u8; 2], scales: &[u8; 12], qs: &[u8; 128], qh: &[u8; 32]) -> Unpacked256 {
    let mut q = [0; 256];
    for pair in 0..4 {
        for l in 0..32 {
            let byte = qs[32 * pair + l];
            q[64 * pair + l] = (byte & 15 | (qh[l] >> (2 * pair) & 1) << 4) as i8;
            q[64 * pair + 32 + l] = (byte >> 4 | (qh[l] >> (2 * pair + 1) & 1) << 4) as i8;
        }
    }
    let (scale, min) = scales_and_mins(scales);
    Unpacked { d: f16_to_f32(d), dmin: f16_to_f32(dmin), q, scale, min }
}

impl Block<256, 16> for BlockQ4K {
    const HAS_MIN: bool = true;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self { d: take(bytes, 0), dmin: take(bytes, 2), scales: take(bytes, 4), qs: take(bytes, 16) }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked256 {
        unpack_k(self.d, self.dmin, &self.scales, &self.qs, &[0; 32])
    }
}

impl Block<256, 16> for BlockQ5K {
    const HAS_MIN: bool = true;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self {
            d: take(bytes, 0),
            dmin: take(bytes, 2),
            scales: take(bytes, 4),
            qh: take(bytes, 16),
            qs: take(bytes, 48),
        }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked256 {
        unpack_k(self.d, self.dmin, &self.scales, &self.qs, &self.qh)
    }
}

impl Block<256, 16> for BlockQ6K {
    const HAS_MIN: bool = false;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self { ql: take(bytes, 0), qh: take(bytes, 128), scales: take(bytes, 192), d: take(bytes, 208) }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked256 {
        let mut q = [0; 256];
        for half in 0..2 {
            for l in 0..32 {
                let (first, second) = (self.ql[64 * half + l], self.ql[64 * half + 32 + l]);
                let high = self.qh[32 * half + l];
                let at = 128 * half + l;
                q[at] = (first & 15 | (high & 3) << 4) as i8 - 32;
                q[at + 32] = (second & 15 | (high >> 2 & 3) << 4) as i8 - 32;
                q[at + 64] = (first >> 4 | (high >> 4 & 3) << 4) as i8 - 32;
                q[at + 96] = (second >> 4 | (high >> 6) << 4) as i8 - 32;
            }
        }
        Unpacked { d: f16_to_f32(self.d), dmin: 0.0, q, scale: self.scales.map(|s| s as i8), min: [0; 16] }
    }
}

/// 256 weights of two bits each, in the order of Q2_K and Q3_K.
#[inline(always)]
fn two_bits(qs: &[u8; 64]) -> [i8; 256] {
    let mut q = [0; 256];
    for half in 0..2 {
        for group in 0..4 {
            for l in 0..32 {
                q[128 * half + 32 * group + l] = (qs[32 * half + l] >> (2 * group) & 3) as i8;
            }
        }
    }
    q
}

impl Block<256, 16> for BlockQ2K {
    const HAS_MIN: bool = true;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self { scales: take(bytes, 0), qs: take(bytes, 16), d: take(bytes, 80), dmin: take(bytes, 82) }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked256 {
        let (scale, min) = (self.scales.map(|s| (s & 15) as i8), self.scales.map(|s| (s >> 4) as i8));
        Unpacked { d: f16_to_f32(self.d), dmin: f16_to_f32(self.dmin), q: two_bits(&self.qs), scale, min }
    }
}

impl Block<256, 16> for BlockQ3K {
    const HAS_MIN: bool = false;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self { hmask: take(bytes, 0), qs: take(bytes, 32), scales: take(bytes, 96), d: take(bytes, 108) }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked256 {
        let mut q = two_bits(&self.qs);
        for group in 0..8 {
            for l in 0..32 {
                q[32 * group + l] += (self.hmask[l] >> group & 1) as i8 * 4 - 4;
            }
        }
        let mut scale = [0; 16];
        for (i, scale) in scale.iter_mut().enumerate() {
            // Low four bits in bytes 0 to 7, scales 8 to 15 above 0 to 7; top two in bytes 8 to 11, four scales to a byte.
            let low = self.scales[i % 8] >> (4 * (i / 8)) & 15;
            let high = self.scales[8 + i % 4] >> (2 * (i / 4)) & 3;
            *scale = (low | high << 4) as i8 - 32;
        }
        Unpacked { d: f16_to_f32(self.d), dmin: 0.0, q, scale, min: [0; 16] }
    }
}

impl Block<32, 2> for BlockIq4Nl {
    const HAS_MIN: bool = false;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self { d: take(bytes, 0), qs: take(bytes, 2) }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked32 {
        let mut w = unpack_32(f16_to_f32(self.d), 0.0, &self.qs, 0, 0);
        w.q = w.q.map(|index| IQ4[index as usize]);
        w
    }
}

impl Block<256, 16> for BlockIq4Xs {
    const HAS_MIN: bool = false;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Self { d: take(bytes, 0), scales_h: take(bytes, 2), scales_l: take(bytes, 4), qs: take(bytes, 8) }
    }
    #[inline(always)]
    fn unpack(&self) -> Unpacked256 {
        let (mut q, mut scale) = ([0; 256], [0; 16]);
        let (low, high) = (u32::from_le_bytes(self.scales_l), u16::from_le_bytes(self.scales_h));
        for group in 0..8 {
            for l in 0..16 {
                let byte = self.qs[16 * group + l];
                q[32 * group + l] = IQ4[usize::from(byte & 15)];
                q[32 * group + 16 + l] = IQ4[usize::from(byte >> 4)];
            }
            let s = (low >> (4 * group) & 15) as i8 + 16 * (high >> (2 * group) & 3) as i8;
            scale[2 * group..2 * group + 2].fill(s - 32);
        }
        Unpacked { d: f16_to_f32(self.d), dmin: 0.0, q, scale, min: [0; 16] }
    }
}
