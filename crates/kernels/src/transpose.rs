//! Turning products: kernels give them by row (rows × tokens), what follows wants them by token.

use core::ops::Range;

#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::isa::{Isa, Portable};

/// Rows and columns that are turned together: a line of cache of each side.
pub(crate) const SIDE: usize = 16;

/// `out[i][r] = y[r][columns.start + i]`, where `y` is (rows, stride) and `out` (columns, rows).
///
/// # Panics
/// When `stride` is 0 or `y` not whole rows of it, when `columns` end behind the stride, or `out` has another length than
/// columns × rows.
pub fn transpose(isa: Isa, y: &[f32], stride: usize, columns: Range<usize>, out: &mut [f32]) {
    turn::<false>(isa, y, stride, columns, out);
}

/// As [`transpose`], adding to what `out` holds.
///
/// # Panics
/// As [`transpose`].
pub fn add_transposed(isa: Isa, y: &[f32], stride: usize, columns: Range<usize>, out: &mut [f32]) {
    turn::<true>(isa, y, stride, columns, out);
}

fn turn<const ADD: bool>(isa: Isa, y: &[f32], stride: usize, columns: Range<usize>, out: &mut [f32]) {
    assert!(stride > 0 && y.len().is_multiple_of(stride), "{} values in rows of {stride}", y.len());
    assert!(columns.start <= columns.end && columns.end <= stride, "columns {columns:?} of {stride}");
    assert_eq!(out.len(), columns.len() * (y.len() / stride), "results of turning");
    if out.is_empty() {
        return;
    }
    if stride == 1 {
        out.iter_mut().zip(y).for_each(|(out, y)| put::<ADD>(out, *y));
        return;
    }
    #[cfg(target_arch = "aarch64")]
    if let Some(proof) = isa.level().neon() {
        return proof.turn::<ADD>(y, stride, columns, out);
    }
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(proof) => proof.turn::<ADD>(y, stride, columns, out),
        _ => isa.run(Turn::<ADD> { y, stride, columns, out }),
    }
}

/// One value to its place.
#[inline(always)]
pub(crate) fn put<const ADD: bool>(out: &mut f32, value: f32) {
    *out = if ADD { *out + value } else { value };
}

struct Turn<'a, const ADD: bool> {
    y: &'a [f32],
    stride: usize,
    columns: Range<usize>,
    out: &'a mut [f32],
}

impl<const ADD: bool> Portable for Turn<'_, ADD> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let rows = self.y.len() / self.stride;
        for r0 in (0..rows).step_by(SIDE) {
            for c0 in self.columns.clone().step_by(SIDE) {
                for r in r0..(r0 + SIDE).min(rows) {
                    for c in c0..(c0 + SIDE).min(self.columns.end) {
                        let at = (c - self.columns.start) * rows + r;
                        put::<ADD>(&mut self.out[at], self.y[r * self.stride + c]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_finds_its_place() {
        for (rows, stride) in [(1, 1), (16, 16), (17, 33), (35, 19), (48, 40)] {
            let y: Vec<f32> = (0..rows * stride).map(|i| i as f32 + 1.0).collect();
            for isa in Isa::available() {
                for columns in [0..stride, stride / 3..stride, 0..0, stride / 2..stride.min(stride / 2 + 17)]
                {
                    let mut out = vec![0.5; columns.len() * rows];
                    transpose(isa, &y, stride, columns.clone(), &mut out);
                    add_transposed(isa, &y, stride, columns.clone(), &mut out);
                    for (i, c) in columns.enumerate() {
                        for r in 0..rows {
                            assert_eq!(
                                out[i * rows + r],
                                2.0 * y[r * stride + c],
                                "{isa}, {rows} × {stride}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "columns 1..4 of 3")]
    fn columns_past_the_end_are_a_bug() {
        transpose(Isa::scalar(), &[0.0; 6], 3, 1..4, &mut [0.0; 6]);
    }
}
