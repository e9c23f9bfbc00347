//! Activations: the f32 values of some tokens, and the 8-bit forms of them that quantised weights are multiplied with.

mod planes;
mod quantise;

#[cfg(target_arch = "x86_64")]
pub(crate) use self::planes::PLANES;
pub(crate) use self::planes::Planes;
use self::planes::TILE_TOKENS;
pub use self::quantise::Part;
use self::quantise::{Piece, To32, To256};
use crate::format::Format;
use crate::isa::Isa;

/// `tokens × cols` activations, token-major.
///
/// One is meant to be used over and over: its buffers grow to the largest shape seen and stay.
///
/// F32, F16 and BF16 weights are multiplied with the values themselves, the quantised formats with an 8-bit form of
/// them, which has one scale per group of values. With `amax` the largest magnitude in the group and `f = 127/amax`:
///
/// - groups of 32: `scale = amax/127`, `q = round_ties_even(x·f)`, and x is about `scale·q`;
/// - the K formats, groups of 256: a part of 32 whose values are all small is rounded in finer steps. `e` is the largest of
///   0 to 3 for which the part's own largest magnitude is at most `amax/2^e`; `q = round_ties_even(x·f·2^e)`,
///   `shift = 3 − e`, `scale = amax/(8·127)`, and x is about `scale·q·2^shift`.
///
/// A group that is all zero, or so small that f is not finite, has scale 0 and `q` 0. A group with a value that is not
/// finite has scale NaN and `q` 0, so that it shows in every product instead of passing for a large number.
///
/// With [`ActBits::Sixteen`] there is a second form, of what the first leaves of the values (x less what it stands for, rounded
/// once), and a product is the sum of the products with both.
#[derive(Debug, Default)]
pub struct Acts {
    tokens: usize,
    cols: usize,
    values: Vec<f32>, // tokens × cols
    per_32: Form<i32>,
    per_256: Form<i16>,
    /// `per_256` once more, for levels with a tile unit.
    planes: Planes,
    /// What these forms leave, without values of its own; with 16 bits only.
    rest: Option<Box<Acts>>,
}

/// How activations are rounded for products with quantised weights.
///
/// 8 bits are what such products are fast with. They make logits a little noisy: for SmolLM2-135M by 0.11 (root mean square),
/// which moves a perplexity over 512 tokens by −0.1 to +1.1 % (docs/kernels.md). 16 bits end that, at twice the arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActBits {
    /// One form of 8 bits.
    #[default]
    Eight,
    /// Two: the second has what the first left.
    Sixteen,
}

impl ActBits {
    /// How many.
    pub fn count(self) -> u32 {
        match self {
            Self::Eight => 8,
            Self::Sixteen => 16,
        }
    }
}

/// The activations in 8 bits. Scales and sums lie block-major where kernels have tokens in their lanes.
#[derive(Debug, Default)]
pub(crate) struct Form<Sum> {
    ready: bool,
    /// tokens × cols, −127 to 127.
    pub q: Vec<i8>,
    /// groups × tokens, and `SPARE` more.
    pub scales: Vec<f32>,
    /// In groups of 256, per 32 values: how many bits `q` is shifted left, 0 to 3, in units of the scale; tokens × cols/32.
    pub shifts: Vec<u8>,
    /// Two to the power of each shift, for levels that multiply instead.
    pub powers: Vec<i16>,
    /// Sums of `q` in units of the scale: per 32, groups × tokens and `SPARE` more; per 16 within groups of 256, tokens ×
    /// cols/16.
    pub sums: Vec<Sum>,
}

/// Finest steps in a group of 256: eight times as fine as the scale of its largest value asks for. The integer sums of a
/// block stay within 32 bits, and sums of 32 activations within 16: 32·127·2^3 = 32512.
///
/// What it is for: activations have outliers, and one scale for 256 of them rounds all others coarsely. SmolLM2-135M with ffn_down
/// in Q4_K and Q6_K, logits against exact activations there: off by 0.104 (root mean square) with one scale, 0.061 with steps up
/// to 8 times finer, 0.060 up to 16 times, 0.049 with a scale of its own for each 32, which integer sums cannot have.
pub(crate) const FINEST: u32 = 3;

