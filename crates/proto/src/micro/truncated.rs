//! Numbers of which packets carry only the lower half.

/// Returns the number nearest to `near` whose lower half is `wire`.
pub(super) fn expand(wire: u32, near: u64) -> u64 {
    let distance = wire.wrapping_sub(near as u32).cast_signed();
    near.checked_add_signed(i64::from(distance)).unwrap_or(u64::from(wire))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_lower_half_identifies_nearby_numbers(near in 0u64..1 << 48, distance in -(1i64 << 30)..1 << 30) {
            prop_assume!(near.checked_add_signed(distance).is_some());
            let number = near.checked_add_signed(distance).unwrap();
            prop_assert_eq!(expand(number as u32, near), number);
        }
    }
}
