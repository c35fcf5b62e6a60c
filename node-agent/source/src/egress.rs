//! The egress file: the ranges to which pods keep their own address. The format is ip-masq-agent's
//! (kubernetes-sigs/ip-masq-agent, "Configuring the agent"), YAML or JSON. The file is read again
//! when it changes and at its resync interval.

mod last_good;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use denizen_state::regular;
use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;
use tokio::time::sleep;
use tracing::{info, warn};

pub use self::last_good::NAME as LAST_GOOD;
use self::last_good::{LastGood, MAX_FILE_BYTES};
use super::watch::{FolderHints, FolderWatch};
use super::{Closed, Outlet};
use denizen_model::{Egress, Event, Family, canonical_range, family_of};
use denizen_text::describe;
use denizen_text::duration;

/// How often the file is read again if it names no interval: ip-masq-agent's default.
const RESYNC: Duration = Duration::from_secs(60);

/// Path of the file, and of the run directory that keeps the last good content.
#[derive(Debug, Clone)]
pub struct EgressConfig {
    pub file: PathBuf,
    pub run_dir: PathBuf,
}

/// Why the file cannot be used.
#[derive(Debug, Error)]
pub enum EgressError {
    #[error("{} cannot be read", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}: {problem}", .path.display())]
    Content {
        path: PathBuf,
        /// The field and what is wrong with it.
        problem: String,
    },
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The ranges to which pods keep their own address.
    pub egress: Egress,
    /// Time until it is read again.
    pub resync: Duration,
    /// Fields that are not supported.
    pub ignored: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EgressDocument {
    #[serde(rename = "nonMasqueradeCIDRs")]
    non_masquerade_cidrs: Option<Vec<String>>,
    masq_link_local: Option<bool>,
    #[serde(rename = "masqLinkLocalIPv6")]
    masq_link_local_ipv6: Option<bool>,
    resync_interval: Option<String>,
    #[serde(flatten)]
    ignored: BTreeMap<String, IgnoredAny>,
}

/// Reads the file. If there is none, ip-masq-agent's default applies: pods keep their address
/// towards the private IPv4 ranges.
pub fn read(path: &Path) -> Result<File, EgressError> {
    match regular::read_to_string(path, MAX_FILE_BYTES) {
        Ok(text) => {
            parse(&text).map_err(|problem| EgressError::Content { path: path.to_owned(), problem })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(without_file()),
        Err(source) => Err(EgressError::Read { path: path.to_owned(), source }),
    }
}

fn without_file() -> File {
    let private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"].map(str::to_owned);
    let written =
        EgressDocument { non_masquerade_cidrs: Some(private.into()), ..EgressDocument::default() };
    checked(written).expect("these are CIDRs")
}

fn parse(text: &str) -> Result<File, String> {
    let is_empty = text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line == "---" || line.starts_with('#')
    });
    if is_empty {
        return checked(EgressDocument::default());
    }
    let written = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    checked(written)
}

fn checked(written: EgressDocument) -> Result<File, String> {
    let named = written.non_masquerade_cidrs.unwrap_or_default();
    let mut kept = named.iter().map(|text| cidr(text)).collect::<Result<Vec<_>, _>>()?;
    let v6 = kept.iter().any(|range| family_of(range.ip()) == Family::V6);
    if !written.masq_link_local.unwrap_or_default() {
        kept.push(cidr("169.254.0.0/16")?);
    }
    if !written.masq_link_local_ipv6.unwrap_or_default() && v6 {
        kept.push(cidr("fe80::/10")?);
    }
    kept.sort_unstable();
    kept.dedup();
    let resync = match &written.resync_interval {
        None => RESYNC,
        Some(text) => duration(text).map_err(|error| format!("resyncInterval: {error}"))?,
    };
    if resync < Duration::from_secs(1) {
        return Err(format!("resyncInterval: {resync:?} is less than a second"));
    }
    Ok(File { egress: Egress { kept, v6 }, resync, ignored: written.ignored.into_keys().collect() })
}