/// One token's part of a form with groups of 256.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    pub q: &'a [i8; 256],
    pub shifts: &'a [u8; 8],
    pub powers: &'a [i16; 8],
    pub sums: &'a [i16; 16],
}

/// What lies behind the last token of scales and sums, so that a full register can be read from any token on.
///
/// One less than the widest register has lanes.
const SPARE: usize = 15;

/// Which form of the activations a format is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Values,
    Per32,
    Per256,
}

/// The form that goes with a format.
fn wanted(format: Format) -> Wanted {
    match format.block_len() {
        32 => Wanted::Per32,
        256 => Wanted::Per256,
        _ => Wanted::Values,
    }
}

impl Acts {
    /// No tokens yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// No tokens yet, and products with so many bits of them.
    pub fn with_bits(bits: ActBits) -> Self {
        let rest = match bits {
            ActBits::Eight => None,
            ActBits::Sixteen => Some(Box::default()),
        };
        Self { rest, ..Self::default() }
    }

    /// What products take of the activations.
    pub fn bits(&self) -> ActBits {
        if self.rest.is_some() { ActBits::Sixteen } else { ActBits::Eight }
    }

    /// Takes over a copy of `x`, which holds `x.len() / cols` tokens (0 is fine), and forgets all earlier 8-bit forms.
    ///
    /// # Panics
    /// When `cols` is 0 or `x` is not a whole number of tokens.
    pub fn fill(&mut self, x: &[f32], cols: usize) {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "{} activations in rows of {cols}", x.len());
        self.reset(x.len() / cols, cols).copy_from_slice(x);
    }

    /// Room for `tokens × cols` activations, to be written by the caller; what it holds before is unspecified. All
    /// earlier 8-bit forms are forgotten.
    ///
    /// # Panics
    /// When `cols` is 0.
    pub fn reset(&mut self, tokens: usize, cols: usize) -> &mut [f32] {
        assert!(cols > 0, "activations without columns");
        (self.tokens, self.cols) = (tokens, cols);
        resize(&mut self.values, tokens * cols);
        (self.per_32.ready, self.per_256.ready) = (false, false);
        &mut self.values
    }

    /// Builds the form that rows of `format` are multiplied with, unless it is there already. Formats with groups of the
    /// same length share one; for F32, F16 and BF16 there is nothing to build.
    ///
    /// # Panics
    /// When the columns are not a whole number of the format's blocks; such rows cannot exist.
    pub fn prepare(&mut self, isa: Isa, format: Format) {
        for part in self.parts(isa, format, 1) {
            part.build(isa);
        }
    }

    /// [`Acts::prepare`] for several threads: at most `count` parts, of some tokens each, and the form is there once every
    /// one of them has been built. None when there is nothing to do.
    ///
    /// # Panics
    /// When `count` is 0, or as [`Acts::prepare`].
    pub fn parts(&mut self, isa: Isa, format: Format, count: usize) -> Vec<Part<'_>> {
        let (tokens, cols) = (self.tokens, self.cols);
        let mut rest = self.rest.as_deref_mut();
        if let Some(rest) = &mut rest {
            (rest.tokens, rest.cols) = (tokens, cols);
        }
        assert!(cols.is_multiple_of(format.block_len()), "{format} has no rows of {cols} columns");
        let mut each = tokens.div_ceil(count).max(1);
        let tiles = if isa.multiplies_tiles(tokens) { tokens.div_ceil(TILE_TOKENS) } else { 0 };
        if tiles > 0 {
            each = each.next_multiple_of(TILE_TOKENS);
        }
        match wanted(format) {
            Wanted::Per32 if !self.per_32.ready => {
                let to = self.per_32.divide(tokens, cols, each);
                let mut rest = rest.map(|rest| rest.per_32.divide(tokens, cols, each).into_iter());
                let parts = self.values.chunks(each * cols).zip(to);
                parts
                    .map(|(x, to)| Part(Piece::Per32(x, to, rest.as_mut().and_then(Iterator::next))))
                    .collect()
            }
            Wanted::Per256 if !self.per_256.ready => {
                let len = tiles * (cols / 256);
                let to = self.per_256.divide(tokens, cols, each, &mut self.planes, len);
                let mut rest = rest
                    .map(|rest| rest.per_256.divide(tokens, cols, each, &mut rest.planes, len).into_iter());
                let parts = self.values.chunks(each * cols).zip(to);
                parts
                    .map(|(x, to)| Part(Piece::Per256(x, to, rest.as_mut().and_then(Iterator::next))))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Bytes of memory that the values and their forms have taken.
    pub fn heap_bytes(&self) -> usize {
        fn form<Sum>(form: &Form<Sum>) -> usize {
            form.q.capacity()
                + form.scales.capacity() * size_of::<f32>()
                + form.shifts.capacity()
                + form.powers.capacity() * size_of::<i16>()
                + form.sums.capacity() * size_of::<Sum>()
        }
        let rest = self.rest.as_ref().map_or(0, |rest| rest.heap_bytes());
        let planes = self.planes.blocks.capacity() * size_of::<planes::BlockPlanes>();
        self.values.capacity() * size_of::<f32>() + form(&self.per_32) + form(&self.per_256) + planes + rest
    }

    /// What the form for `format` leaves of the values, where products take that into account.
    pub(crate) fn rest(&self, format: Format) -> Option<&Self> {
        self.rest.as_deref().filter(|_| wanted(format) != Wanted::Values)
    }

    /// The activations as they were filled in, (tokens, cols).
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Values per token.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Whether [`Acts::prepare`] has been called for a format like this one since the last [`Acts::fill`].
    pub fn is_prepared(&self, format: Format) -> bool {
        match wanted(format) {
            Wanted::Values => true,
            Wanted::Per32 => self.per_32.ready,
            Wanted::Per256 => self.per_256.ready,
        }
    }

    /// The form with a scale per 32 values.
    pub(crate) fn per_32(&self) -> &Form<i32> {
        &self.per_32
    }

    /// The same for a tile unit, if it was built.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn planes(&self) -> Option<&Planes> {
        Some(&self.planes).filter(|planes| !planes.blocks.is_empty())
    }

    /// The form with a scale per 256 values.
    pub(crate) fn per_256(&self) -> &Form<i16> {
        &self.per_256
    }
}

