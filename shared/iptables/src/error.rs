//! Why tables and sets are not as they should be.

use std::io;

use thiserror::Error;

use denizen_netlink::NetlinkError;
use denizen_nft::NftError;

/// Why the rules are not as they should be.
#[derive(Debug, Error)]
pub enum IptablesError {
    /// A program cannot be executed.
    #[error("cannot run {program}")]
    Run {
        /// The program's name, such as `iptables-restore`.
        program: String,
        /// Why the program could not be started, or its output could not be read.
        #[source]
        source: io::Error,
    },
    /// A program ended with an exit code other than 0.
    #[error("{program} failed: {message}")]
    Failed {
        /// The program's name.
        program: String,
        /// What the program wrote to its standard error.
        message: String,
    },
    /// nf_tables cannot be read or changed through netlink.
    #[error("cannot {what}")]
    Netlink {
        /// The operation, as a verb and its object.
        what: String,
        /// The driver's error.
        #[source]
        source: NftError,
    },
    /// A set of addresses cannot be read or written.
    #[error("the set {set} cannot be programmed")]
    Set {
        /// The set's name, or the prefix of the names of several sets.
        set: &'static str,
        /// The kernel's error.
        #[source]
        source: NetlinkError,
    },
}

impl IptablesError {
    /// The same error; if a program failed, with `what` it was to write in its text.
    #[must_use]
    pub fn of(mut self, what: &str) -> Self {
        if let Self::Failed { message, .. } = &mut self {
            *message = format!("{what}: {message}");
        }
        self
    }

    /// What the program wrote to its standard error; empty if no program failed.
    pub fn message(&self) -> &str {
        match self {
            Self::Failed { message, .. } => message,
            Self::Run { .. } | Self::Netlink { .. } | Self::Set { .. } => "",
        }
    }

    /// Whether a program failed because of the rules in its `input`: it names the line of a rule,
    /// or COMMIT. Other failures: the table cannot be initialised, another program holds the lock,
    /// or this program lacks a privilege.
    pub fn is_about_rules(&self, input: &str) -> bool {
        let line = line_number(self.message()).and_then(|number| input.lines().nth(number - 1));
        line.is_some_and(|line| line.starts_with('-') || line == "COMMIT")
    }
}

/// `Error occurred at line: 5`, `line 5: RULE_APPEND failed …`, `line 5 failed`.
fn line_number(message: &str) -> Option<usize> {
    let mut places = message.split("line").skip(1);
    places.find_map(|rest| {
        let rest = rest.trim_start_matches([':', ' ']);
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok().filter(|number| *number > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(message: &str) -> IptablesError {
        IptablesError::Failed { program: "iptables-restore".into(), message: message.into() }
    }

    #[test]
    fn the_line_is_found_in_what_each_program_says() {
        let cases = [
            (
                "iptables-restore v1.8.9 (legacy): Couldn't load match `recent':No such file or \
                 directory; Error occurred at line: 5; Try `iptables-restore -h'",
                Some(5),
            ),
            ("iptables-restore: line 6 failed (exit status: 1)", Some(6)),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): ; line 16: CHAIN_DEL failed \
                 (Device or resource busy): chain B",
                Some(16),
            ),
            ("Another app is currently holding the xtables lock; on the line", None),
        ];
        for (message, expected) in cases {
            assert_eq!(line_number(message), expected, "{message}");
        }
    }

    #[test]
    fn what_is_not_for_the_rules_is_told_from_what_is() {
        let input = "*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -j RETURN\nCOMMIT\n";
        let cases = [
            ("iptables-restore: line 4 failed (exit status: 1)", true),
            (
                "Warning: Extension recent revision 0 not supported, missing kernel module?; \
                 iptables-restore: line 4 failed",
                true,
            ),
            ("line 3: RULE_APPEND failed (Invalid argument): rule in chain KUBE-SVC-A", true),
            (
                "iptables-restore: unable to initialize table 'nat'; Error occurred at line: 1",
                false,
            ),
            ("Another app is currently holding the xtables lock", false),
            ("Could not fetch rule set generation id: Permission denied (you must be root)", false),
        ];
        for (message, expected) in cases {
            assert_eq!(failed(message).is_about_rules(input), expected, "{message}");
        }
    }
}
