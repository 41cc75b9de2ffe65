//! Exact products and quotients.

/// `(q, r)` with `a × b = q × c + r` and `r < c`, exact for all arguments; a quotient beyond 64 bits is given as the
/// largest number. A divisor of 0 counts as 1.
pub(super) fn muldiv(a: u64, b: u64, c: u64) -> (u64, u64) {
    let c = c.max(1);
    if let Some(product) = a.checked_mul(b) {
        return (product / c, product % c);
    }
    let (product, c) = (u128::from(a) * u128::from(b), u128::from(c));
    (narrow(product / c), narrow(product % c))
}

/// A quotient with its rest, rounded up.
pub(super) fn up((quotient, rest): (u64, u64)) -> u64 {
    quotient.saturating_add(u64::from(rest > 0))
}

fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{muldiv, up};

    #[test]
    fn small_and_large() {
        assert_eq!(muldiv(7, 9, 10), (6, 3));
        assert_eq!(muldiv(0, 9, 10), (0, 0));
        let (a, b, c) = ((1 << 42) - 1, (1 << 53) - 1, (1 << 42) - 2);
        assert_eq!(muldiv(a, b, c), (9_007_199_254_743_039, 4_095));
        assert_eq!(
            muldiv(u64::MAX, u64::MAX, 1),
            (u64::MAX, 0),
            "a quotient that does not fit"
        );
        assert_eq!(muldiv(5, 5, 0), (25, 0), "no division by zero");
        assert_eq!((up((3, 0)), up((3, 1)), up((u64::MAX, 1))), (3, 4, u64::MAX));
    }

    proptest! {
        #[test]
        fn exact(a in 0_u64..1 << 42, b in 0_u64..1 << 53, c in 1_u64..1 << 42) {
            let (q, r) = muldiv(a, b, c);
            prop_assert!(r < c);
            if u128::from(a) * u128::from(b) / u128::from(c) <= u128::from(u64::MAX) {
                prop_assert_eq!(u128::from(q) * u128::from(c) + u128::from(r), u128::from(a) * u128::from(b));
            }
        }
    }
}