impl<Sum: Copy + Default> Form<Sum> {
    /// Makes room, exactly: these buffers count in the memory budget.
    fn resize(&mut self, q: usize, scales: usize, shifts: usize, sums: usize) {
        resize(&mut self.q, q);
        resize(&mut self.scales, scales);
        resize(&mut self.shifts, shifts);
        resize(&mut self.powers, shifts);
        resize(&mut self.sums, sums);
    }
}

#[cfg(target_arch = "x86_64")]
impl<Sum> Form<Sum> {
    /// Eight scales from `at` on, which is the place of a token in a group.
    #[inline(always)]
    pub(crate) fn scales_tile(&self, at: usize) -> &[f32; 8] {
        &self.scales[at..at + 8].as_chunks().0[0]
    }
}

#[cfg(target_arch = "x86_64")]
impl Form<i32> {
    /// Eight scales and the sums that go with them.
    #[inline(always)]
    pub(crate) fn tile(&self, at: usize) -> (&[f32; 8], &[i32; 8]) {
        (self.scales_tile(at), &self.sums[at..at + 8].as_chunks().0[0])
    }
}

impl Form<i32> {
    /// Makes room for all groups of 32, and divides it into parts of `each` tokens.
    fn divide(&mut self, tokens: usize, cols: usize, each: usize) -> Vec<To32<'_>> {
        let groups = tokens * (cols / 32) + SPARE;
        self.resize(tokens * cols, groups, 0, groups);
        self.ready = true;
        let scales = columns(&mut self.scales, tokens, cols / 32, each);
        let sums = columns(&mut self.sums, tokens, cols / 32, each);
        let parts = self.q.chunks_mut(each * cols).zip(scales).zip(sums);
        parts.map(|((q, scales), sums)| To32 { q, scales, sums }).collect()
    }
}

