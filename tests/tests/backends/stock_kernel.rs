//! What the kernel under the other tests cannot do, on Debian's stock kernel in a guest of its own:
//! see `tests/src/bin/guest`.

use anyhow::Result;
use denizen_tests::effort;
use denizen_tests::vm::{self, CHURN, PLAY, Processors};

#[test]
fn everything_in_one_guest() -> Result<()> {
    vm::run(Processors::OfItsOwnTime, "")
}

#[test]
fn a_kernel_without_ipv6() -> Result<()> {
    vm::run(Processors::OfItsOwnTime, "ipv6.disable=1")
}

/// Before 6.17, a set's look-up on one processor can miss an element that the other one replaces.
#[test]
fn network_policies_change_while_clients_connect() -> Result<()> {
    vm::run(Processors::TwoAtOnce, &format!("{PLAY}={CHURN} {}", effort::variable()))
}
