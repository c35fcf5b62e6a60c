//! What failed, and what to do about it. Pure.

use std::io;
use std::time::Duration;

use kube::core::Status;
use thiserror::Error;

use super::access::AccessError;
use super::envelope::Unreadable;
use crate::Closed;
use denizen_object::ObjectKind;

/// Why a list, a watch or a question failed.
#[derive(Debug, Error)]
pub enum Failure {
    #[error(transparent)]
    Access(#[from] AccessError),
    /// There is no connection.
    #[error("the API server cannot be reached")]
    Unreachable(#[source] kube::Error),
    /// The server refuses.
    #[error("{} ({} {})", .0.message, .0.code, .0.reason)]
    Refused(Box<Status>),
    /// The answer is not what was asked for.
    #[error("the API server's answer cannot be read")]
    Answer(#[source] Unreadable),
    /// No answer came within this time limit.
    #[error("the API server has been silent for {0:?}")]
    TimedOut(Duration),
    #[error("the API server closed the connection in the middle of a list")]
    HalfAList,
    /// A watch ended within an event.
    #[error("the API server closed the connection in the middle of an event")]
    HalfAnEvent,
    /// A watch ended too early.
    #[error("the API server ends a watch as soon as it has begun")]
    ShortWatch,
    /// The definition of the kind is there, and the kind is not served.
    #[error("the API server does not serve this kind yet, although it is defined")]
    NotServedYet,
    /// The kind is not defined, which is not an error.
    #[error("the API server does not serve this kind")]
    Absent,
}

/// Why a list or watch ended.
pub(super) enum StreamEnd {
    Closed,
    Failed(Failure),
}

impl From<Closed> for StreamEnd {
    fn from(Closed: Closed) -> Self {
        Self::Closed
    }
}

impl<E: Into<Failure>> From<E> for StreamEnd {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Try the same again.
    Again,
    /// The known version is too old to watch from: list again.
    ListAnew,
    /// The server does not accept the credentials: read them again.
    NewCredentials,
    /// The server does not serve this kind.
    NotServed,
    /// Not allowed until an operator changes the roles.
    Forbidden,
    /// The server does not accept such a request: it is too old for a field selector, for example.
    RequestRejected,
}

impl Failure {
    /// What to do about the failure.
    pub(super) fn remedy(&self) -> Remedy {
        match self {
            Self::Access(_) => Remedy::NewCredentials,
            Self::Refused(status) => match status.code {
                401 => Remedy::NewCredentials,
                403 => Remedy::Forbidden,
                404 => Remedy::NotServed,
                410 => Remedy::ListAnew,
                400 | 405 | 406 | 415 | 422 => Remedy::RequestRejected,
                _ => Remedy::Again,
            },
            Self::Unreachable(error) if is_of_tls(error) => Remedy::NewCredentials,
            Self::Unreachable(_) | Self::Answer(_) | Self::ShortWatch => Remedy::Again,
            Self::HalfAList | Self::HalfAnEvent | Self::NotServedYet => Remedy::Again,
            Self::Absent => Remedy::NotServed,
            // The server may be waiting for a version that it never reaches: its etcd was restored
            // from an older copy.
            Self::TimedOut(_) => Remedy::ListAnew,
        }
    }

    /// Whether the server does not accept the credentials.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 401)
    }

    /// Whether the server does not permit it.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 403)
    }

    /// Whether the server no longer has the version that a watch began with.
    pub(super) fn is_expired(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 410)
    }

    /// Whether the whole server may be unavailable, not only this kind. A server that answers 429
    /// is available: it asks each client to wait, and its next answer should wake no other
    /// follower.
    pub(super) fn is_outage(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::TimedOut(_) => true,
            Self::Refused(status) => status.code >= 500 && !self.is_of_the_future(),
            Self::Access(_)
            | Self::Answer(_)
            | Self::HalfAList
            | Self::HalfAnEvent
            | Self::ShortWatch
            | Self::NotServedYet
            | Self::Absent => false,
        }
    }

    /// Whether the server has not reached the version that was asked for. It may never reach it, if
    /// its etcd was restored from an older copy.
    pub(super) fn is_of_the_future(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 504
            && status.message.contains("Too large resource version"))
    }

    /// How long the server asks the client to wait.
    pub(super) fn asked(&self) -> Option<Duration> {
        let Self::Refused(status) = self else { return None };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        Some(Duration::from_secs(u64::from(seconds)))
    }

    /// What the operator can do about it, if that is known.
    pub(super) fn advice(&self, kind: ObjectKind) -> String {
        match self.remedy() {
            Remedy::Forbidden => {
                format!(": the agent's ClusterRole must allow list and watch of {}", kind.plural())
            }
            Remedy::NotServed if kind == ObjectKind::EndpointSlice => {
                ": Kubernetes serves discovery.k8s.io/v1 since 1.21".to_owned()
            }
            Remedy::Again
            | Remedy::ListAnew
            | Remedy::NewCredentials
            | Remedy::NotServed
            | Remedy::RequestRejected => String::new(),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Answer(error.into())
    }
}

impl From<kube::Error> for Failure {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "another crate's enum; the other variants need no distinction"
    )]
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            kube::Error::SerdeError(error) => Self::Answer(error.into()),
            other => Self::Unreachable(other),
        }
    }
}

/// Whether TLS failed: for example, the certificate is another authority's, or has expired.
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

/// rustls's errors come inside an I/O error of this kind, which hyper-rustls puts inside another
/// one. (An I/O error's `source` is the source of its content, not the content.)
fn is_invalid(error: &io::Error) -> bool {
    let content = error.get_ref().and_then(|content| content.downcast_ref());
    error.kind() == io::ErrorKind::InvalidData || content.is_some_and(is_invalid)
}
