//! The flags of `run` that are in force, whether a default, the environment, the file or the
//! command line set them.

use std::collections::BTreeMap;

use clap::{ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::RUN;
use super::denizen::{FieldType, field_of};
use super::document::OWN;

/// The flags of `run`, and the `DenizenConfiguration` that says the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlagsInForce {
    /// Values by long name; empty for a flag that is not set and has no default.
    flags: BTreeMap<String, String>,
    fields: Map<String, Value>,
}

impl FlagsInForce {
    /// The flags of `run` in `matches`, those of the whole command line; none if it has another
    /// command.
    pub fn of(command: &Command, matches: &ArgMatches) -> Self {
        let Some((RUN, given)) = matches.subcommand() else {
            return Self::default();
        };
        let mut run = command.find_subcommand(RUN).expect("there is a command that runs").clone();
        run.build();
        let mut in_force = Self::default();
        for arg in run.get_arguments() {
            let Some(flag) = arg.get_long().filter(|flag| *flag != "help") else { continue };
            let values = given.try_get_raw(arg.get_id().as_str()).ok().flatten();
            let text = values.map(|values| {
                let texts = values.map(|value| value.to_string_lossy().into_owned());
                texts.collect::<Vec<_>>().join(",")
            });
            if let Some((text, field)) = text.as_ref().zip(field_of(flag)) {
                in_force.set_field(&field, FieldType::of(arg).value(text));
            }
            in_force.flags.insert(flag.to_owned(), text.unwrap_or_default());
        }
        in_force
    }

    /// The flags and their values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        self.flags.iter()
    }

    /// Puts the chosen backend into the configuration, in place of `auto`. The flag keeps its
    /// value.
    pub fn chosen_backend(&mut self, backend: &str) {
        self.set_field("backend", backend.into());
    }

    /// The configuration under its API group, as in `/configz` of Kubernetes' components.
    pub fn configuration(&self) -> Value {
        let (version, kind) = OWN;
        let group = version.split('/').next().unwrap_or_default();
        let mut configuration = self.fields.clone();
        configuration.insert("apiVersion".to_owned(), version.into());
        configuration.insert("kind".to_owned(), kind.into());
        json!({ group: configuration })
    }

    /// Sets a field, which may be in a section.
    fn set_field(&mut self, field: &str, value: Value) {
        match field.split_once('.') {
            Some((section, name)) => {
                let section = self.fields.entry(section).or_insert_with(|| json!({}));
                section[name] = value;
            }
            None => _ = self.fields.insert(field.to_owned(), value),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;
    use crate::config::RunArgs;
    use crate::config::file::{contents, with_booleans};

    /// A command line with `run` and another command.
    fn command() -> Command {
        let run = RunArgs::augment_args(Command::new(RUN));
        with_booleans(Command::new("denizen-agent").subcommands([run, Command::new("status")]))
    }

    fn in_force(words: &[&str]) -> FlagsInForce {
        let command = command();
        let words = ["denizen-agent", RUN].iter().chain(words);
        let matches = command.clone().try_get_matches_from(words).unwrap();
        FlagsInForce::of(&command, &matches)
    }

    const WORDS: [&str; 7] = [
        "--manifests=/m",
        "--masquerade-all",
        "--nodeport-addresses=10.0.0.0/8,fd00::/8",
        "--feature-gates=A=true,B=false",
        "--conntrack-min=5",
        "--routing-mode=bird",
        r#"--bird={"asn":64512}"#,
    ];

    #[test]
    fn flags_have_their_values_and_defaults() {
        let in_force = in_force(&WORDS);
        let flag = |name: &str| in_force.flags.get(name).map(String::as_str);
        assert_eq!(flag("manifests"), Some("/m"));
        assert_eq!(flag("masquerade-all"), Some("true"));
        assert_eq!(flag("nodeport-addresses"), Some("10.0.0.0/8,fd00::/8"));
        assert_eq!(flag("backend"), Some("auto"));
        assert_eq!(flag("kubeconfig"), Some(""));
        assert_eq!(flag("help"), None);
    }

    /// An agent with this configuration as its file has the same flags.
    #[test]
    fn the_configuration_is_a_file_that_says_the_same() {
        let before = in_force(&WORDS);
        let configuration = before.configuration()["denizen.io"].clone();
        assert_eq!(configuration["conntrack"]["min"], "5");
        assert_eq!(configuration["featureGates"], json!({ "A": true, "B": false }));
        assert_eq!(configuration["routing"]["bird"], json!({ "asn": 64512 }));
        let file = contents(&command(), &configuration.to_string());
        assert!(file.errors.is_empty(), "{:?}", file.errors);
        let words: Vec<String> = file.settings.iter().map(super::super::Setting::word).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(in_force(&words), before);
    }

    #[test]
    fn the_chosen_backend_is_the_one_in_force() {
        let mut in_force = in_force(&WORDS);
        in_force.chosen_backend("iptables");
        assert_eq!(in_force.configuration()["denizen.io"]["backend"], "iptables");
        assert_eq!(in_force.flags["backend"], "auto");
    }

    #[test]
    fn other_commands_have_none() {
        let command = command();
        let matches = command.clone().try_get_matches_from(["denizen-agent", "status"]).unwrap();
        assert_eq!(FlagsInForce::of(&command, &matches), FlagsInForce::default());
    }
}