impl Form<i16> {
    /// Makes room for all groups of 256, and divides it into parts of `each` tokens.
    fn divide<'a>(
        &'a mut self,
        tokens: usize,
        cols: usize,
        each: usize,
        planes: &'a mut Planes,
        len: usize,
    ) -> Vec<To256<'a>> {
        let groups = tokens * (cols / 256);
        planes.resize(len);
        let mut planes = planes.blocks.chunks_mut((each / TILE_TOKENS * (cols / 256)).max(1));
        self.resize(tokens * cols, groups + SPARE, groups * 8, groups * 16);
        self.ready = true;
        let scales = columns(&mut self.scales, tokens, cols / 256, each);
        let shifts = self.shifts.chunks_mut(each * cols / 32);
        let powers = self.powers.chunks_mut(each * cols / 32);
        let sums = self.sums.chunks_mut(each * cols / 16);
        let parts = self.q.chunks_mut(each * cols).zip(scales).zip(shifts.zip(powers)).zip(sums);
        let part = |(((q, scales), (shifts, powers)), sums)| {
            let planes = planes.next().unwrap_or_default();
            To256 { q, scales, shifts, powers, sums, planes }
        };
        parts.map(part).collect()
    }

    /// Group `at` of all, which lie token-major.
    #[inline(always)]
    pub(crate) fn group(&self, at: usize) -> Group<'_> {
        Group {
            q: &self.q.as_chunks().0[at],
            shifts: &self.shifts.as_chunks().0[at],
            powers: &self.powers.as_chunks().0[at],
            sums: &self.sums.as_chunks().0[at],
        }
    }
}

/// Resizes without the slack of amortised growth.
fn resize<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) {
    buffer.reserve_exact(len.saturating_sub(buffer.len()));
    buffer.resize(len, T::default());
}

/// What block-major values hold for some tokens: a slice per group of columns.
type Columns<'a, T> = Vec<&'a mut [T]>;

