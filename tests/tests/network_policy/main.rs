//! NetworkPolicy: what Kubernetes' own suite and cyclonus ask of it, random clusters, the first
//! packets of new pods, and changes under load. The oracle, which knows nothing of denizen, says
//! what is true; a hand-written table too, for Kubernetes' own suite.

#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

mod across;
mod addresses;
mod arp;
mod case;
mod churn;
mod conformance;
mod cyclonus;
mod e2e;
mod ending;
mod escape;
mod evaluated;
mod explained;
mod first_packet;
mod hosts;
mod impact;
mod newcomers;
mod off;
mod packets;
mod play;
mod prober;
mod random;
mod regressions;
mod tiers;
mod truth;
