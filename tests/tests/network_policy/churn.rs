//! Labels, policies and pods that change a hundred times a second, while permitted clients connect
//! and a forbidden one tries to.

use std::time::Duration;

use anyhow::Result;
use denizen_tests::policy::churn::{self, Pauses};
use denizen_tests::test_length;

#[test]
fn permitted_clients_are_never_refused_and_forbidden_ones_never_admitted() -> Result<()> {
    let pauses = Pauses {
        changes: Duration::from_millis(10),
        client: Duration::ZERO,
        strangers: Duration::from_millis(2),
    };
    churn::play("np-churn", pauses, test_length::duration())?.check(20)
}
