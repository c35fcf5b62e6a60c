//! Labels, policies and pods that change a hundred times a second, while permitted clients connect
//! and a forbidden one tries to.

use std::time::Duration;

use anyhow::Result;
use denizen_tests::policy::churn::{self, ChurnedKind, Pauses};
use denizen_tests::test_length;

const PAUSES: Pauses = Pauses {
    changes: Duration::from_millis(10),
    client: Duration::ZERO,
    strangers: Duration::from_millis(2),
};

#[test]
fn permitted_clients_are_never_refused_and_forbidden_ones_never_admitted() -> Result<()> {
    churn::run("np-churn", ChurnedKind::OfNamespace, PAUSES, test_length::duration())?.check(20)
}

#[test]
fn clients_of_tiers_are_never_refused_and_strangers_never_admitted() -> Result<()> {
    churn::run("cnp-churn", ChurnedKind::OfCluster, PAUSES, test_length::duration())?.check(20)
}
