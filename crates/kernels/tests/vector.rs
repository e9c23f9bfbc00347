//! Vector functions: the same bits on every level, and close to what f64 gives.

mod blocks;

use blocks::Pcg;
use sluice_kernels::attention::{POSITIONS, dots, weighted_sums};
use sluice_kernels::vector::{add, exp, rms_norm, silu_mul, softmax};
use sluice_kernels::{Acts, Format, Isa};

/// Lengths around every multiple of a register.
const LENGTHS: std::ops::RangeInclusive<usize> = 1..=70;

fn values(rng: &mut Pcg, n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|_| rng.normal() * scale).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Runs `f` on every level and checks that all give the same bits, which it returns as numbers.
fn same_on_all(what: &str, f: impl Fn(Isa) -> Vec<f32>) -> Vec<f32> {
    let wanted = f(Isa::scalar());
    for isa in Isa::available() {
        assert_eq!(bits(&f(isa)), bits(&wanted), "{what} on {isa}");
    }
    wanted
}

fn in_place(x: &[f32], f: impl Fn(&mut [f32])) -> Vec<f32> {
    let mut x = x.to_vec();
    f(&mut x);
    x
}

#[test]
fn rms_norm_of_several_rows() {
    let mut rng = Pcg::new(10);
    for n in LENGTHS {
        let (x, weight) = (values(&mut rng, 3 * n, 5.0), values(&mut rng, n, 1.0));
        let got = same_on_all("rms_norm", |isa| {
            let mut out = vec![0.0; 3 * n];
            rms_norm(isa, &x, &weight, 1e-5, &mut out);
            out
        });
        for (x, got) in x.chunks(n).zip(got.chunks(n)) {
            let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
            for i in 0..n {
                let wanted = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
                assert!(
                    (f64::from(got[i]) - wanted).abs() <= 1e-6 * wanted.abs(),
                    "{n}: {} for {wanted}",
                    got[i]
                );
            }
        }
    }
}

#[test]
fn softmax_is_a_distribution() {
    let mut rng = Pcg::new(11);
    for n in LENGTHS.chain([1000, 4097]) {
        let mut x = values(&mut rng, n, 10.0);
        if n > 3 {
            x[n / 2] = f32::NEG_INFINITY;
        }
        let got = same_on_all("softmax", |isa| in_place(&x, |x| softmax(isa, x)));
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f64> = x.iter().map(|x| f64::from(x - max).exp()).collect();
        let total: f64 = e.iter().sum();
        for (got, e) in got.iter().zip(e) {
            assert!((f64::from(*got) - e / total).abs() <= 1e-6 * e / total + 1e-37);
        }
    }
}

#[test]
fn softmax_at_its_limits() {
    let run = |x: &[f32]| same_on_all("softmax", |isa| in_place(x, |x| softmax(isa, x)));
    let inf = f32::INFINITY;
    assert!(run(&[]).is_empty());
    assert_eq!(run(&[-3e38]), [1.0]);
    assert_eq!(run(&[0.0, -inf, 0.0]), [0.5, 0.0, 0.5]);
    assert_eq!(run(&[3e38, -3e38]), [1.0, 0.0]);
    for x in [&[1.0, f32::NAN, 2.0][..], &[inf, 0.0], &[-inf, -inf], &[f32::from_bits(0xffff_ffff); 40]] {
        assert!(run(x).iter().all(|x| x.to_bits() == f32::NAN.to_bits()), "{x:?} has no answer");
    }
}

#[test]
fn silu_mul_and_add() {
    let mut rng = Pcg::new(12);
    for n in LENGTHS {
        let (mut x, y) = (values(&mut rng, n, 8.0), values(&mut rng, n, 1.0));
        (x[0], x[n / 2]) = (-200.0, 200.0);
        let got = same_on_all("silu_mul", |isa| in_place(&x, |x| silu_mul(isa, x, &y)));
        let sums = same_on_all("add", |isa| in_place(&x, |x| add(isa, x, &y)));
        for i in 0..n {
            let wanted = f64::from(x[i]) / (1.0 + (-f64::from(x[i])).exp()) * f64::from(y[i]);
            assert!(
                (f64::from(got[i]) - wanted).abs() <= 1e-6 * wanted.abs() + 1e-37,
                "{} for {wanted}",
                got[i]
            );
            assert_eq!(sums[i], x[i] + y[i]);
        }
    }
}

