//! What the kernel under the other tests cannot do, on Debian's stock kernel in a guest of its own:
//! see `tests/src/bin/guest`.

use anyhow::Result;
use denizen_tests::vm;

#[test]
fn everything_in_one_guest() -> Result<()> {
    vm::run("")
}

#[test]
fn a_kernel_without_ipv6() -> Result<()> {
    vm::run("ipv6.disable=1")
}
