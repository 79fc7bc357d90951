//! Kubernetes quantities, read exactly: `20`, `500m`, `10G`, `1.5Gi`, `2e3`.

use crate::ids::Quoted;

/// An amount in billionths, the finest step Kubernetes knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nanos: i128,
}

/// A text that is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a number with a known suffix.
    #[error("{0} is not a quantity")]
    Unreadable(Quoted),
    /// Beyond what a 64-bit count can hold.
    #[error("{0} is too large to count")]
    TooLarge(Quoted),
}

const NANO: i128 = 1_000_000_000;
const LARGEST: i128 = i64::MAX as i128 * NANO;

impl Quantity {
    /// Reads a quantity as the API server does: a decimal number, then a binary, decimal or
    /// exponent suffix. Fractions finer than a billionth round up.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let unreadable = || QuantityError::Unreadable(Quoted::new(text));
        let too_large = || QuantityError::TooLarge(Quoted::new(text));

        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end =
            unsigned.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
        if integer.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(unreadable());
        }
        let scale = Scale::parse(suffix).ok_or_else(unreadable)?;
        let digits = format!("{integer}{fraction}");
        let digits = digits.trim_start_matches('0');
        let fraction_len = i32::try_from(fraction.len()).map_err(|_| unreadable())?;
        let magnitude = scale.apply(digits, fraction_len).ok_or_else(too_large)?;
        if magnitude > LARGEST {
            return Err(too_large());
        }
        Ok(Self { nanos: if negative { -magnitude } else { magnitude } })
    }

    /// The value if it is a whole number, else nothing.
    pub fn whole(self) -> Option<i64> {
        (self.nanos % NANO == 0).then(|| i64::try_from(self.nanos / NANO).unwrap_or(i64::MAX))
    }

    /// The value in thousandths, rounded up; zero if negative.
    pub fn milli(self) -> u64 {
        self.in_units(NANO / 1000)
    }

    /// The value in ones, rounded up; zero if negative.
    pub fn ceil(self) -> u64 {
        self.in_units(NANO)
    }

    fn in_units(self, unit: i128) -> u64 {
        let positive = self.nanos.max(0);
        u64::try_from((positive + unit - 1) / unit).unwrap_or(u64::MAX)
    }
}

/// What a suffix multiplies by.
enum Scale {
    /// 2 to this power.
    Two(u32),
    /// 10 to this power.
    Ten(i32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "n" => Self::Ten(-9),
            "u" => Self::Ten(-6),
            "m" => Self::Ten(-3),
            "" => Self::Ten(0),
            "k" => Self::Ten(3),
            "M" => Self::Ten(6),
            "G" => Self::Ten(9),
            "T" => Self::Ten(12),
            "P" => Self::Ten(15),
            "E" => Self::Ten(18),
            "Ki" => Self::Two(10),
            "Mi" => Self::Two(20),
            "Gi" => Self::Two(30),
            "Ti" => Self::Two(40),
            "Pi" => Self::Two(50),
            "Ei" => Self::Two(60),
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E'])?;
                let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                // An exponent that does not fit is as good as infinite, one way or the other.
                let magnitude = digits.parse::<i32>().unwrap_or(i32::MAX).min(10_000);
                Self::Ten(if exponent.starts_with('-') { -magnitude } else { magnitude })
            }
        })
    }

    /// `digits`, of which the last `fraction_len` stand behind the point, in nanos rounded up.
    /// Nothing if that is too large.
    fn apply(&self, digits: &str, fraction_len: i32) -> Option<i128> {
        if digits.is_empty() {
            return Some(0);
        }
        let (binary, decimal) = match self {
            Self::Two(power) => (1i128 << power, 0),
            Self::Ten(power) => (1, *power),
        };
        // value = digits * 10^(decimal - fraction_len) * binary, wanted in 10^-9.
        let exponent = decimal.saturating_sub(fraction_len).saturating_add(9);
        if exponent >= 0 {
            let number: i128 = digits.parse().ok()?;
            let power = u32::try_from(exponent).ok().filter(|power| *power <= 38)?;
            return number.checked_mul(10i128.checked_pow(power)?)?.checked_mul(binary);
        }
        // Dividing: digits far behind the point cannot matter beyond "round up".
        let cut = usize::try_from(-exponent).unwrap_or(usize::MAX);
        let kept = digits.len().saturating_sub(cut);
        if binary == 1 {
            let number: i128 = if kept == 0 { 0 } else { digits[..kept].parse().ok()? };
            let rest = digits[kept..].bytes().any(|b| b != b'0');
            return number.checked_add(i128::from(rest));
        }
        // Binary suffix with a fraction: 30 digits are exact to far below a nano of an Ei.
        let shown = digits.len().min(30);
        let number: i128 = digits[..shown].parse().ok()?;
        let dropped = digits.len() - shown;
        let divisor = 10i128.checked_pow(u32::try_from(cut.checked_sub(dropped)?).ok()?);
        let Some(divisor) = divisor else { return Some(1) };
        let whole = (number / divisor).checked_mul(binary)?;
        let part = (number % divisor)
            .checked_mul(binary)
            .map_or(0, |part| part / divisor + i128::from(part % divisor != 0));
        whole.checked_add(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_as_kubernetes_reads_them() {
        let table: &[(&str, Option<i64>, u64)] = &[
            // text, whole, milli
            ("0", Some(0), 0),
            ("20", Some(20), 20_000),
            ("+20", Some(20), 20_000),
            ("-3", Some(-3), 0),
            ("500m", None, 500),
            ("2000m", Some(2), 2000),
            ("1.5", None, 1500),
            ("1.50k", Some(1500), 1_500_000),
            ("10G", Some(10_000_000_000), 10_000_000_000_000),
            ("1Gi", Some(1 << 30), 1000 << 30),
            ("0.5Gi", Some(1 << 29), 1000 << 29),
            ("1.5Ki", Some(1536), 1_536_000),
            ("2e3", Some(2000), 2_000_000),
            ("2E-3", None, 2),
            ("1n", None, 1),
            ("0.0000000001", None, 1),
            (".5", None, 500),
            ("5.", Some(5), 5000),
            ("1000000000000000000", Some(1_000_000_000_000_000_000), u64::MAX),
        ];
        for &(text, whole, milli) in table {
            let quantity = Quantity::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(quantity.whole(), whole, "{text}");
            // A count of thousandths beyond 64 bits stops there.
            if milli != u64::MAX {
                assert_eq!(quantity.milli(), milli, "{text}");
            }
        }
    }

    #[test]
    fn what_is_no_quantity_says_so() {
        for text in ["", "-", "m", "1x", "1e", "1ee3", "1.2.3", "0x10", "1 ", "１"] {
            let error = Quantity::parse(text).unwrap_err();
            assert!(matches!(error, QuantityError::Unreadable(_)), "{text}: {error}");
        }
        for text in ["10E", "1e19", "9999999999999999999", "8Ei", &"9".repeat(500), "1e99999999999"]
        {
            let error = Quantity::parse(text).unwrap_err();
            assert!(matches!(error, QuantityError::TooLarge(_)), "{text}: {error}");
        }
        assert_eq!(Quantity::parse("1e-99999999999").unwrap().ceil(), 1);
    }
}