#[test]
fn nan_is_never_hidden() {
    for odd in [f32::NAN, f32::from_bits(0xff80_0001)] {
        for n in LENGTHS {
            let mut x = vec![1.0; n];
            x[n - 1] = odd;
            let ones = vec![1.0; n];
            let nan = f32::NAN.to_bits();
            let normed =
                same_on_all("rms_norm", |isa| in_place(&ones, |out| rms_norm(isa, &x, &ones, 0.0, out)));
            assert!(bits(&normed).iter().all(|&x| x == nan));
            let last = |f: &dyn Fn(Isa, &mut [f32])| {
                let got = same_on_all("a function", |isa| in_place(&x, |x| f(isa, x)));
                assert_eq!(got[n - 1].to_bits(), nan);
            };
            last(&|isa, x| silu_mul(isa, x, &ones));
            last(&|isa, x| add(isa, x, &ones));
            last(&|isa, x| exp(isa, x));
            let keys: Vec<[f32; POSITIONS]> = x.iter().map(|x| [*x; POSITIONS]).collect();
            let score = same_on_all("dots", |isa| in_place(&[0.0], |s| dots(isa, &ones, &keys, 1, s, 1)));
            assert_eq!(score[0].to_bits(), nan);
            let sum = same_on_all("weighted_sums", |isa| {
                in_place(&ones, |acc| weighted_sums(isa, &[1.0], 1, 1, &x, n, acc))
            });
            assert_eq!(sum[n - 1].to_bits(), nan);
        }
    }
}

#[test]
fn exp_on_every_level() {
    let x: Vec<f32> = (-12_000..10_000).map(|i| i as f32 * 0.009_7).collect();
    let got = same_on_all("exp", |isa| in_place(&x, |x| exp(isa, x)));
    assert!(got.is_sorted() && got[0] == 0.0 && got[got.len() - 1] == f32::INFINITY);
}

#[test]
fn attention_on_every_level() {
    let mut rng = Pcg::new(13);
    for n in LENGTHS {
        for count in [0, 1, 2, 9] {
            let rows = values(&mut rng, POSITIONS * n, 1.0);
            let keys: Vec<[f32; POSITIONS]> =
                (0..n).map(|d| std::array::from_fn(|i| rows[i * n + d])).collect();
            let (q, weights) = (values(&mut rng, n, 1.0), values(&mut rng, count, 1.0));
            let scores =
                same_on_all("dots", |isa| in_place(&weights, |s| dots(isa, &q, &keys, count, s, count)));
            let sums = same_on_all("sums", |isa| {
                in_place(&q, |acc| weighted_sums(isa, &weights, count, count, &rows, n, acc))
            });
            for (i, score) in scores.iter().enumerate() {
                let terms = (0..n).map(|d| f64::from(q[d]) * f64::from(rows[i * n + d]));
                assert!((f64::from(*score) - terms.sum::<f64>()).abs() < 1e-5 * n as f64);
            }
            for d in 0..n {
                let terms = (0..count).map(|i| f64::from(weights[i]) * f64::from(rows[i * n + d]));
                assert!((f64::from(sums[d]) - f64::from(q[d]) - terms.sum::<f64>()).abs() < 1e-5 * 10.0);
            }
        }
    }
}

/// The 8-bit forms are built by portable code as well: a product on one level may use what another level has prepared.
#[test]
fn forms_do_not_depend_on_the_level() {
    let mut rng = Pcg::new(14);
    for (format, scale) in [(Format::Q8_0, 1.0), (Format::Q4_K, 1e-3), (Format::Q4_K, 1e30)] {
        let x = values(&mut rng, 3 * 1024, scale);
        let seen: Vec<String> = Isa::available()
            .into_iter()
            .map(|isa| {
                let mut acts = Acts::new();
                acts.fill(&x, 1024);
                acts.prepare(isa, format);
                format!("{acts:?}")
            })
            .collect();
        assert!(seen.iter().all(|form| *form == seen[0]), "{format}");
    }
}
