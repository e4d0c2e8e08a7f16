//! Counters that several threads add to, and their values.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that several threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Makes a structure of values, and one of the counters with these names.
macro_rules! counters {
    ($counters:ident: $(#[$doc:meta])* pub struct $values:ident { $($(#[$about:meta])* pub $name:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $values {
            $($(#[$about])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct $counters {
            $(pub(crate) $name: $crate::counters::Counter,)*
        }

        impl $counters {
            pub(crate) fn read(&self) -> $values {
                $values { $($name: self.$name.get(),)* }
            }
        }
    };
}
pub(crate) use counters;
