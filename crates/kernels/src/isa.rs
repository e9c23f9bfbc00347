//! CPU levels: which sets of instructions the kernels may use, proved by the type and chosen once.

use core::fmt;

#[cfg(target_arch = "aarch64")]
use crate::aarch64::{I8mm, Neon};
use crate::numbers::LANES;
use crate::tuning::{Tuning, TuningError};
use crate::wide::Wide;
#[cfg(target_arch = "x86_64")]
use crate::x86::{Avx2, Avx512};

/// Environment variable that forces a level, for tests and for comparing levels.
const VARIABLE: &str = "SLUICE_ISA";

/// A CPU level. Having one proves that this CPU can run it, so every kernel is safe to call with any.
///
/// Two are equal when they are the same level: their choices change no result.
#[derive(Clone, Copy, Debug)]
pub struct Isa {
    level: Level,
    tuning: Tuning,
}

impl PartialEq for Isa {
    fn eq(&self, other: &Self) -> bool {
        self.level == other.level
    }
}

impl Eq for Isa {}

/// What an [`Isa`] stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Portable code for the baseline of the target; defines the bits.
    Scalar,
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 (F, BW, DQ, VL) with VNNI, and all of AVX2; with the tile unit (AMX) where the proof says so.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// NEON with dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    /// Matrix products of bytes, and all of NEON.
    #[cfg(target_arch = "aarch64")]
    I8mm(I8mm),
}

#[cfg(target_arch = "aarch64")]
impl Level {
    /// The proof of NEON in this level, if it has one.
    pub(crate) fn neon(self) -> Option<Neon> {
        match self {
            Self::Scalar => None,
            Self::Neon(proof) => Some(proof),
            Self::I8mm(proof) => Some(proof.neon()),
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Level {
    /// The proof of AVX2 in this level, if it has one.
    pub(crate) fn avx2(self) -> Option<Avx2> {
        match self {
            Self::Scalar => None,
            Self::Avx2(proof) => Some(proof),
            Self::Avx512(proof) => Some(proof.avx2()),
        }
    }
}

/// Portable code that is compiled once for every level, so that wide registers are used with the same bits.
///
/// `run` must be `#[inline(always)]`, and so must everything that it calls: a function that is not inlined keeps the
/// baseline's instructions.
pub(crate) trait Portable {
    /// What the code gives back.
    type Out;
    /// Runs the code.
    fn run(self) -> Self::Out;
}

impl Isa {
    /// The best level of this CPU (`amx` only where [`Tuning::tiles`] says so), or the one that the environment variable
    /// `SLUICE_ISA` names (`scalar`, `avx2`, `avx512`, `amx`, `neon`, `i8mm`; empty counts as unset).
    ///
    /// # Errors
    /// When the variable names no level of this program, or one that this CPU does not have; when `SLUICE_TUNE` is set and not
    /// understood.
    pub fn detect() -> Result<Self, IsaError> {
        let tuning = Tuning::detect()?;
        let isa = match std::env::var_os(VARIABLE) {
            Some(value) if !value.is_empty() => Self::named(&value.to_string_lossy())?,
            // Looking for the tile unit asks the system for its use, which is not done for nothing.
            _ => levels(tuning.tiles).last().unwrap_or(Self::scalar()),
        };
        Ok(isa.with_tuning(tuning))
    }

    /// Every level that this CPU can run, the slowest (scalar) first, with the choices of its kind of CPU. Where there is a tile
    /// unit (AMX), this asks Linux for its use by the process.
    pub fn available() -> Vec<Self> {
        levels(true).map(|isa| isa.with_tuning(Tuning::of_this_cpu())).collect()
    }

    /// The same level with other choices, none of which changes a bit.
    pub const fn with_tuning(self, tuning: Tuning) -> Self {
        Self { tuning, ..self }
    }

    /// The choices that products are computed with.
    pub const fn tuning(self) -> Tuning {
        self.tuning
    }

    /// The level that every CPU has.
    pub const fn scalar() -> Self {
        Self { level: Level::Scalar, tuning: Tuning::of_vendor("") }
    }

    /// The name of the level, as `SLUICE_ISA` takes it.
    pub const fn name(self) -> &'static str {
        match self.level {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(proof) if proof.amx() => "amx",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Level::Neon(_) => "neon",
            #[cfg(target_arch = "aarch64")]
            Level::I8mm(_) => "i8mm",
        }
    }

    /// The level with this name, if the CPU has it.
    fn named(name: &str) -> Result<Self, IsaError> {
        let available = Self::available();
        match available.iter().find(|isa| isa.name() == name) {
            Some(&isa) => Ok(isa),
            None => Err(IsaError::Level {
                value: name.to_owned(),
                available: available.iter().map(|isa| isa.name()).collect(),
            }),
        }
    }

    /// Whether so many tokens are multiplied by a tile unit, which takes activations in a form of its own.
    pub(crate) fn multiplies_tiles(self, tokens: usize) -> bool {
        self.has_tiles() && tokens >= self.tuning.tile_tokens
    }

    /// Bytes that a product of many tokens takes for a while per token, on each thread: what does not fit the stack.
    pub fn scratch_bytes_per_token(self) -> usize {
        match self.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(proof) if proof.amx() => crate::x86::AMX_SCRATCH_PER_TOKEN,
            _ => 0,
        }
    }

    /// Whether this level has a tile unit.
    fn has_tiles(self) -> bool {
        match self.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(proof) => proof.amx(),
            _ => false,
        }
    }

