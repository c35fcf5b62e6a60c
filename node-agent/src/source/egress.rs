//! The file that says where pods keep their address, in ip-masq-agent's format
//! (kubernetes-sigs/ip-masq-agent, "Configuring the agent"): YAML or JSON, read again when it
//! changes and on its own resync interval.

mod last_good;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use denizen_shared::regular;
use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;
use tokio::time::sleep;
use tracing::{info, warn};

use self::last_good::{LONGEST, LastGood};
use super::watch::{FolderWatch, Hints};
use super::{Closed, Outlet};
use crate::config::duration;
use crate::describe::describe;
use crate::model::{Egress, Event, Family, canonical_range, family_of};

/// How often the file is read again where it does not say: ip-masq-agent's own.
const RESYNC: Duration = Duration::from_secs(60);

/// Which file, and where what it said last is kept.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file.
    pub file: PathBuf,
    /// The run directory.
    pub run_dir: PathBuf,
}

/// Why the file cannot be used.
#[derive(Debug, Error)]
pub enum EgressError {
    /// It cannot be read.
    #[error("{} cannot be read", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It says something else than it should.
    #[error("{}: {problem}", .path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// Where, and what.
        problem: String,
    },
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Where pods keep their address.
    pub egress: Egress,
    /// When it is to be read again.
    pub resync: Duration,
    /// What it says that means nothing here.
    pub ignored: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    #[serde(rename = "nonMasqueradeCIDRs")]
    non_masquerade_cidrs: Option<Vec<String>>,
    masq_link_local: Option<bool>,
    #[serde(rename = "masqLinkLocalIPv6")]
    masq_link_local_ipv6: Option<bool>,
    resync_interval: Option<String>,
    #[serde(flatten)]
    ignored: BTreeMap<String, IgnoredAny>,
}

/// Reads the file. Where there is none, it is as ip-masq-agent has it then: pods keep their address
/// in the private ranges of IPv4.
///
/// # Errors
/// [`EgressError`], naming what is wrong.
pub fn read(path: &Path) -> Result<File, EgressError> {
    match regular::read_to_string(path, LONGEST) {
        Ok(text) => {
            parse(&text).map_err(|problem| EgressError::Content { path: path.to_owned(), problem })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(without_file()),
        Err(source) => Err(EgressError::Read { path: path.to_owned(), source }),
    }
}

fn without_file() -> File {
    let private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"].map(str::to_owned);
    let written = Written { non_masquerade_cidrs: Some(private.into()), ..Written::default() };
    checked(written).expect("these are CIDRs")
}

fn parse(text: &str) -> Result<File, String> {
    let says_nothing = text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line == "---" || line.starts_with('#')
    });
    if says_nothing {
        return checked(Written::default());
    }
    let written = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    checked(written)
}

fn checked(written: Written) -> Result<File, String> {
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

/// As ip-masq-agent: an address with bits behind the prefix is a mistake that would widen the
/// range.
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

/// What holds at a start: what the file says or, where it cannot be used, what the last good one
/// said. `None` where there was none since the last boot.
pub fn at_start(config: &Config) -> Option<Egress> {
    match read(&config.file) {
        Ok(file) => Some(file.egress),
        Err(_) => kept_in(&LastGood::of(&config.run_dir)),
    }
}

fn kept_in(last_good: &LastGood) -> Option<Egress> {
    let text = last_good.read()?;
    parse(&text).ok().map(|file| file.egress)
}

/// Forgets what the last good file said: egress masquerade is not asked for.
pub fn forget(run_dir: &Path) {
    if let Err(error) = LastGood::of(run_dir).remove() {
        warn!(%error, "what the last egress file said is left in the run directory");
    }
}

/// Tells what the file says until nobody listens any more. What cannot be used is reported, and
/// what was told last stays; at a start, what [`at_start`] found.
pub async fn run(config: Config, outlet: Outlet) {
    let last_good = LastGood::of(&config.run_dir);
    let mut source = Source {
        path: config.file,
        outlet,
        holds: kept_in(&last_good).is_some(),
        last_good,
        told: None,
    };
    while source.attend().await.is_ok() {}
}

struct Source {
    path: PathBuf,
    outlet: Outlet,
    last_good: LastGood,
    /// There was a good file.
    holds: bool,
    told: Option<Egress>,
}

impl Source {
    /// Looks once, and waits until there is a reason to look again.
    async fn attend(&mut self) -> Result<(), Closed> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // Before the look, so that no change is missed between the two.
        let watch = FolderWatch::open(folder.unwrap_or(Path::new(".")));
        let resync = self.look().await?;
        let mut hints = Hints::default();
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

    /// Keeps what a good file says for the next start; why that cannot be done.
    fn keep(&mut self, egress: &Egress) -> Option<String> {
        self.holds = true;
        if kept_in(&self.last_good).as_ref() == Some(egress) {
            return None;
        }
        let written = self.last_good.write(egress);
        let error = written.err()?;
        Some(format!("cannot keep what {} says for the next start: {error}", self.path.display()))
    }

    /// Reads the file and tells what is new; how long until it is to be read again.
    async fn look(&mut self) -> Result<Duration, Closed> {
        let file = match read(&self.path) {
            Ok(file) => file,
            Err(error) => {
                let follows = if self.holds {
                    "what the last good file said holds"
                } else {
                    "there was no good one since the last boot, so no pod is masqueraded by it"
                };
                let problem = format!("{}: {follows}", describe(&error));
                if self.outlet.report(vec![problem.clone()]) {
                    warn!(error = problem, "the egress file cannot be used");
                }
                return Ok(RESYNC);
            }
        };
        let ignored = |key: &String| format!("{}: {key} means nothing here", self.path.display());
        let mut problems: Vec<String> = file.ignored.iter().map(ignored).collect();
        problems.extend(self.keep(&file.egress));
        if self.outlet.report(problems.clone()) {
            problems
                .iter()
                .for_each(|problem| warn!(problem, "the egress file is not used in full"));
        }
        if self.told.as_ref() != Some(&file.egress) {
            let ranges = file.egress.kept.len();
            info!(ranges, ipv6 = file.egress.v6, "where pods keep their address");
            self.told = Some(file.egress.clone());
            self.outlet.tell(vec![Event::Egress(file.egress)]).await?;
        }
        Ok(file.resync)
    }
}
