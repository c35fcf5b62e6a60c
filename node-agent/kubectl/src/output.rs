//! How answers are printed: tables, JSON, and who did not answer.

use std::fmt;
use std::io::{self, Write};

use clap::ValueEnum;
use denizen_text::{Printable, printable_json, printable_lines};
use serde::Serialize;

use crate::finding::{Texts, node_names};
use crate::survey::{Survey, Unanswered};

/// The output's format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For a person; it may change
    #[default]
    Text,
    /// For a program
    Json,
}

/// How bad an answer is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    #[default]
    #[value(skip)]
    Good,
    /// Something may not work
    Warning,
    /// Something does not work
    Failure,
}

/// An answer for the cluster.
#[derive(Debug, Serialize)]
pub struct ClusterReport<T> {
    #[serde(flatten)]
    pub body: T,
    /// How many nodes were to be asked.
    pub nodes: usize,
    pub unanswered: Vec<Unanswered>,
    /// What could not be read, and the consequence.
    pub notes: Vec<String>,
}

/// The body of a verb's answer.
pub trait Body: Serialize + fmt::Display {
    /// Whether the text means nothing without an agent's answer.
    const NEEDS_ANSWERS: bool = false;

    fn level(&self) -> Level;
}

impl<T> ClusterReport<T> {
    /// Makes a report from a survey's answers.
    pub fn of<A>(survey: Survey<A>, body: impl FnOnce(Vec<(String, A)>) -> T) -> Self {
        let nodes = survey.nodes();
        let Survey { answered, unanswered, notes } = survey;
        Self { body: body(answered), nodes, unanswered, notes }
    }
}

impl<T: Body> ClusterReport<T> {
    /// The exit code. A finding has precedence over nodes that did not answer: it is certain.
    fn exit_code(&self, fail_on: Level) -> u8 {
        match (self.body.level() >= fail_on, self.unanswered.is_empty()) {
            (true, _) => FOUND,
            (false, true) => 0,
            (false, false) => INCOMPLETE,
        }
    }

    /// As it is printed, with the exit code.
    pub fn printed(&self, format: Format, fail_on: Level) -> anyhow::Result<PrintedAnswer> {
        Ok(PrintedAnswer { text: text(format, self)?, code: self.exit_code(fail_on) })
    }
}

/// An answer as it is printed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PrintedAnswer {
    pub text: String,
    pub code: u8,
}

/// Prints an answer for which no node was asked.
pub fn printed(
    answer: &impl Body,
    format: Format,
    fail_on: Level,
) -> anyhow::Result<PrintedAnswer> {
    let code = if answer.level() >= fail_on { FOUND } else { 0 };
    Ok(PrintedAnswer { text: text(format, answer)?, code })
}

fn text(format: Format, answer: &(impl Serialize + fmt::Display)) -> anyhow::Result<String> {
    Ok(match format {
        Format::Text => printable_lines(&answer.to_string()),
        Format::Json => printable_json(&serde_json::to_string_pretty(answer)?) + "\n",
    })
}

/// An error and its causes; only the API server's own message if the server refused something.
pub fn described(error: &anyhow::Error) -> String {
    let mut words = Vec::new();
    for cause in error.chain() {
        if let Some(kube::Error::Api(status)) = cause.downcast_ref() {
            words.push(status.message.clone());
            break;
        }
        words.push(cause.to_string());
    }
    words.join(": ")
}

/// The exit code if something was found.
pub const FOUND: u8 = 1;
/// The exit code if the command line is wrong, or the cluster cannot be asked.
pub const UNUSABLE: u8 = 2;
/// The exit code if somebody did not answer.
pub const INCOMPLETE: u8 = 3;

impl<T: Body> fmt::Display for ClusterReport<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answered = self.nodes - self.unanswered.len();
        if answered > 0 || !T::NEEDS_ANSWERS {
            write!(f, "{}", self.body)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {}", Printable(note)))?;
        if self.unanswered.is_empty() {
            return writeln!(f, "{answered} of {} nodes answered", self.nodes);
        }
        writeln!(f, "{answered} of {} nodes answered; not:", self.nodes)?;
        let mut reasons = Texts::default();
        for Unanswered { node, why } in &self.unanswered {
            reasons.add(node, &format!("{}: {}", why.code, why.reason));
        }
        for shared in reasons.sorted() {
            let (nodes, why) = (node_names(shared.nodes.iter()), shared.shown());
            writeln!(f, "  {} ({})", Printable(&nodes), Printable(&why))?;
        }
        Ok(())
    }
}

