//! Rotary position embedding: frequencies in f64, tables of cosines and sines per position, and the rotation.
//!
//! Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021. Frequency `i` of a rotated
//! width `dim` is `base^(−2i/dim)`, divided by a linear factor and by the divisors of `rope_freqs.weight` where a model has
//! them; pair `i` of a head turns by position × frequency `i`.

use core::fmt;

use crate::transcendental::{pow, sin_cos};

/// Which elements of a head form pair `i` of the `n` that are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Elements 2i and 2i+1.
    Interleaved,
    /// Elements i and n+i.
    HalfSplit,
}

impl RopeStyle {
    /// Rotates one head in place: pair `i` by the angle with cosine `cos[i]` and sine `sin[i]`.
    ///
    /// Elements after the first `2·cos.len()` stay as they are. `(a, b)` becomes `(a·cos − b·sin, a·sin + b·cos)`, each
    /// product and sum rounded on its own, so no level has a say in it.
    ///
    /// # Panics
    /// When `cos` and `sin` differ in length or the head is shorter than the rotated part.
    pub fn apply(self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        assert_eq!(cos.len(), sin.len(), "cosines and sines");
        assert!(2 * cos.len() <= x.len(), "{} pairs in a head of {} elements", cos.len(), x.len());
        let rotated = &mut x[..2 * cos.len()];
        let turn = |a: &mut f32, b: &mut f32, cos: f32, sin: f32| {
            (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
        };
        match self {
            Self::Interleaved => {
                for (([a, b], &cos), &sin) in rotated.as_chunks_mut().0.iter_mut().zip(cos).zip(sin) {
                    turn(a, b, cos, sin);
                }
            }
            Self::HalfSplit => {
                let (first, second) = rotated.split_at_mut(cos.len());
                for (((a, b), &cos), &sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    turn(a, b, cos, sin);
                }
            }
        }
    }
}

/// The frequencies of a model, in radians per position.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFreqs {
    frequencies: Vec<f64>, // dim/2
}

impl RopeFreqs {
    /// The frequencies for a rotated width of `dim` elements: `base^(−2i/dim) / linear / divisors[i]`.
    ///
    /// `linear` is the factor of linear scaling, 1 without; `divisors` are the values of `rope_freqs.weight`, if any.
    ///
    /// # Errors
    /// When `dim` is 0 or odd, there are not `dim/2` divisors, or a number is not positive, finite and normal.
    pub fn new(base: f64, dim: usize, linear: f64, divisors: Option<&[f32]>) -> Result<Self, RopeError> {
        let positive = |what, value: f64| {
            if value.is_normal() && value > 0.0 {
                Ok(value)
            } else {
                Err(RopeError::NotPositive { what, value })
            }
        };
        let (base, linear) = (positive("base", base)?, positive("linear factor", linear)?);
        if dim == 0 || !dim.is_multiple_of(2) {
            return Err(RopeError::Dim(dim));
        }
        if let Some(divisors) = divisors.filter(|divisors| divisors.len() != dim / 2) {
            return Err(RopeError::Divisors { wanted: dim / 2, found: divisors.len() });
        }
        let mut frequencies = Vec::with_capacity(dim / 2);
        for i in 0..dim / 2 {
            let divisor = divisors.map_or(Ok(1.0), |d| positive("frequency divisor", f64::from(d[i])))?;
            // The exponent is above −1, so only a base near the ends of f64 could lead to anything that is not normal.
            let frequency = pow(base, -((2 * i) as f64 / dim as f64)) / linear / divisor;
            frequencies.push(positive("frequency", frequency)?);
        }
        Ok(Self { frequencies })
    }

    /// Pairs that are rotated, dim/2.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Writes cosine and sine of position × frequency for every pair. Angles are computed in f64 and reduced there, so
    /// far positions lose nothing.
    ///
    /// # Panics
    /// When `cos` or `sin` is not of length [`RopeFreqs::pairs`].
    pub fn angles(&self, position: usize, cos: &mut [f32], sin: &mut [f32]) {
        assert_eq!((cos.len(), sin.len()), (self.pairs(), self.pairs()), "cosines and sines of the pairs");
        for ((frequency, cos), sin) in self.frequencies.iter().zip(cos).zip(sin) {
            let (s, c) = sin_cos(position as f64 * frequency);
            (*cos, *sin) = (c as f32, s as f32);
        }
    }
}

/// Numbers that give no frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeError {
    /// The rotated width is 0 or odd.
    Dim(usize),
    /// Not one divisor per pair.
    Divisors {
        /// Half of the rotated width.
        wanted: usize,
        /// The number given.
        found: usize,
    },
    /// A number that must be positive, finite and normal is not.
    NotPositive {
        /// What the number is.
        what: &'static str,
        /// The number.
        value: f64,
    },
}

impl fmt::Display for RopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dim(dim) => write!(f, "the rotated width must be even and positive, found {dim}"),
            Self::Divisors { wanted, found } => {
                write!(f, "wanted {wanted} frequency divisors, found {found}")
            }
            Self::NotPositive { what, value } => {
                write!(f, "the {what} of RoPE must be positive, found {value}")
            }
        }
    }
}

impl core::error::Error for RopeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_and_angles() {
        let freqs = RopeFreqs::new(1e4, 4, 2.0, Some(&[1.0, 4.0])).unwrap();
        let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
        freqs.angles(10, &mut cos, &mut sin);
        let angles = [5.0f64, 10.0 * 0.01 / 2.0 / 4.0];
        assert_eq!(cos, angles.map(|a| a.cos() as f32));
        assert_eq!(sin, angles.map(|a| a.sin() as f32));
        freqs.angles(0, &mut cos, &mut sin);
        assert_eq!((cos, sin), ([1.0; 2], [0.0; 2]));
    }

    #[test]
    fn both_styles_turn_their_pairs() {
        let (cos, sin) = ([0.0, 1.0], [1.0, 0.0]); // a quarter turn for pair 0, none for pair 1
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0];
        RopeStyle::Interleaved.apply(&mut x, &cos, &sin);
        assert_eq!(x, [-2.0, 1.0, 3.0, 4.0, 5.0]);
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0];
        RopeStyle::HalfSplit.apply(&mut x, &cos, &sin);
        assert_eq!(x, [-3.0, 2.0, 1.0, 4.0, 5.0]);
    }

    #[test]
    fn nonsense_is_refused() {
        for dim in [0, 3] {
            assert_eq!(RopeFreqs::new(1e4, dim, 1.0, None), Err(RopeError::Dim(dim)));
        }
        let error = RopeFreqs::new(1e4, 4, 1.0, Some(&[1.0])).unwrap_err();
        assert_eq!(error, RopeError::Divisors { wanted: 2, found: 1 });
        for (base, linear, divisor) in
            [(0.0, 1.0, 1.0), (f64::NAN, 1.0, 1.0), (1e4, -1.0, 1.0), (1e4, 1.0, 0.0)]
        {
            let error = RopeFreqs::new(base, 2, linear, Some(&[divisor])).unwrap_err();
            assert!(matches!(error, RopeError::NotPositive { .. }), "{error}");
        }
        assert!(RopeFreqs::new(f64::MAX, 2, 1e-300, None).is_ok());
        assert!(RopeFreqs::new(1.0, 2, f64::MIN_POSITIVE, Some(&[f32::MIN_POSITIVE])).is_err());
    }
}
