//! What a person reads: acts, steps that take their time, and what programs said.

use std::fmt::Display;
use std::io::{IsTerminal, Write as _, stderr, stdout};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How far a step's text goes before its time.
const WIDTH: usize = 66;

/// Tells the story. At a terminal with a spinner for what is under way; elsewhere in plain lines.
pub(crate) struct Teller {
    terminal: bool,
    colour: bool,
    act: usize,
    /// Where the marks of steps and all text begin.
    margin: &'static str,
}

impl Teller {
    pub(crate) fn new() -> Self {
        let terminal = stdout().is_terminal() && stderr().is_terminal();
        let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { terminal, colour, act: 0, margin: "   " }
    }

    /// The first line.
    pub(crate) fn title(&self, text: &str) {
        println!("\n{}", self.painted("1", text));
    }

    /// The next act.
    pub(crate) fn act(&mut self, title: &str) {
        self.act += 1;
        println!("\n{}", self.painted("1", &format!("{}  {title}", self.act)));
    }

    /// A sentence or two.
    pub(crate) fn say(&self, text: &str) {
        for line in text.lines() {
            println!("{}{line}", self.margin);
        }
    }

    /// A command as a person would type it.
    pub(crate) fn command(&self, line: &str) {
        println!("\n{}{}", self.margin, self.painted("36", &format!("$ {line}")));
    }

    /// What a program said, or a table.
    pub(crate) fn shown(&self, text: &impl Display) {
        for line in text.to_string().trim_end().lines() {
            println!("{}", format!("{}{line}", self.margin).trim_end());
        }
    }

    /// What a program said in one long line.
    pub(crate) fn wrapped(&self, text: &str) {
        for line in wrap(text, 96) {
            println!("{}{line}", self.margin);
        }
    }

    /// Does something that takes its time, and says how long it took.
    pub(crate) fn step<T>(
        &self,
        doing: &str,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let started = Instant::now();
        let spinner = self.begin(doing);
        let outcome = work();
        spinner.finish_and_clear();
        let time = format!("{:.1} s", started.elapsed().as_secs_f64());
        let mark =
            if outcome.is_ok() { self.painted("32", "✓") } else { self.painted("31", "✗") };
        let room = WIDTH.saturating_sub(doing.chars().count());
        if self.terminal {
            println!("{}{mark} {doing}{:room$} {time:>7}", self.margin, "");
        } else {
            println!("{:room$} {time:>7}{}", "", if outcome.is_ok() { "" } else { "  failed" });
        }
        outcome
    }

    fn begin(&self, doing: &str) -> ProgressBar {
        if !self.terminal {
            print!("{}- {doing}", self.margin);
            let _ = stdout().flush();
            return ProgressBar::hidden();
        }
        let spinner = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("   {spinner} {msg}  {elapsed}") {
            spinner.set_style(style);
        }
        spinner.set_message(doing.to_owned());
        spinner.enable_steady_tick(Duration::from_millis(100));
        spinner
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Lines of whole words; a word that is longer than a line has one to itself.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A bar of twenty cells for a part of a hundred.
pub(crate) fn bar(percent: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 20 by the clamp"
    )]
    let full = (percent / 5.0).round().clamp(0.0, 20.0) as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(20 - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a longer-than-that b", 6), ["a", "longer-than-that", "b"]);
    }

    #[test]
    fn a_bar_has_twenty_cells_whatever_it_shows() {
        assert_eq!(bar(30.0), "██████░░░░░░░░░░░░░░");
        assert_eq!(bar(0.0), "░".repeat(20));
        assert_eq!(bar(140.0), "█".repeat(20));
    }
}
