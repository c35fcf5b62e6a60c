//! The state of BGP.

use serde::{Deserialize, Serialize};

use super::Session;

/// The state of BIRD.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpStatus {
    /// BIRD answers.
    pub is_answering: bool,
    /// BIRD has, or starts with, the current configuration.
    pub is_current: bool,
    pub sessions: Vec<Session>,
}

impl BgpStatus {
    /// For a person: a line for all, and one for each session.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let Self { is_answering, is_current, sessions } = self;
        let (up, all) = (sessions.iter().filter(|session| session.is_up()).count(), sessions.len());
        let current = if *is_current { "" } else { ", its configuration is not current" };
        let bird = match is_answering {
            true => format!("{up} of {all} sessions are up{current}"),
            false => format!("BIRD does not answer{current}"),
        };
        let sessions = sessions.iter().map(|session| ("session", session.to_string()));
        [("bgp", bird)].into_iter().chain(sessions).collect()
    }
}
