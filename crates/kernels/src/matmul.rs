//! The one place where a product is dispatched to a level: once per call, never per row.

use crate::acts::Acts;
use crate::isa::{Isa, Level};
use crate::numbers::canonical;
use crate::rows::QuantRows;
use crate::scalar;

/// y = W·x for every token: `y` is (rows, tokens), so `y[r * tokens + t]` is row `r` with token `t`.
///
/// Quantised formats are multiplied with the 8-bit form of the activations, see [`Acts`]. The bits of a result depend on
/// its row and its token alone: not on the level, the other tokens, or how the rows were split into calls. Per block the
/// sums over weights × sub-block scales × activations (S) and minima × activations (M) are exact integers, each converted
/// to f32 once; with blocks ascending, `acc = fma(d·dx, S, acc)`, `accm = fma(dmin·dx, M, accm)` and `y = acc − accm`.
/// Q4_1 and Q5_1 have `dmin = −m`. With 16 bits of the activations the result is y of their first form plus y of the second. F32, F16 and BF16 take 16 partial sums by column modulo 16, joined by halves.
///
/// No rows or no tokens are fine and do nothing.
///
/// # Panics
/// When `x` has other columns than `w`, has not been prepared for the format (see [`Acts::prepare`]), or `y` is not of
/// length rows × tokens.
pub fn matmul(isa: Isa, w: QuantRows<'_>, x: &Acts, y: &mut [f32]) {
    assert_eq!(y.len(), w.rows() * x.tokens(), "results for {} rows × {} tokens", w.rows(), x.tokens());
    if y.is_empty() {
        return;
    }
    assert_eq!(x.cols(), w.cols(), "columns of the activations and of the weights");
    assert!(x.is_prepared(w.format()), "Acts::prepare has not been called for {}", w.format());
    let Some(rest) = x.rest(w.format()) else { return product(isa, w, x, y) };
    // Some rows with both forms while their weights are near.
    let rows = (SOME / x.tokens()).max(SOME_ROWS);
    let mut more = vec![0.0; rows.min(w.rows()) * x.tokens()];
    for (at, y) in y.chunks_mut(rows * x.tokens()).enumerate() {
        let more = &mut more[..y.len()];
        let w = w.slice(at * rows..at * rows + y.len() / x.tokens());
        product(isa, w, x, y);
        product(isa, w, rest, more);
        y.iter_mut().zip(more).for_each(|(y, more)| *y = canonical(*y + *more));
    }
}

/// Results of one form that wait for those of the other: 16 KiB, half of the smallest level 1.
const SOME: usize = 4096;

/// Rows that kernels for many tokens take at once: fewer would leave lanes empty.
const SOME_ROWS: usize = 32;

/// y = W·x with one form of the activations.
fn product(isa: Isa, w: QuantRows<'_>, x: &Acts, y: &mut [f32]) {
    match isa.level() {
        Level::Scalar => scalar::matmul(w, x, y),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(proof) => proof.matmul(w, x, y, isa.tuning()),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(proof) => proof.matmul(w, x, y, isa.tuning()),
        #[cfg(target_arch = "aarch64")]
        Level::Neon(proof) => proof.matmul(w, x, y),
        #[cfg(target_arch = "aarch64")]
        Level::I8mm(proof) => proof.matmul(w, x, y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;

    #[test]
    #[should_panic(expected = "prepare has not been called for Q8_0")]
    fn unprepared_activations_are_a_bug() {
        let mut x = Acts::new();
        x.fill(&[0.0; 32], 32);
        matmul(Isa::scalar(), QuantRows::new(Format::Q8_0, 32, &[0; 34]).unwrap(), &x, &mut [0.0]);
    }

    #[test]
    #[should_panic(expected = "columns of the activations")]
    fn other_columns_are_a_bug() {
        let mut x = Acts::new();
        x.fill(&[0.0; 3], 3);
        matmul(Isa::scalar(), QuantRows::new(Format::F32, 2, &[0; 8]).unwrap(), &x, &mut [0.0]);
    }

    #[test]
    fn nothing_is_fine() {
        let mut x = Acts::new();
        x.fill(&[], 32);
        for isa in Isa::available() {
            matmul(isa, QuantRows::new(Format::Q8_0, 32, &[0; 34]).unwrap(), &x, &mut []);
        }
    }
}