/// Prints to standard output. Returns `false` if the reader, such as `head`, has closed it.
pub fn print(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Rows under a head, in columns. Names are made printable here, so that they keep their width.
pub fn table(f: &mut fmt::Formatter<'_>, head: &[&str], rows: &[Vec<String>]) -> fmt::Result {
    let cell = |text: &String| Printable(text).to_string();
    let mut all = vec![head.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()];
    all.extend(rows.iter().map(|row| row.iter().map(cell).collect()));
    let width = |column: usize| {
        all.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max()
    };
    let widths: Vec<usize> = (0..head.len()).filter_map(width).collect();
    for row in &all {
        let padded = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}"));
        writeln!(f, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::no_answer::NoAnswer;

    #[derive(Serialize)]
    struct FoundBody {
        level: Level,
    }

    impl fmt::Display for FoundBody {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            table(f, &["NAME", "N"], &[vec!["a\u{1b}[2J".to_owned(), "1".to_owned()]])
        }
    }

    impl Body for FoundBody {
        fn level(&self) -> Level {
            self.level
        }
    }

    /// What agents would have said.
    #[derive(Serialize)]
    struct EmptyBody;

    impl fmt::Display for EmptyBody {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            writeln!(f, "nothing was found")
        }
    }

    impl Body for EmptyBody {
        const NEEDS_ANSWERS: bool = true;

        fn level(&self) -> Level {
            Level::Good
        }
    }

    #[test]
    fn without_any_answer_nothing_is_said_of_what_was_found() {
        let of = |nodes| {
            let ClusterReport { unanswered, notes, .. } = report(Level::Good, 2);
            ClusterReport { body: EmptyBody, nodes, unanswered, notes }.to_string()
        };
        assert!(of(3).starts_with("nothing was found\n1 of 3 nodes answered; not:\n"));
        assert!(of(2).starts_with("0 of 2 nodes answered; not:\n"));
    }

    #[test]
    fn what_the_server_refused_is_said_once() {
        let status = kube::core::Status::failure("pods is forbidden", "Forbidden").with_code(403);
        let error = anyhow::Error::from(kube::Error::Api(status.boxed())).context("cannot list");
        assert_eq!(described(&error), "cannot list: pods is forbidden");
        let error = anyhow::anyhow!("no such file").context("cannot read");
        assert_eq!(described(&error), "cannot read: no such file");
    }

    fn report(level: Level, silent: usize) -> ClusterReport<FoundBody> {
        let why = |at| NoAnswer::new(NoAnswer::TIMED_OUT, format!("not within {at}s\u{9b}"));
        let silent = (0..silent).map(|at| Unanswered { node: format!("n{at}"), why: why(at) });
        let (unanswered, notes) = (silent.collect(), Vec::new());
        ClusterReport { body: FoundBody { level }, nodes: 9, unanswered, notes }
    }

    #[test]
    fn exit_codes_are_for_scripts() {
        let cases = [
            (Level::Good, 0, Level::Failure, 0),
            (Level::Warning, 0, Level::Failure, 0),
            (Level::Warning, 0, Level::Warning, FOUND),
            (Level::Failure, 0, Level::Failure, FOUND),
            (Level::Failure, 1, Level::Failure, FOUND),
            (Level::Warning, 1, Level::Failure, INCOMPLETE),
            (Level::Good, 1, Level::Failure, INCOMPLETE),
        ];
        for (level, silent, fail_on, expected) in cases {
            let code = report(level, silent).exit_code(fail_on);
            assert_eq!(code, expected, "{level:?} {silent} {fail_on:?}");
        }
    }

    #[test]
    fn who_did_not_answer_is_said_once_for_each_reason_and_names_are_text() {
        let text = report(Level::Good, 2).to_string();
        let expected = "\
NAME        N
a\\u{1b}[2J  1
7 of 9 nodes answered; not:
  2 nodes: n0, n1 (timed-out: not within 0s\\u{9b} | timed-out: not within 1s\\u{9b})
";
        assert_eq!(text, expected);
    }
}
