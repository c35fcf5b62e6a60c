//! `test`: what it makes runs, is judged, and is gone in the end.
//!
//! | file | knows |
//! | --- | --- |
//! | `controllers` | what a cluster makes of pods and services: kubelets, and addresses |
//! | `nodes` | pods on two real nodes |
//! | `pretended` | pods that only seem to run, in clusters of any size |
//! | the others | tests |

mod controllers;
mod interrupted;
mod nodes;
mod pretended;
mod real;
mod rights;

use std::time::Duration;

/// What has not come about by then never will.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What the names of tests' namespaces begin with.
const PREFIX: &str = "denizen-test-";
