//! Completion of `kubectl nanogpu`: kubectl runs a program `kubectl_complete-nanogpu` with the words so
//! far and prints what that says. A link of that name to our program does it.

use std::fmt::Write as _;

use clap::{Arg, Command};

/// The name under which kubectl looks for us.
pub const NAME: &str = "kubectl_complete-nanogpu";

/// To kubectl's shells: nothing but these, no names of files.
const NO_FILES: u8 = 4;
/// To kubectl's shells: names of files.
const FILES: u8 = 0;

/// What may stand for the last of `words`, a line each, and a line that says what else may.
pub fn choices(command: &Command, words: &[String]) -> String {
    let (last, before) = words.split_last().map_or(("", &[][..]), |(l, b)| (l.as_str(), b));
    let given = before.iter().find_map(|word| command.find_subcommand(word));
    let mut text = String::new();
    let mut offer = |word: &str, about: String| {
        if word.starts_with(last) {
            let _ = writeln!(text, "{word}\t{}", about.lines().next().unwrap_or_default());
        }
    };
    let args = || command.get_arguments().chain(given.into_iter().flat_map(Command::get_arguments));
    let is_before = |arg: &&Arg| {
        let word = before.last().map_or("", String::as_str);
        let long = arg.get_long().is_some_and(|long| word == format!("--{long}"));
        let short = arg.get_short().is_some_and(|short| word == format!("-{short}"));
        (long || short) && arg.get_action().takes_values()
    };
    if let Some(arg) = args().find(is_before) {
        let values = arg.get_possible_values();
        for value in &values {
            let about = value.get_help().map(ToString::to_string).unwrap_or_default();
            offer(value.get_name(), about);
        }
        let files = if values.is_empty() { FILES } else { NO_FILES };
        let _ = writeln!(text, ":{files}");
        return text;
    }
    if last.starts_with('-') {
        for arg in args().filter(|arg| !arg.is_hide_set()) {
            let about = arg.get_help().map(ToString::to_string).unwrap_or_default();
            if let Some(long) = arg.get_long() {
                offer(&format!("--{long}"), about);
            }
        }
    } else if given.is_none() {
        for known in command.get_subcommands() {
            let about = known.get_about().map(ToString::to_string).unwrap_or_default();
            offer(known.get_name(), about);
        }
    }
    let _ = writeln!(text, ":{NO_FILES}");
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::options::Options;

    fn offered(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let text = choices(&Options::command(), &words);
        let word = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
        text.lines().map(word).collect()
    }

    #[test]
    fn commands_flags_and_values_are_offered() {
        assert_eq!(offered(&["w"]), ["why", ":4"]);
        assert_eq!(offered(&["inspect", "--gpu"]), ["--gpushare", ":4"]);
        assert_eq!(offered(&["-o", ""]), ["wide", "json", "yaml", ":4"]);
        assert_eq!(offered(&["simulate", "-f", ""]), [":0"]);
        assert_eq!(offered(&["why", ""]), [":4"]);
        assert_eq!(offered(&[]).len(), 10);
    }
}
