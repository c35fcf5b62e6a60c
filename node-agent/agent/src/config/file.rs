//! `--config FILE`: the flags of `run` in a file. Each field becomes its flag, placed before the
//! words of the command line, so that one definition of each flag parses, checks and documents it.
//! The command line and the environment have precedence over the file.

mod denizen;
mod document;
mod in_force;
mod kube_proxy;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt::{self, Display, Write};
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, value_parser};
use denizen_state::regular;
use thiserror::Error;

use self::document::{Document, FieldPosition};
pub use self::in_force::FlagsInForce;
use super::{ListenArgs, PolicyArgs};
use denizen_backend::BackendName;

/// The command whose flags a file may set. Other commands use those that they also have.
const RUN: &str = "run";

/// Size limit in bytes, more than a file of flags needs.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A flag set by a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    /// The long name, without the dashes.
    flag: String,
    value: String,
    at: FieldPosition,
}

/// The content of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contents {
    settings: Vec<Setting>,
    /// Fields without effect, each with its position and the reason.
    warnings: Vec<Problem>,
    errors: Vec<Problem>,
}

/// A problem with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    at: FieldPosition,
    what: String,
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.what)
    }
}

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
    #[error("cannot read the configuration file {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the configuration file {path} cannot be used:{}", listed(.problems))]
    Bad {
        path: PathBuf,
        /// Errors in the file's fields, each with its position.
        problems: Vec<Problem>,
    },
}

fn listed(problems: &[Problem]) -> String {
    problems.iter().fold(String::new(), |mut text, problem| {
        let _ = write!(text, "\n  {problem}");
        text
    })
}

/// A command line, completed with the settings of its `--config` file.
#[derive(Debug, Default)]
pub struct Completed {
    pub words: Vec<OsString>,
    /// The fields of the file that have no effect: position and reason.
    pub ignored: Vec<String>,
}

/// Lets every switch be written as in kube-proxy: `--switch=false` as well as `--switch`.
pub fn with_booleans(command: Command) -> Command {
    let switch = |arg: Arg| {
        if !matches!(arg.get_action(), ArgAction::SetTrue) {
            return arg;
        }
        arg.action(ArgAction::Set)
            .value_parser(value_parser!(bool))
            .num_args(0..=1)
            .require_equals(true)
            .default_value("false")
            .default_missing_value("true")
            .hide_default_value(true)
            .hide_possible_values(true)
            .value_name("BOOL")
    };
    command.mut_subcommands(|sub| sub.mut_args(switch))
}

/// Adds the settings of the file that `words` name with `--config`. Invalid words are left for the
/// command to report.
///
/// # Errors
/// [`FileError`].
pub fn complete(command: &Command, words: Vec<OsString>) -> Result<Completed, FileError> {
    let untouched = |words| Completed { words, ..Completed::default() };
    let Ok(matches) = with_optional_flags(command.clone()).try_get_matches_from(&words) else {
        return Ok(untouched(words));
    };
    let with_path = matches.subcommand().and_then(|(name, given)| {
        let path = given.try_get_one::<PathBuf>("config").ok().flatten()?;
        Some((name, given, path))
    });
    let Some((name, given, path)) = with_path else {
        return Ok(untouched(words));
    };
    let text = text_of(path).map_err(|source| FileError::Read { path: path.clone(), source })?;
    let Contents { settings, warnings, errors } = contents(command, &text);
    if !errors.is_empty() {
        return Err(FileError::Bad { path: path.clone(), problems: errors });
    }
    let ignored = warnings.iter().map(|warning| format!("{}: {warning}", path.display()));
    let kept = effective(command, name, given, settings);
    let place = words.iter().position(|word| word == name).map_or(words.len(), |at| at + 1);
    let mut words = words;
    words.splice(place..place, kept.iter().map(|setting| setting.word().into()));
    Ok(Completed { words, ignored: ignored.collect() })
}

impl Setting {
    fn word(&self) -> String {
        format!("--{}={}", self.flag, self.value)
    }
}

fn text_of(path: &Path) -> Result<String, std::io::Error> {
    regular::read_to_string(path, MAX_FILE_BYTES)
}

/// Parses a file's text, and checks each value with its flag.
fn contents(command: &Command, text: &str) -> Contents {
    let mut run = command.find_subcommand(RUN).expect("there is a command that runs").clone();
    run.build();
    let mut contents = match Document::read(text) {
        Err(problem) => Contents { errors: vec![problem], ..Contents::default() },
        Ok(Document::Denizen(tree)) => denizen::contents(&tree, &run),
        Ok(Document::KubeProxy(tree)) => kube_proxy::contents(&tree, &run),
    };
    let alone = subcommand_with_optional_flags(run).no_binary_name(true);
    for setting in &contents.settings {
        if let Err(what) = acceptable(alone.clone(), setting) {
            let at = setting.at.clone();
            contents.errors.push(Problem { at, what });
        }
    }
    contents
}

/// Whether the flag accepts the value, as far as that does not depend on other flags.
fn acceptable(alone: Command, setting: &Setting) -> Result<(), String> {
    let refused = |error: clap::Error| in_one_line(&error);
    let matches = alone.try_get_matches_from([setting.word()]).map_err(refused)?;
    let policy = PolicyArgs::from_arg_matches(&matches).map_err(refused)?;
    let listen = ListenArgs::from_arg_matches(&matches).map_err(refused)?;
    let policy = policy.check(BackendName::Nftables).map(drop);
    policy.and(listen.check().map(drop)).map_err(|error| error.to_string())
}

/// clap's message in one line, without usage hints.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join(" ");
    text.trim_start_matches("error: ").to_owned()
}

/// The settings that take effect: flags that this command has, and that the command line sets
/// neither directly nor through a flag that excludes them.
fn effective(
    command: &Command,
    name: &str,
    given: &ArgMatches,
    settings: Vec<Setting>,
) -> Vec<Setting> {
    let mut sub = command.find_subcommand(name).expect("it was found there").clone();
    sub.build();
    let is_given = |arg: &&Arg| {
        let source = given.value_source(arg.get_id().as_str());
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let all: Vec<&Arg> = sub.get_arguments().filter(is_given).collect();
    let is_overridden = |arg: &Arg| {
        all.iter().any(|by| {
            by.get_id() == arg.get_id()
                || sub.get_arg_conflicts_with(by).contains(&arg)
                || sub.get_arg_conflicts_with(arg).contains(by)
        })
    };
    let keeps = |setting: &Setting| {
        let arg = sub.get_arguments().find(|arg| arg.get_long() == Some(&setting.flag));
        arg.is_some_and(|arg| !is_overridden(arg))
    };
    settings.into_iter().filter(keeps).collect()
}

/// Makes every flag optional, since the file may set a required one.
fn with_optional_flags(command: Command) -> Command {
    command.mut_subcommands(subcommand_with_optional_flags)
}

fn subcommand_with_optional_flags(command: Command) -> Command {
    command.mut_args(|arg| arg.required(false))
}
