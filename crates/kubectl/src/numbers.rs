//! Numbers as people read them.

/// With commas: `40,960`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 node`, `2 nodes`.
pub(crate) fn counted(count: usize, word: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {word}{plural}", grouped(count as u64))
}

/// How many of `of` percent, rounded down; nothing of nothing is nothing.
pub(crate) fn percent(part: u64, of: u64) -> u64 {
    part.saturating_mul(100).checked_div(of).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        let texts: Vec<String> = [0, 999, 1000, 40_960, 1_234_567].map(grouped).into();
        assert_eq!(texts, ["0", "999", "1,000", "40,960", "1,234,567"]);
    }

    #[test]
    fn one_is_singular_and_nothing_is_no_percentage() {
        assert_eq!((counted(1, "node"), counted(0, "node")), ("1 node".into(), "0 nodes".into()));
        assert_eq!((percent(1, 3), percent(1, 0)), (33, 0));
    }
}
