//! What an Xid means for the card that reports it.

/// What is done about an Xid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A program did something wrong, or was hurt and the card is well: nothing is done.
    Application,
    /// The card takes no new work until it has been well for a while.
    OutOfService,
}

/// Numbers that tell of programs, or of damage that was contained.
const APPLICATION: &[u64] = &[
    13,  // graphics engine exception
    31,  // page fault of a program
    32,  // invalid push buffer
    43,  // a program's channel stopped
    45,  // channels removed, as after a program was killed
    63,  // a row will be remapped at the next reset
    68,  // video processor exception
    69,  // graphics class error
    92,  // many single-bit errors, all corrected
    94,  // a memory error that only its program saw
    109, // a program's work took too long to be switched out
];

/// What is done about `xid`. A number nobody knows takes the card out: it comes back by itself.
pub fn class(xid: u64) -> Class {
    if APPLICATION.contains(&xid) { Class::Application } else { Class::OutOfService }
}

/// A few words about the numbers people meet most.
pub fn meaning(xid: u64) -> &'static str {
    match xid {
        46 => "the GPU stopped processing",
        48 => "a memory error that could not be corrected",
        61 | 62 => "the GPU's controller halted",
        63 => "a row of memory will be remapped at the next reset",
        64 => "a row of memory could not be remapped",
        74 => "an NVLink error",
        79 => "the GPU has fallen off the bus",
        94 => "a memory error that was contained",
        95 => "a memory error that was not contained",
        119 | 120 => "the GPU's system processor does not answer",
        140 => "a memory error that needs a reset",
        _ => "see NVIDIA's list of Xids",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_do_not_take_a_card_out_and_broken_cards_do() {
        for xid in [13, 31, 43, 45, 68, 94, 109] {
            assert_eq!(class(xid), Class::Application, "{xid}");
        }
        for xid in [46, 48, 62, 64, 74, 79, 95, 119, 140, 999, 12345] {
            assert_eq!(class(xid), Class::OutOfService, "{xid}");
        }
    }
}