/// Divides `values` (groups × tokens) into parts of `each` tokens.
fn columns<T>(values: &mut [T], tokens: usize, groups: usize, each: usize) -> Vec<Columns<'_, T>> {
    let mut parts: Vec<Columns<'_, T>> =
        (0..tokens.div_ceil(each)).map(|_| Vec::with_capacity(groups)).collect();
    for group in values.chunks_mut(tokens.max(1)).take(groups) {
        for (part, tokens) in parts.iter_mut().zip(group.chunks_mut(each)) {
            part.push(tokens);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(x: &[f32], cols: usize, format: Format) -> Acts {
        let mut acts = Acts::new();
        acts.fill(x, cols);
        acts.prepare(Isa::scalar(), format);
        acts
    }

    #[test]
    fn rounds_to_even_and_keeps_sums() {
        let mut x = [0.0; 64];
        x[..5].copy_from_slice(&[127.0, 0.5, 1.5, -2.5, -127.0]); // factor 1: halves are ties
        x[32] = 2.0;
        let acts = filled(&x, 64, Format::Q8_0);
        assert_eq!(acts.per_32().q[..5], [127, 0, 2, -2, -127]);
        assert_eq!(acts.per_32().q[32], 127);
        assert_eq!(acts.per_32().scales[..2], [1.0, 2.0 / 127.0]);
        assert_eq!(acts.per_32().sums[..2], [0, 127]);
    }

    #[test]
    fn scales_lie_block_major() {
        let mut x = vec![0.0; 2 * 512];
        (x[0], x[256], x[512], x[768]) = (127.0, 254.0, 381.0, 508.0);
        let acts = filled(&x, 512, Format::Q6_K);
        assert_eq!(acts.per_256().scales[..4], [0.125, 0.375, 0.25, 0.5]);
        assert_eq!(acts.per_256().sums[32], 127 * 8); // second token, first group of 16
    }

    #[test]
    fn small_values_are_rounded_in_finer_steps() {
        // Factor 1, and in each part of 32 one value at the edge of what the next finer step allows, or just above it.
        let largest = [127.0, 63.6, 63.5, 31.8, 31.75, 15.9, 15.875, 0.0];
        let mut x = [0.0; 256];
        for (part, largest) in largest.into_iter().enumerate() {
            (x[32 * part + 5], x[32 * part + 20]) = (-largest, 0.3);
        }
        x[7 * 32 + 20] = 0.0;
        let acts = filled(&x, 256, Format::Q4_K);
        let group = acts.per_256().group(0);
        assert_eq!(*group.shifts, [3, 3, 2, 2, 1, 1, 0, 0]);
        let ends: Vec<i8> = group.q.chunks(32).map(|part| part[5]).collect();
        assert_eq!(ends, [-127, -64, -127, -64, -127, -64, -127, 0]);
        let inner: Vec<i8> = group.q.chunks(32).map(|part| part[20]).collect();
        assert_eq!(inner, [0, 0, 1, 1, 1, 1, 2, 0]); // 0.3 times 1, 2, 4 and 8
        assert_eq!(group.sums[..4], [-127 * 8, 0, -64 * 8, 0]);
        assert_eq!(group.sums[12..], [-127, 2, 0, 0]);
        assert_eq!(acts.per_256().scales[0], 0.125);
    }

    #[test]
    fn odd_groups() {
        for (value, scale) in [(0.0, 0.0), (1e-38, 0.0), (f32::INFINITY, f32::NAN), (f32::NAN, f32::NAN)] {
            for format in [Format::Q4_0, Format::Q4_K] {
                let mut x = [0.0; 256];
                x[3] = value;
                let acts = filled(&x, 256, format);
                let (got, q) = match wanted(format) {
                    Wanted::Per32 => (acts.per_32().scales[0], &acts.per_32().q),
                    _ => (acts.per_256().scales[0], &acts.per_256().q),
                };
                assert!(got == scale || (got.is_nan() && scale.is_nan()), "{value} gives {got}");
                assert!(q.iter().all(|&q| q == 0));
            }
        }
        let acts = filled(&[f32::MAX; 32], 32, Format::Q4_0);
        assert_eq!(acts.per_32().q, [127; 32]);
        // The factor is the largest there is, and eight times that is not finite.
        let mut x = [1e-37; 256];
        x[0] = 127.0 / f32::MAX * 1.001;
        let acts = filled(&x, 256, Format::Q4_K);
        assert_eq!((acts.per_256().q[0], acts.per_256().q[255], acts.per_256().shifts[7]), (127, 68, 2));
    }

    #[test]
    fn parts_give_what_the_whole_gives() {
        let (tokens, cols) = (7, 512);
        let x: Vec<f32> = (0..tokens * cols).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
        for (format, bits) in [
            (Format::Q4_1, ActBits::Eight),
            (Format::Q4_K, ActBits::Eight),
            (Format::Q4_1, ActBits::Sixteen),
            (Format::Q4_K, ActBits::Sixteen),
        ] {
            let mut whole = Acts::with_bits(bits);
            whole.fill(&x, cols);
            whole.prepare(Isa::scalar(), format);
            for count in [1, 2, 3, 7, 100] {
                let mut acts = Acts::with_bits(bits);
                acts.reset(tokens, cols).copy_from_slice(&x);
                let parts = acts.parts(Isa::scalar(), format, count);
                assert!(parts.len() <= count);
                parts.into_iter().rev().for_each(|part| part.build(Isa::scalar()));
                assert!(acts.parts(Isa::scalar(), format, count).is_empty(), "built already");
                assert_eq!(format!("{acts:?}"), format!("{whole:?}"), "{count} parts of {format}");
            }
        }
        assert!(Acts::default().parts(Isa::scalar(), Format::F32, 2).is_empty());
    }

    #[test]
    fn forms_last_until_the_next_fill() {
        let mut acts = filled(&[1.0; 32], 32, Format::Q8_0);
        assert!(
            acts.is_prepared(Format::Q4_1)
                && acts.is_prepared(Format::F16)
                && !acts.is_prepared(Format::Q4_K)
        );
        acts.fill(&[], 32);
        assert_eq!((acts.tokens(), acts.is_prepared(Format::Q4_1)), (0, false));
        acts.prepare(Isa::scalar(), Format::Q4_1);
        assert!(acts.is_prepared(Format::Q4_1));
    }
}
