//! NetworkPolicy: what Kubernetes' own suite and cyclonus ask of it, as cases whose truth the
//! oracle and, for Kubernetes' own, a hand-written table tell.

mod case;
mod cyclonus;
mod e2e;
mod hosts;
mod truth;
