//! What a person sees while something takes minutes: the step, how far it is, the time left.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar at a terminal; elsewhere one line a step, so that a log stays readable.
pub struct Progress {
    bar: ProgressBar,
    lines: bool,
    started: Instant,
    /// Weight of all steps, of those done, and of the one under way.
    total: u32,
    done: u32,
    current: u32,
    step_started: Instant,
}

impl Progress {
    /// Nothing to do yet.
    pub fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new(1) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}") {
            bar.set_style(style);
        }
        let now = Instant::now();
        Self {
            bar,
            lines: !terminal,
            started: now,
            total: 0,
            done: 0,
            current: 0,
            step_started: now,
        }
    }

    /// Says how much there is to do, in any unit.
    pub(super) fn expect(&mut self, weight: u32) {
        self.total = weight;
        self.done = 0;
        self.started = Instant::now();
        self.bar.set_length(u64::from(weight.max(1)));
    }

    /// Begins the next step; the one before is done.
    pub(super) fn step(&mut self, name: &str, weight: u32) {
        self.done += self.current;
        self.current = weight;
        self.step_started = Instant::now();
        self.bar.set_position(u64::from(self.done));
        let message = self.message(name);
        if self.lines {
            self.say(&message);
        }
        self.bar.set_message(message);
    }

    /// Called now and then while a step runs.
    pub(super) fn tick(&mut self, name: &str) {
        let guess = self.guess();
        self.bar.set_position(u64::from(self.done + guess));
        let message = self.message(name);
        self.bar.set_message(message);
    }

    /// A line that stays.
    #[expect(clippy::print_stderr, reason = "progress is for the person waiting")]
    pub(crate) fn say(&self, line: &str) {
        if self.lines {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// All is done.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn message(&self, name: &str) -> String {
        match self.left() {
            Some(left) => format!("{name}, {} left", rounded(left)),
            None => name.to_owned(),
        }
    }

    /// How much of the step under way is done, by the speed of those before it.
    fn guess(&self) -> u32 {
        let Some(speed) = self.speed() else { return 0 };
        let weight = self.step_started.elapsed().as_secs_f64() * speed;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a bar; the value is not negative and far below the limit"
        )]
        let weight = weight as u32;
        // A step that takes longer than thought stands still short of its end.
        weight.min(self.current - self.current / 10)
    }

    fn left(&self) -> Option<Duration> {
        let speed = self.speed()?;
        let rest = self.total.saturating_sub(self.done + self.guess());
        Some(Duration::from_secs_f64(f64::from(rest) / speed))
    }

    /// Weight a second: as measured, or for the first step as weights were once taken, which were
    /// CPU seconds on two cores.
    fn speed(&self) -> Option<f64> {
        if self.total == 0 {
            return None;
        }
        let before = self.step_started.duration_since(self.started).as_secs_f64();
        Some(if self.done == 0 || before < 1.0 { 1.6 } else { f64::from(self.done) / before })
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

/// Coarse, because it is a guess.
fn rounded(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..=9 => "a few seconds".to_owned(),
        10..=89 => format!("about {} s", seconds.div_ceil(10) * 10),
        _ => format!("about {} min", (seconds + 30) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_told_coarsely() {
        assert_eq!(rounded(Duration::from_secs(3)), "a few seconds");
        assert_eq!(rounded(Duration::from_secs(61)), "about 70 s");
        assert_eq!(rounded(Duration::from_secs(400)), "about 7 min");
    }

    #[test]
    fn nothing_is_promised_before_anything_is_known() {
        assert_eq!(Progress::new().message("looking"), "looking");
    }
}
