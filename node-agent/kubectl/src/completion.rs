//! Completion of the command line. kubectl runs `kubectl_complete-denizen` with the words so far,
//! the last of them perhaps empty. It reads lines of a candidate, a tab and its description, and a
//! last line `:4`, which keeps kubectl from offering files.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Command;
use denizen_text::Printable;
use serde::Deserialize;

use crate::cluster::{Api, ClusterArgs};
use crate::objects::{self, Metadata, percent};

/// The name of the program as which kubectl runs this one for completions.
pub const PROGRAM: &str = "kubectl_complete-denizen";

/// Time limit for a completion.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct NamedObject {
    metadata: Metadata,
}

/// The candidates, as kubectl reads them.
pub async fn complete(command: &Command, words: &[OsString]) -> String {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let (last, before) = match words.split_last() {
        Some((last, before)) => (last.as_str(), before),
        None => ("", &[][..]),
    };
    let mut lines: Vec<(String, String)> = Vec::new();
    let verb = before.iter().find_map(|word| command.find_subcommand(word));
    match verb {
        _ if last.starts_with('-') => {
            let flags =
                command.get_arguments().chain(verb.into_iter().flat_map(Command::get_arguments));
            lines.extend(flags.filter_map(|flag| {
                let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
                Some((format!("--{}", flag.get_long()?), help))
            }));
        }
        None => lines.extend(command.get_subcommands().map(|verb| {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            (verb.get_name().to_owned(), about)
        })),
        Some(verb) => {
            let of = objects_of(verb.get_name(), before);
            lines.extend(of.await.into_iter().map(|name| (name, String::new())));
        }
    }
    let fitting = lines.into_iter().filter(|(name, _)| name.starts_with(last));
    let line = |(name, about): (String, String)| match about.is_empty() {
        true => format!("{}\n", Printable(&name)),
        false => format!("{}\t{}\n", Printable(&name), Printable(&about)),
    };
    fitting.map(line).collect::<String>() + ":4\n"
}

/// The names of objects that a verb takes; none without a cluster.
async fn objects_of(verb: &str, before: &[String]) -> Vec<String> {
    let plurals: &[(&str, bool)] = match (verb, before.last().map(String::as_str)) {
        ("bundle", Some("--nodes")) => &[("nodes", false)],
        ("policies", _) | ("connections", Some("--pod")) => &[("pods", true)],
        ("services", _) | ("connections", Some("--service")) => &[("services", true)],
        ("explain" | "trace", _) => &[("pods", true), ("services", true)],
        _ => &[],
    };
    let args = ClusterArgs {
        kubeconfig: value(before, &["--kubeconfig"]).map(PathBuf::from),
        context: value(before, &["--context"]),
        cluster: value(before, &["--cluster"]),
        user: value(before, &["--user"]),
        impersonated: value(before, &["--as"]),
        namespace: value(before, &["--namespace", "-n"]),
        ..ClusterArgs::default()
    };
    let names = async {
        let api = Api::connect(&args).await?;
        let mut names = Vec::new();
        for (plural, is_namespaced) in plurals {
            let path = match is_namespaced {
                true => format!("/api/v1/namespaces/{}/{plural}", percent(&api.namespace)),
                false => format!("/api/v1/{plural}"),
            };
            let of: Vec<NamedObject> = objects::list(&api.client, &path, &[]).await?;
            names.extend(of.into_iter().map(|named| named.metadata.name));
        }
        anyhow::Ok(names)
    };
    #[expect(clippy::disallowed_methods, reason = "a completion is quick, or there is none")]
    let names = tokio::time::timeout(PATIENCE, names).await;
    names.ok().and_then(Result::ok).unwrap_or_default()
}

/// The value of a flag among the words.
fn value(words: &[String], flags: &[&str]) -> Option<String> {
    words.iter().enumerate().find_map(|(at, word)| {
        let next = || flags.contains(&word.as_str()).then(|| words.get(at + 1).cloned()).flatten();
        let joined = || {
            let (flag, value) = word.split_once('=')?;
            flags.contains(&flag).then(|| value.to_owned())
        };
        next().or_else(joined)
    })
}

/// Makes the link by which kubectl finds this program for completions, beside the program, or in
/// `folder`. Package managers for plugins link the plugin alone.
pub fn install(folder: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let folder = match folder {
        Some(folder) => folder,
        None => own.parent().context("a program is in a folder")?.to_owned(),
    };
    let link = folder.join(PROGRAM);
    ensure!(link.symlink_metadata().is_err(), "{} is there already", link.display());
    #[cfg(unix)]
    std::os::unix::fs::symlink(&own, &link)
        .with_context(|| format!("cannot make {}", link.display()))?;
    #[cfg(not(unix))]
    std::fs::copy(&own, &link)
        .map(drop)
        .with_context(|| format!("cannot make {}", link.display()))?;
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_before_the_verb_are_read() {
        let words = ["--context", "a", "-n=b", "policies"].map(str::to_owned);
        assert_eq!(value(&words, &["--context"]).as_deref(), Some("a"));
        assert_eq!(value(&words, &["--namespace", "-n"]).as_deref(), Some("b"));
        assert_eq!(value(&words, &["--user"]), None);
    }
}
