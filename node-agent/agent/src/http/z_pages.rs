//! `/configz`, `/flagz` and `/statusz`, as Kubernetes' components have them: what the agent was
//! started with, and since when it runs.

use std::time::{Duration, Instant};

use hyper::StatusCode;
use jiff::Timestamp;

use crate::config::file::FlagsInForce;
use crate::log::LogFilter;
use denizen_page::{Answer, answer, plain};

/// The paths, for `/statusz`.
const PATHS: &str = "/configz /flagz /healthz /livez /metrics /proxyMode /statusz";

/// Facts from the start, which do not change while the agent runs, and the log filter, which may.
#[derive(Debug, Clone)]
pub struct StartFacts {
    pub flags: FlagsInForce,
    pub log: LogFilter,
    /// The backend that runs.
    pub backend: String,
    /// When the agent started.
    pub at: Timestamp,
    pub instant: Instant,
}

impl StartFacts {
    /// The page at this path; `None` if this module has none there.
    pub(super) fn page(&self, path: &str, now: Instant) -> Option<Answer> {
        Some(match path {
            "/configz" => {
                let body = self.flags.configuration().to_string();
                answer(StatusCode::OK, "application/json", body)
            }
            "/flagz" => plain(StatusCode::OK, &self.flagz()),
            "/statusz" => {
                plain(StatusCode::OK, &self.statusz(now.saturating_duration_since(self.instant)))
            }
            _ => return None,
        })
    }

    fn flagz(&self) -> String {
        let lines = self.flags.iter().map(|(name, value)| format!("{name}={value}\n"));
        heading("flags") + &lines.collect::<String>()
    }

    fn statusz(&self, up: Duration) -> String {
        let seconds = up.as_secs();
        let lines = [
            ("Started", self.at.strftime("%FT%TZ").to_string()),
            (
                "Up",
                format!(
                    "{} hr {:02} min {:02} sec",
                    seconds / 3600,
                    seconds / 60 % 60,
                    seconds % 60
                ),
            ),
            ("Binary version", env!("CARGO_PKG_VERSION").to_owned()),
            ("Backend", self.backend.clone()),
            ("Log level", self.log.level().level),
            ("Paths", PATHS.to_owned()),
        ];
        let lines = lines.map(|(name, value)| format!("{name}: {value}\n"));
        heading("statusz") + &lines.concat()
    }
}

fn heading(what: &str) -> String {
    format!("denizen-agent {what}\nFor people: only /configz and /metrics keep their form.\n\n")
}
