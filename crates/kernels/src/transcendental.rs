//! exp, sin, cos and powers of our own: the C library picks variants by CPU, and with them the last bit.
//!
//! Each reduces its argument to a small interval and sums the Taylor series there, far enough that what is cut off is well
//! below the rounding of the result. The bounds are tested against the standard library's f64 functions.

/// e^x, within 1 ULP where the result is normal, within 1 step of the smallest subnormal below. NaN gives NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// ln 2 to 24 bits, and the rest of it.
    const LN2: [f32; 2] = [f32::from_bits(0x3f31_7218), f32::from_bits(0xb102_e308)];
    /// Adding this rounds to an integer that then stands in the low bits.
    const ROUND: f32 = 12_582_912.0; // 1.5·2^23
    // Beyond these the result is infinity and 0; comparisons, not min and max, so that NaN stays.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = x.mul_add(core::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2[1], n.mul_add(-LN2[0], x)); // |r| ≤ ln 2 / 2
    // 1/7! to 1/0!; the next term is below 6e-9, a tenth of half an ULP.
    let mut sum = 1.0 / 5040.0;
    for divisor in [720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        sum = r.mul_add(sum, 1.0 / divisor);
    }
    // 2^n in two factors, so that neither overflows and the result rounds once when it is subnormal.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    sum * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// 2^n for n in −126..=127; anything for other n, which only NaN leads to.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// sin x and cos x, each within 1e-15 of the exact value for |x| up to 2^40. NaN and infinities give NaN.
pub(crate) fn sin_cos(x: f64) -> (f64, f64) {
    /// π/2 in three parts, each the double nearest to what is left.
    const HALF_PI: [f64; 3] =
        [core::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17, -1.497_384_904_859_169_8e-33];
    let n = (x * core::f64::consts::FRAC_2_PI).round_ties_even();
    let mut r = x;
    for part in HALF_PI {
        r = n.mul_add(-part, r);
    }
    let square = r * r;
    // Up to r^17/17! and r^16/16!, with |r| ≤ π/4: what is cut off is below 1e-18.
    let (mut sin, mut cos) = (1.0, 1.0);
    for k in (1..=8).rev() {
        let k = f64::from(k);
        sin = 1.0 - sin * square / ((2.0 * k) * (2.0 * k + 1.0));
        cos = 1.0 - cos * square / ((2.0 * k - 1.0) * (2.0 * k));
    }
    sin *= r;
    match n.rem_euclid(4.0) as u8 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// ln 2 to 21 bits, so that its product with an exponent is exact, and the rest of it.
const LN2: [f64; 2] = [f64::from_bits(0x3fe6_2e42_0000_0000), f64::from_bits(0x3e9f_df47_3de6_af28)];

/// The natural logarithm of a positive normal number, within 2 ULP.
fn ln(x: f64) -> f64 {
    // x = m·2^e with m between √½ and √2: what is added puts numbers from √2 on into the next power.
    const ABOVE_SQRT_2: u64 = 0x3ff0_0000_0000_0000 - 0x3fe6_a09e_667f_3bcd;
    let shifted = x.to_bits().wrapping_add(ABOVE_SQRT_2);
    let e = (shifted >> 52) as i64 - 1023;
    let m = f64::from_bits(x.to_bits().wrapping_sub((e as u64) << 52));
    // ln m = 2·artanh s = 2·(s + s³/3 + s⁵/5 + …) with |s| ≤ 0.172; s²³/23 is below 1e-18.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for k in (1..=10).rev() {
        sum = square * (1.0 / f64::from(2 * k + 1) + sum);
    }
    let e = e as f64;
    e * LN2[0] + (e * LN2[1] + (2.0 * s * sum + 2.0 * s))
}

/// e^x for |x| up to 700, within 2 ULP.
fn exp_f64(x: f64) -> f64 {
    let n = (x * core::f64::consts::LOG2_E).round_ties_even();
    let r = (x - n * LN2[0]) - n * LN2[1];
    let mut sum = 1.0;
    for k in (1..=14).rev() {
        sum = 1.0 + r * sum / f64::from(k);
    }
    sum * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

/// `base` to the power `exponent`, with a relative error within 2^-52·(3 + 2·|exponent·ln base|). The base is positive and
/// normal, the result between e^-700 and e^700.
pub(crate) fn pow(base: f64, exponent: f64) -> f64 {
    exp_f64(exponent * ln(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the last place of `exact` as a single.
    fn ulps(got: f32, exact: f64) -> f64 {
        let exponent = exact.abs().log2().floor().max(-126.0);
        (f64::from(got) - exact).abs() / 2f64.powf(exponent - 23.0)
    }

    #[test]
    fn exp_is_within_1_ulp() {
        let mut worst: f64 = 0.0;
        for i in -1_040_000..=888_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            if exact < f64::from(f32::MAX) {
                worst = worst.max(ulps(exp(x), exact));
            }
        }
        assert!(worst <= 1.0, "{worst} ULP");
    }

    #[test]
    fn exp_at_the_ends() {
        assert_eq!((exp(0.0), exp(-0.0)), (1.0, 1.0));
        for x in [89.0, 1e30, f32::INFINITY] {
            assert_eq!(exp(x), f32::INFINITY);
        }
        for x in [-104.0, -1e30, f32::NEG_INFINITY] {
            assert_eq!(exp(x), 0.0);
        }
        assert!(exp(88.722_83).is_finite() && exp(-103.0) > 0.0);
        assert!(exp(f32::NAN).is_nan() && exp(f32::from_bits(0xffff_ffff)).is_nan());
    }

    #[test]
    fn sin_and_cos_are_within_1e_15() {
        let mut x = 1e-9;
        while x < 2f64.powi(40) {
            for x in [x, -x, x.round()] {
                let (sin, cos) = sin_cos(x);
                assert!((sin - x.sin()).abs() < 1e-15 && (cos - x.cos()).abs() < 1e-15, "at {x}");
            }
            x *= 1.000_7;
        }
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
        assert!(sin_cos(f64::INFINITY).0.is_nan() && sin_cos(f64::NAN).1.is_nan());
    }

    #[test]
    fn ln_is_within_2_ulp() {
        let mut x = 1e-300;
        while x < 1e300 {
            let exact = f64::ln(x);
            assert!(
                (ln(x) - exact).abs() <= 2.0 * 2f64.powi(-52) * exact.abs().max(1e-300),
                "at {x}: {}",
                ln(x)
            );
            x *= 1.003_1;
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn powers_of_rope_bases() {
        for base in [1e4, 5e5, 1e6, 1e7, 0.5, 1.0] {
            for i in 0..128 {
                let e = -2.0 * f64::from(i) / 256.0;
                let exact = f64::powf(base, e);
                let bound = 2f64.powi(-52) * (3.0 + 2.0 * (e * base.ln()).abs());
                assert!((pow(base, e) / exact - 1.0).abs() <= bound, "{base} to the {e}");
            }
        }
    }
}
