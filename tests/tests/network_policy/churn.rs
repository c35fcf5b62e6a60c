//! Labels, policies and pods that change a hundred times a second, while permitted clients connect
//! and a forbidden one tries to.

use std::time::Duration;

use anyhow::Result;
use denizen_tests::effort;
use denizen_tests::firewall::churn;

#[test]
fn permitted_clients_are_never_refused_and_forbidden_ones_never_admitted() -> Result<()> {
    churn::play("np-churn", Duration::from_millis(10), effort::duration())?.check(20)
}
