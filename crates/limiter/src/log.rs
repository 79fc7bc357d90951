//! Lines for people, on the standard error: `NANOGPU_LOG=error|warn|info|debug`, errors by default.
//!
//! One line for each kind of event, not for each event: the program's own output matters more.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::{setup, sys};

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Level {
    Error = 1,
    Warn = 2,
    Info = 3,
    Debug = 4,
}

/// 0 until the environment was asked.
static LEVEL: AtomicU8 = AtomicU8::new(0);

pub(crate) fn enabled(level: Level) -> bool {
    let mut up_to = LEVEL.load(Ordering::Relaxed);
    if up_to == 0 {
        let mut value = [0; 16];
        up_to = match setup::variable(b"NANOGPU_LOG=", &mut value) {
            Some(b"debug") => 4,
            Some(b"info") => 3,
            Some(b"warn") => 2,
            _ => 1,
        };
        LEVEL.store(up_to, Ordering::Relaxed);
    }
    level as u8 <= up_to
}

/// A kind of event; only the first becomes a line, with `debug` each.
#[derive(Debug)]
pub(crate) struct Once(AtomicU8);

impl Once {
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    pub(crate) fn first(&self) -> bool {
        self.0.swap(1, Ordering::Relaxed) == 0 || enabled(Level::Debug)
    }
}

/// A part of a line. Not `core::fmt`, which can panic.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Piece<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    Number(u64),
}

impl<'a> From<&'a str> for Piece<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a CStr> for Piece<'a> {
    fn from(text: &'a CStr) -> Self {
        Self::Bytes(text.to_bytes())
    }
}

impl From<u64> for Piece<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Piece<'_> {
    fn from(number: u32) -> Self {
        Self::Number(u64::from(number))
    }
}

/// Writes a line. What does not fit is left out.
pub(crate) fn write(level: Level, pieces: &[Piece<'_>]) {
    if !enabled(level) {
        return;
    }
    let name = match level {
        Level::Error => "]: error: ",
        Level::Warn => "]: warn: ",
        Level::Info => "]: info: ",
        Level::Debug => "]: debug: ",
    };
    let mut line = Line { bytes: [0; 512], length: 0 };
    line.put(b"nanogpu[");
    line.number(u64::from(sys::pid()));
    line.put(name.as_bytes());
    for piece in pieces {
        match piece {
            Piece::Text(text) => line.put(text.as_bytes()),
            Piece::Bytes(bytes) => line.put(bytes),
            Piece::Number(number) => line.number(*number),
        }
    }
    line.length = line.length.min(511);
    line.put(b"\n");
    sys::complain(line.bytes.get(..line.length).unwrap_or_default());
}

struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Line {
    fn put(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let Some(place) = self.bytes.get_mut(self.length) else { return };
            *place = *byte;
            self.length += 1;
        }
    }

    fn number(&mut self, number: u64) {
        let mut digits = [b'0'; 20];
        let (mut rest, mut used) = (number, 0);
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
            used += 1;
            if rest == 0 {
                break;
            }
        }
        self.put(digits.get(20 - used..).unwrap_or_default());
    }
}

/// One line, the first time this place in the code is reached.
macro_rules! once {
    ($level:ident, $($piece:expr),+ $(,)?) => {{
        static ONCE: $crate::log::Once = $crate::log::Once::new();
        if $crate::log::enabled($crate::log::Level::$level) && ONCE.first() {
            $crate::log::write($crate::log::Level::$level, &[$($crate::log::Piece::from($piece)),+]);
        }
    }};
}
pub(crate) use once;