/// As in ip-masq-agent, an address with host bits is an error: it would widen the range.
fn cidr(text: &str) -> Result<IpNetwork, String> {
    let range: Option<IpNetwork> = text.trim().parse().ok().filter(|_| text.contains('/'));
    match range.and_then(canonical_range) {
        None => Err(format!("nonMasqueradeCIDRs: {text:?} is not a CIDR such as 10.0.0.0/8")),
        Some(range) if range.network() != range.ip() => Err(format!(
            "nonMasqueradeCIDRs: {text:?} has bits behind its prefix; {}/{} is meant?",
            range.network(),
            range.prefix()
        )),
        Some(range) => Ok(range),
    }
}

/// The configuration at the start: the file or, if that cannot be used, the last good one. `None`
/// if there was no good file since the last boot.
pub fn at_start(config: &EgressConfig) -> Option<Egress> {
    match read(&config.file) {
        Ok(file) => Some(file.egress),
        Err(_) => kept_in(&LastGood::of(&config.run_dir)),
    }
}

fn kept_in(last_good: &LastGood) -> Option<Egress> {
    let text = last_good.read()?;
    parse(&text).ok().map(|file| file.egress)
}

/// Removes the copy of the last good file: egress masquerade is off.
pub fn forget(run_dir: &Path) {
    if let Err(error) = LastGood::of(run_dir).remove() {
        warn!(%error, "the copy of the last egress file stays in the run directory");
    }
}

/// Sends the content of the file, now and after each change, until the receiver is closed. A file
/// that cannot be used is reported, and the last good content stays in force.
pub async fn run(config: EgressConfig, outlet: Outlet) {
    let last_good = LastGood::of(&config.run_dir);
    let mut source = EgressSource {
        path: config.file,
        outlet,
        has_good: kept_in(&last_good).is_some(),
        last_good,
        sent: None,
    };
    while source.read_and_wait().await.is_ok() {}
}

struct EgressSource {
    path: PathBuf,
    outlet: Outlet,
    last_good: LastGood,
    /// A good file was read since the last boot.
    has_good: bool,
    sent: Option<Egress>,
}

impl EgressSource {
    /// Reads the file once, then waits until there is a reason to read it again.
    async fn read_and_wait(&mut self) -> Result<(), Closed> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // The watch begins before the read, so that no change is missed in between.
        let watch = FolderWatch::open(folder.unwrap_or(Path::new(".")));
        let resync = self.read_and_send().await?;
        let mut hints = FolderHints::default();
        let hint = async {
            match &watch {
                Ok(watch) => watch.changed(&mut hints).await,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.outlet.closed() => Err(Closed),
            () = sleep(resync) => Ok(()),
            changed = hint => {
                if changed.is_err() {
                    sleep(super::RETRY).await;
                }
                Ok(())
            }
        }
    }

    /// Keeps the content of a good file for the next start. Returns why that failed.
    fn keep(&mut self, egress: &Egress) -> Option<String> {
        self.has_good = true;
        if kept_in(&self.last_good).as_ref() == Some(egress) {
            return None;
        }
        let written = self.last_good.write(egress);
        let error = written.err()?;
        Some(format!("cannot save {} for the next start: {error}", self.path.display()))
    }

    /// Reads the file and sends what changed. Returns the time until the next read.
    async fn read_and_send(&mut self) -> Result<Duration, Closed> {
        let file = match read(&self.path) {
            Ok(file) => file,
            Err(error) => {
                let follows = if self.has_good {
                    "the last good file stays in force"
                } else {
                    "there was no good one since the last boot, so egress masquerade is off"
                };
                let problem = format!("{}: {follows}", describe(&error));
                if self.outlet.report(vec![problem.clone()]) {
                    warn!(error = problem, "the egress file cannot be used");
                }
                return Ok(RESYNC);
            }
        };
        let ignored =
            |key: &String| format!("{}: {key} is not supported and ignored", self.path.display());
        let mut problems: Vec<String> = file.ignored.iter().map(ignored).collect();
        problems.extend(self.keep(&file.egress));
        if self.outlet.report(problems.clone()) {
            problems
                .iter()
                .for_each(|problem| warn!(problem, "part of the egress file is not used"));
        }
        if self.sent.as_ref() != Some(&file.egress) {
            let ranges = file.egress.kept.len();
            info!(ranges, ipv6 = file.egress.v6, "egress file read");
            self.sent = Some(file.egress.clone());
            self.outlet.send(vec![Event::Egress(file.egress)]).await?;
        }
        Ok(file.resync)
    }
}
