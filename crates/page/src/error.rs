//! Why a file is no page.

use core::fmt;

/// Why a file is no page of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageError {
    /// It ends too early.
    Short {
        /// How long it is.
        is: usize,
        /// How long it should be.
        needs: usize,
    },
    /// It is something else.
    Foreign,
    /// It is of another version.
    Version {
        /// Which.
        is: u32,
    },
    /// It says of itself another length than its version has.
    Size {
        /// What it says.
        says: usize,
        /// What is right.
        is: usize,
    },
    /// A name in it is not one.
    BadName,
    /// It was being written.
    Torn,
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { is, needs } => {
                write!(f, "the page is cut off: {is} bytes where {needs} are needed")
            }
            Self::Foreign => f.write_str("the file is no page of nanogpu"),
            Self::Version { is } => write!(
                f,
                "the page has version {is}; this build reads version {}: upgrade this component",
                crate::VERSION
            ),
            Self::Size { says, is } => {
                write!(f, "the page says it has {says} bytes; its version has {is}")
            }
            Self::BadName => f.write_str("a name in the page is not one"),
            Self::Torn => f.write_str("the page was being written; read it again"),
        }
    }
}

impl core::error::Error for PageError {}
