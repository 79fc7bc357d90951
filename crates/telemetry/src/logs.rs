//! Structured lines on standard error: one an event, as JSON or for people.

use std::str::FromStr;

use tracing::Level;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// One JSON object a line, for programs.
    #[default]
    Json,
    /// For people.
    Plain,
}

impl FromStr for Form {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Self, LogError> {
        match text {
            "json" => Ok(Self::Json),
            "plain" => Ok(Self::Plain),
            _ => Err(LogError::Form),
        }
    }
}

/// Why logging cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Not a form of lines.
    #[error("a log's form is json or plain")]
    Form,
    /// Not a level, nor a list of them.
    #[error("a log level is error, warn, info, debug or trace, for all or as target=level,...")]
    Level(#[source] tracing_subscriber::filter::ParseError),
    /// Somebody did before.
    #[error("logging has been set up already")]
    Twice(#[from] TryInitError),
}

/// Sends lines of `level` and above to standard error from now on.
///
/// `level` is one for all, or a list such as `info,kube=warn`.
pub fn start(form: Form, level: &str) -> Result<(), LogError> {
    let targets = targets(level)?;
    let registry = tracing_subscriber::registry();
    match form {
        Form::Json => {
            let lines = tracing_subscriber::fmt::layer().json().flatten_event(true);
            let lines = lines.with_current_span(false).with_span_list(false);
            registry.with(lines.with_writer(std::io::stderr).with_filter(targets)).try_init()?;
        }
        Form::Plain => {
            let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
            registry.with(lines.with_filter(targets)).try_init()?;
        }
    }
    Ok(())
}

fn targets(level: &str) -> Result<Targets, LogError> {
    // klog's numbers, which users of other schedulers pass: 4 and more is debugging.
    if let Ok(verbosity) = level.parse::<u32>() {
        let level = if verbosity >= 4 { Level::DEBUG } else { Level::INFO };
        return Ok(quiet_below(Targets::new().with_default(level)));
    }
    let asked: Targets = level.parse().map_err(LogError::Level)?;
    Ok(if level.contains('=') { asked } else { quiet_below(asked) })
}

/// The libraries below tell of every request; that is asked for by name only.
fn quiet_below(targets: Targets) -> Targets {
    let noisy = ["hyper", "hyper_util", "kube_client", "kube_runtime", "rustls", "tower", "h2"];
    targets.with_targets(noisy.map(|name| (name, LevelFilter::WARN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_words_numbers_or_lists() {
        let would = |level: &str, target: &str, at: Level| {
            targets(level).unwrap().would_enable(target, &at)
        };
        assert!(would("info", "scheduler", Level::INFO));
        assert!(!would("info", "scheduler", Level::DEBUG));
        assert!(would("4", "scheduler", Level::DEBUG));
        assert!(!would("2", "scheduler", Level::DEBUG));
        assert!(!would("debug", "hyper", Level::DEBUG));
        assert!(would("info,hyper=debug", "hyper", Level::DEBUG));
        assert!(targets("loud=very").is_err());
    }
}
