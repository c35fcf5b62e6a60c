//! What the kernel under the other tests cannot do, on Debian's stock kernel in guests of its own:
//! see `tests/src/bin/guest`.

use anyhow::Result;
use denizen_tests::kernel::vm::{self, Processors};

#[test]
fn a_node() -> Result<()> {
    vm::run(Processors::OfItsOwnTime, vm::NODE, "")
}

#[test]
fn ipvs() -> Result<()> {
    vm::run(Processors::OfItsOwnTime, vm::IPVS, "")
}

#[test]
fn a_kernel_without_ipv6() -> Result<()> {
    vm::run(Processors::OfItsOwnTime, vm::WITHOUT_IPV6, "ipv6.disable=1")
}

/// Before 6.17, a set's look-up on one processor can miss an element that the other one replaces.
#[test]
fn network_policies_change_while_clients_connect() -> Result<()> {
    vm::run(Processors::TwoAtOnce, vm::CHURN, "")
}
