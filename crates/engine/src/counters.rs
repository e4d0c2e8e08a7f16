//! Counters and their values.

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
            $(pub(crate) $name: haul_base::AtomicCounter,)*
        }

        impl $counters {
            pub(crate) fn read(&self) -> $values {
                $values { $($name: self.$name.get(),)* }
            }
        }
    };
}
pub(crate) use counters;
