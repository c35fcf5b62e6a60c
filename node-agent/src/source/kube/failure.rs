//! What failed, and what follows from that. Pure.

use std::io;
use std::time::Duration;

use kube::core::Status;
use thiserror::Error;

use super::access::AccessError;
use crate::source::object::Kind;

/// Why a list or a watch came to nothing.
#[derive(Debug, Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("the API server cannot be reached")]
    Unreachable(#[source] kube::Error),
    #[error("{} ({} {})", .0.message, .0.code, .0.reason)]
    Refused(Box<Status>),
    #[error("the API server's answer cannot be read")]
    Answer(#[source] serde_json::Error),
    #[error("the API server says nothing for {0:?}")]
    Silent(Duration),
    #[error("the API server broke off a list")]
    HalfAList,
    #[error("the API server ends a watch as soon as it has begun")]
    ShortWatch,
}

/// What follows from a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Try the same again.
    Again,
    /// What was known before is too old to go on from: list anew.
    ListAnew,
    /// The server does not know us (any more): read the credentials anew.
    NewCredentials,
    /// The server does not serve this kind.
    NotServed,
    /// Not allowed, until somebody changes the roles.
    Forbidden,
    /// The server takes no such request: a list as a stream, where that is new to it.
    NotThisWay,
}

impl Failure {
    /// What follows from it.
    pub(super) fn remedy(&self) -> Remedy {
        match self {
            Self::Access(_) => Remedy::NewCredentials,
            Self::Refused(status) => match status.code {
                401 => Remedy::NewCredentials,
                403 => Remedy::Forbidden,
                404 => Remedy::NotServed,
                410 => Remedy::ListAnew,
                400 | 405 | 406 | 415 | 422 => Remedy::NotThisWay,
                _ => Remedy::Again,
            },
            Self::Unreachable(error) if is_of_tls(error) => Remedy::NewCredentials,
            Self::Unreachable(_) | Self::Answer(_) | Self::ShortWatch => Remedy::Again,
            Self::HalfAList => Remedy::Again,
            // It may be waiting for a version that it never reaches: its etcd was restored from an
            // older copy.
            Self::Silent(_) => Remedy::ListAnew,
        }
    }

    /// Whether the whole server may be away or overloaded, and not only this kind of object.
    pub(super) fn is_outage(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Silent(_) => true,
            Self::Refused(status) => status.code == 429 || status.code >= 500,
            Self::Access(_) | Self::Answer(_) | Self::HalfAList | Self::ShortWatch => false,
        }
    }

    /// How long the server asks to be left alone.
    pub(super) fn asked(&self) -> Option<Duration> {
        let Self::Refused(status) = self else { return None };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        Some(Duration::from_secs(u64::from(seconds)))
    }

    /// For a person: what to do about it, where that is known.
    pub(super) fn advice(&self, kind: Kind) -> String {
        match self.remedy() {
            Remedy::Forbidden => {
                format!(": the agent's ClusterRole must allow list and watch of {kind}s")
            }
            Remedy::Again
            | Remedy::ListAnew
            | Remedy::NewCredentials
            | Remedy::NotServed
            | Remedy::NotThisWay => String::new(),
        }
    }
}

impl From<kube::Error> for Failure {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "another crate's enum, of which the rest is all the same"
    )]
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            kube::Error::SerdeError(error) => Self::Answer(error),
            other => Self::Unreachable(other),
        }
    }
}

/// Whether the two ends do not trust each other: another authority's certificate, or one that has
/// run out.
fn is_of_tls(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(is_invalid) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// rustls's errors come in an I/O error of this kind, which hyper-rustls puts into another one.
/// (The source of an I/O error is what its content has as its source, not the content.)
fn is_invalid(error: &io::Error) -> bool {
    let content = error.get_ref().and_then(|content| content.downcast_ref());
    error.kind() == io::ErrorKind::InvalidData || content.is_some_and(is_invalid)
}
