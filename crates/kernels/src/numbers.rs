//! The smallest pieces of arithmetic that every level shares: half floats, the order of sums, the one NaN.

/// Partial sums of every reduction over floats: two registers of eight or one of sixteen, so that no level has to
/// emulate a narrower one.
pub(crate) const LANES: usize = 16;

/// The single that a half stands for, exactly, subnormals included. A signalling NaN becomes quiet, as in hardware.
#[inline(always)]
pub(crate) const fn f16_to_f32(bits: [u8; 2]) -> f32 {
    let half = u16::from_le_bytes(bits) as u32;
    let sign = (half & 0x8000) << 16;
    let magnitude = (half & 0x7fff) << 13; // exponent and fraction where a single has them
    let exponent = half & 0x7c00;
    let value = if exponent == 0 {
        // Subnormal: the fraction below a leading one at 2^-14, less that one, which is exact.
        (f32::from_bits(magnitude | 113 << 23) - f32::from_bits(113 << 23)).to_bits()
    } else if exponent == 0x7c00 {
        let quiet = if half & 0x3ff != 0 { 1 << 22 } else { 0 };
        magnitude | 0x7f80_0000 | quiet
    } else {
        magnitude + (112 << 23) // bias 127 in place of 15
    };
    f32::from_bits(sign | value)
}

/// The single whose upper half these bits are.
#[inline(always)]
pub(crate) const fn bf16_to_f32(bits: [u8; 2]) -> f32 {
    f32::from_bits((u16::from_le_bytes(bits) as u32) << 16)
}

/// The NaN that every result which is none becomes.
pub(crate) const NAN: f32 = f32::from_bits(0x7fc0_0000);

/// Every NaN becomes the same one; anything else stays as it is.
///
/// Done on the bits, so that the compiler cannot argue that one NaN is as good as another.
#[inline(always)]
pub(crate) const fn canonical(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { NAN.to_bits() } else { bits })
}

/// The total of the partial sums: upper half onto lower half, 8, 4, 2, 1.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Adds the products of one group of 16 columns to the partial sums.
#[inline(always)]
pub(crate) fn fma_lanes(lanes: &mut [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) {
    for i in 0..LANES {
        lanes[i] = a[i].mul_add(b[i], lanes[i]);
    }
}

/// The first values of a group of 16, padded with +0.
#[inline(always)]
pub(crate) fn padded(tail: &[f32]) -> [f32; LANES] {
    let mut group = [0.0; LANES];
    group[..tail.len()].copy_from_slice(tail);
    group
}

/// Σ a·b in the order that all levels keep: 16 partial sums by column modulo 16, the tail padded with +0.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_groups, a_tail) = a.as_chunks::<LANES>();
    let (b_groups, b_tail) = b.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (a, b) in a_groups.iter().zip(b_groups) {
        fma_lanes(&mut lanes, a, b);
    }
    if !a_tail.is_empty() {
        fma_lanes(&mut lanes, &padded(a_tail), &padded(b_tail));
    }
    sum_lanes(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_decodes_exactly() {
        for bits in 0..=u16::MAX {
            let ours = f16_to_f32(bits.to_le_bytes());
            let theirs = half::f16::from_bits(bits).to_f64();
            assert!(
                f64::from(ours).to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:#06x}: {ours} against {theirs}"
            );
        }
    }

    #[test]
    fn one_nan() {
        for bits in [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xffff_ffff] {
            assert_eq!(canonical(f32::from_bits(bits)).to_bits(), 0x7fc0_0000);
        }
        for value in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, 1.5] {
            assert_eq!(canonical(value).to_bits(), value.to_bits());
        }
    }
}
