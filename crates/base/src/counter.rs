use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that several threads increment. Uses relaxed ordering.
#[derive(Debug, Default)]
pub struct AtomicCounter(AtomicU64);

impl AtomicCounter {
    /// Adds one.
    pub fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the current count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Defines a struct of values and one of counters with the same names, whose `read` returns the values.
#[macro_export]
macro_rules! counters {
    ($counters:ident: $(#[$doc:meta])* pub struct $values:ident { $($(#[$about:meta])* pub $name:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $values {
            $($(#[$about])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct $counters {
            $(pub(crate) $name: $crate::AtomicCounter,)*
        }

        impl $counters {
            pub(crate) fn read(&self) -> $values {
                $values { $($name: self.$name.get(),)* }
            }
        }
    };
}
