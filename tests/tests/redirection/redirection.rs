//! `redirect`: a pod's TCP goes to the proxy in the pod, and nothing else does.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod attachments;
mod calls;
mod check;
pub mod context;
mod failures;
mod iptables;
mod killed;
mod packets;
mod profiles;
mod random;
mod services;
mod surroundings;
