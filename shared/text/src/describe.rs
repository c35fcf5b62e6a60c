//! Errors as one line, for logs and status.

use std::error::Error;
use std::iter::successors;

/// An error and all its causes on one line. A cause is not repeated if the text before it ends with
/// it: many libraries' errors end with their source's text.
pub fn describe(error: &(dyn Error + 'static)) -> String {
    let causes = successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |mut line, cause| {
        let cause = cause.to_string();
        if !line.ends_with(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
        line
    })
}

#[cfg(test)]
mod tests {
    use thiserror::Error;

    use super::*;

    #[derive(Debug, Error)]
    enum Failed {
        #[error("refused")]
        Refused,
        #[error("cannot connect: {0}")]
        Connect(#[source] Box<Self>),
        #[error("cannot be reached")]
        Unreachable(#[source] Box<Self>),
    }

    #[test]
    fn every_cause_appears_once() {
        let connect = || Failed::Connect(Box::new(Failed::Refused));
        let unreachable = |cause| Failed::Unreachable(Box::new(cause));
        for (error, expected) in [
            (Failed::Refused, "refused"),
            (connect(), "cannot connect: refused"),
            (unreachable(Failed::Refused), "cannot be reached: refused"),
            (unreachable(connect()), "cannot be reached: cannot connect: refused"),
        ] {
            assert_eq!(describe(&error), expected);
        }
    }
}
