//! The functions, by what they are about.

/// Defines functions that C can call, each with the session, and a list of their names.
macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?) |$session:ident| $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $type),*) -> $crate::abi::Status {
                $crate::session::answer(|$session| $body)
            }
        )*

        /// Those that are live.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

pub(crate) mod accounting;
pub(crate) mod errors;
pub(crate) mod events;
pub(crate) mod fields;
pub(crate) mod identity;
pub(crate) mod lifetime;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod mig;
pub(crate) mod modes;
pub(crate) mod nvlink;
pub(crate) mod pci;
pub(crate) mod processes;
pub(crate) mod readings;
pub(crate) mod system;
pub(crate) mod topology;
pub(crate) mod unsupported;