    /// What to dispatch on.
    pub(crate) const fn level(self) -> Level {
        self.level
    }

    /// Runs portable code, compiled for this level.
    #[inline]
    pub(crate) fn run<P: Portable>(self, code: P) -> P::Out {
        match self.level {
            Level::Scalar => code.run(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(proof) => proof.run(code),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(proof) => proof.run(code),
            #[cfg(target_arch = "aarch64")]
            Level::Neon(proof) => proof.run(code),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm(proof) => proof.neon().run(code),
        }
    }

    /// Runs code for sixteen lanes, compiled for this level.
    #[inline]
    pub(crate) fn run_wide<W: Wide>(self, code: W) -> W::Out {
        match self.level {
            Level::Scalar => code.run::<[f32; LANES]>(()),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(proof) => proof.run_wide(code),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(proof) => proof.run_wide(code),
            #[cfg(target_arch = "aarch64")]
            Level::Neon(proof) => proof.run_wide(code),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm(proof) => proof.neon().run_wide(code),
        }
    }
}

/// The levels that this CPU has, the slowest first; the one with a tile unit only where `tiles` says so.
fn levels(tiles: bool) -> impl Iterator<Item = Isa> {
    std::iter::once(Isa::scalar()).chain(wide(tiles))
}

/// Those beyond scalar.
#[cfg(target_arch = "x86_64")]
fn wide(tiles: bool) -> impl Iterator<Item = Isa> {
    let avx2 = Avx2::detect().map(Level::Avx2);
    let avx512 = Avx512::detect().map(Level::Avx512);
    let amx = Avx512::detect().filter(|_| tiles).and_then(Avx512::detect_amx).map(Level::Avx512);
    avx2.into_iter().chain(avx512).chain(amx).map(|level| Isa { level, ..Isa::scalar() })
}

/// Those beyond scalar.
#[cfg(target_arch = "aarch64")]
fn wide(_tiles: bool) -> impl Iterator<Item = Isa> {
    let neon = Neon::detect().map(Level::Neon);
    let i8mm = I8mm::detect().map(Level::I8mm);
    neon.into_iter().chain(i8mm).map(|level| Isa { level, ..Isa::scalar() })
}

/// No other levels for other CPUs.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn wide(_tiles: bool) -> impl Iterator<Item = Isa> {
    std::iter::empty()
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The environment asks for a level that this program does not have for this CPU, or for a choice that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IsaError {
    /// No such level here.
    Level {
        /// What was asked for.
        value: String,
        /// The levels that this program has for this CPU.
        available: Vec<&'static str>,
    },
    /// No such choice.
    Tuning(TuningError),
}

impl From<TuningError> for IsaError {
    fn from(error: TuningError) -> Self {
        Self::Tuning(error)
    }
}

impl fmt::Display for IsaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Level { value, available } => write!(
                f,
                "{VARIABLE}={value} cannot be had: wanted one of {}, the levels that this program has for this CPU; unset it \
                 to take the best",
                available.join(", ")
            ),
            Self::Tuning(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for IsaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_go_by_their_names() {
        for isa in Isa::available() {
            assert_eq!(Isa::named(isa.name()), Ok(isa));
        }
        assert_eq!(Isa::available()[0].name(), Isa::scalar().name());
    }

    #[test]
    fn an_unknown_level_is_named_with_what_there_is() {
        let text = Isa::named("AVX9").unwrap_err().to_string();
        assert!(text.contains("SLUICE_ISA=AVX9") && text.contains("scalar"), "{text}");
    }
}
