//! What this host's iptables programs and kernel lack. Pure, except for the program that tests a
//! rule, which the caller executes.
//!
//! `iptables-restore --test` parses rules and asks the kernel for each extension, which also loads
//! its module, but changes nothing.

use std::collections::BTreeMap;

use super::error::IptablesError;

/// A match or a target that this host may lack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// The part of the text that every rule with this extension contains, and no other.
    pub marker: &'static str,
    /// A rule that needs the extension.
    pub rule: String,
}

/// The extensions that this host lacks: for the marker of each, what the program wrote.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MissingExtensions(BTreeMap<&'static str, String>);

impl MissingExtensions {
    /// Why this rule cannot be written, if it needs a missing extension.
    pub fn reason(&self, line: &str) -> Option<&str> {
        let mut missing = self.0.iter();
        missing.find(|(marker, _)| line.contains(**marker)).map(|(_, message)| message.as_str())
    }

    /// For each missing extension: its marker, and what the program wrote.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(marker, message)| (*marker, message.as_str()))
    }

    /// Whether the host has every extension that was probed for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Finds out which extensions are missing. `test` gives a program its input, and returns what the
/// program wrote to its standard error.
///
/// # Errors
/// If `test` fails for input without any rule: then its failures say nothing about extensions.
pub fn probe(
    extensions: &[Extension],
    mut test: impl FnMut(&str) -> Result<String, IptablesError>,
) -> Result<MissingExtensions, IptablesError> {
    let all: Vec<&str> = extensions.iter().map(|extension| extension.rule.as_str()).collect();
    if reason(test(&input(&all))).is_none() {
        return Ok(MissingExtensions::default());
    }
    test(&input(&[]))?;
    let missing = extensions.iter().filter_map(|extension| {
        let reason = reason(test(&input(&[&extension.rule])))?;
        Some((extension.marker, reason))
    });
    Ok(MissingExtensions(missing.collect()))
}

fn input(rules: &[&str]) -> String {
    let rules: String = rules.iter().map(|rule| format!("-A {CHAIN} {rule}\n")).collect();
    format!("*filter\n:{CHAIN} - [0:0]\n{rules}COMMIT\n")
}

/// A chain that is never created.
const CHAIN: &str = "DENIZEN-PROBE";

/// Why the rules cannot be written. A program that knows an extension which the kernel lacks only
/// warns.
fn reason(tested: Result<String, IptablesError>) -> Option<String> {
    match tested {
        Ok(warnings) => warnings.contains("not supported").then_some(warnings),
        Err(error) => Some(error.message().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(marker: &'static str) -> Extension {
        Extension { marker, rule: format!("{marker} --some -j RETURN") }
    }

    fn failed(message: &str) -> IptablesError {
        IptablesError::Failed { program: "iptables-restore".into(), message: message.into() }
    }

    #[test]
    fn what_a_program_or_the_kernel_lacks_is_found_by_one_rule_each() {
        let extensions = ["-m recent", "-m statistic", "-m set"].map(extension);
        let mut tests = 0;
        let missing = probe(&extensions, |input| {
            tests += 1;
            match input {
                input if input.contains("recent") => Err(failed("Couldn't load match `recent'")),
                input if input.contains("-m set") => {
                    Ok("Warning: Extension set revision 0 not supported".to_owned())
                }
                _ => Ok(String::new()),
            }
        });
        let missing = missing.unwrap();
        assert_eq!(tests, 5);
        let reasons = ["-m recent --set", "-m statistic", "-m set", "-j RETURN"]
            .map(|line| missing.reason(line).is_some());
        assert_eq!(reasons, [true, false, true, false]);
    }

    #[test]
    fn a_host_that_lacks_nothing_is_asked_once() {
        let mut tests = 0;
        let missing = probe(&[extension("-m recent")], |_| {
            tests += 1;
            Ok(String::new())
        });
        assert!(missing.unwrap().is_empty());
        assert_eq!(tests, 1);
    }

    #[test]
    fn a_program_that_fails_without_rules_says_nothing_of_extensions() {
        let locked = || failed("Another app is currently holding the xtables lock");
        let missing = probe(&[extension("-m recent")], |_| Err(locked()));
        assert!(missing.unwrap_err().to_string().contains("xtables lock"));
    }
}
