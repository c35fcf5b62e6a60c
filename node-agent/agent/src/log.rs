//! The log on standard error, and which messages are written to it. The level can be changed while
//! the program runs, by whoever may use the agent's socket.

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format;
use tracing_subscriber::reload;

use crate::config::LogFormat;
use denizen_text::Printable;

/// kube's own logs are off: the API source logs each failure once, with its consequence.
const DEFAULT: &str = "info,kube_client=off";

/// What a level can be.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// What to do about the level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LogLevelQuery {
    /// Nothing: report the level.
    Show,
    /// Change it: a level, or levels by module, as `RUST_LOG` has them.
    Set(String),
    /// Make it what it was at the start.
    Reset,
}

/// Which messages are logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLevel {
    /// Now.
    pub level: String,
    /// At the start, and again after the next start.
    pub at_start: String,
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, at_start } = self;
        match level == at_start {
            true => writeln!(f, "{level}"),
            false => writeln!(f, "{level} (at the start: {at_start})"),
        }
    }
}

/// Why a level is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LogLevelError {
    /// Not a level. The filter would take a misspelt level for a module's name, and log nothing
    /// else.
    #[error(
        "{0:?} is no level: they are off, error, warn, info, debug and trace, also as MODULE=LEVEL,…"
    )]
    Level(String),
    /// A module's name has characters that no module's name has.
    #[error("{0:?} is no module")]
    Module(String),
    /// The log's filter cannot be changed any more.
    #[error("the log's level cannot be changed: {0}")]
    Closed(String),
}

type Reload = dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync;

/// The filter of the log. Clones share it.
#[derive(Clone)]
pub struct LogFilter {
    level: Arc<Mutex<LogLevel>>,
    reload: Arc<Reload>,
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogFilter").field(&self.level()).finish()
    }
}

impl LogFilter {
    fn new(at_start: &EnvFilter, reload: Arc<Reload>) -> Self {
        let level = at_start.to_string();
        let level = LogLevel { at_start: level.clone(), level };
        Self { level: Arc::new(Mutex::new(level)), reload }
    }

    /// Which messages are logged.
    pub fn level(&self) -> LogLevel {
        self.level.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Executes the query. Returns which messages are logged then.
    ///
    /// # Errors
    /// [`LogLevelError`]; then nothing is changed.
    pub fn apply(&self, query: &LogLevelQuery) -> Result<LogLevel, LogLevelError> {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = match query {
            LogLevelQuery::Show => return Ok(level.clone()),
            LogLevelQuery::Set(wanted) => wanted,
            LogLevelQuery::Reset => &level.at_start,
        };
        let filter = parsed(wanted)?;
        let now = filter.to_string();
        (self.reload)(filter).map_err(|error| LogLevelError::Closed(error.to_string()))?;
        level.level = now;
        Ok(level.clone())
    }
}

fn parsed(text: &str) -> Result<EnvFilter, LogLevelError> {
    for directive in text.split(',').map(str::trim) {
        let (module, level) = directive.rsplit_once('=').unwrap_or(("", directive));
        if !LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
            return Err(LogLevelError::Level(level.to_owned()));
        }
        let is_named = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        if !module.chars().all(is_named) {
            return Err(LogLevelError::Module(module.to_owned()));
        }
    }
    EnvFilter::try_new(text).map_err(|_| LogLevelError::Level(text.to_owned()))
}

/// Logs to standard error from now on: what `RUST_LOG` selects, until the returned filter is
/// changed.
pub fn log_to_standard_error(format: LogFormat) -> LogFilter {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let at_start = EnvFilter::new(filter.to_string());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // It would report an error of standard error there, with a macro that panics then.
        .log_internal_errors(false);
    // Like the default format, but without characters that a terminal would obey: values contain
    // names that others wrote.
    let fields = format::debug_fn(|line, field, value| {
        let value = format!("{value:?}");
        match field.name() {
            "message" => write!(line, "{}", Printable(&value)),
            name => write!(line, "{name}={}", Printable(&value)),
        }
    });
    let reload: Arc<Reload> = match format {
        LogFormat::Text => {
            let builder = builder
                .with_ansi(io::stderr().is_terminal())
                .with_target(false)
                .fmt_fields(fields.delimited(" "))
                .with_filter_reloading();
            let handle = builder.reload_handle();
            builder.init();
            Arc::new(move |filter| handle.reload(filter))
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            builder.init();
            Arc::new(move |filter| handle.reload(filter))
        }
    };
    LogFilter::new(&at_start, reload)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter, and what it was changed to.
    fn filter() -> (LogFilter, Arc<Mutex<Vec<String>>>) {
        let changes = Arc::new(Mutex::new(Vec::new()));
        let seen = changes.clone();
        let reload: Arc<Reload> = Arc::new(move |filter| {
            seen.lock().unwrap().push(filter.to_string());
            Ok(())
        });
        (LogFilter::new(&EnvFilter::new(DEFAULT), reload), changes)
    }

    #[test]
    fn the_level_is_changed_and_comes_back() {
        let (filter, changes) = filter();
        let at_start = filter.level().at_start;
        let changed = filter.apply(&LogLevelQuery::Set("debug".into())).unwrap();
        assert_eq!(changed, LogLevel { level: "debug".into(), at_start: at_start.clone() });
        let by_module = LogLevelQuery::Set("warn,denizen_plan=trace".into());
        filter.apply(&by_module).unwrap();
        assert_eq!(filter.apply(&LogLevelQuery::Reset).unwrap().level, at_start);
        let seen = changes.lock().unwrap().clone();
        assert_eq!(seen, ["debug", "denizen_plan=trace,warn", at_start.as_str()]);
    }

    #[test]
    fn what_is_no_level_changes_nothing() {
        let (filter, changes) = filter();
        for wrong in ["verbose", "", "debug,", "denizen_plan", "a b=info", "info,x=loud", "9"] {
            let error = filter.apply(&LogLevelQuery::Set(wrong.into())).unwrap_err();
            assert!(!matches!(error, LogLevelError::Closed(_)), "{wrong}");
        }
        assert_eq!(filter.level(), filter.apply(&LogLevelQuery::Show).unwrap());
        assert_eq!(filter.level().level, filter.level().at_start);
        assert!(changes.lock().unwrap().is_empty());
    }
}
