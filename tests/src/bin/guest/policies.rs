//! NetworkPolicies that change while clients connect, on a kernel whose look-ups may miss what is
//! being replaced.

use std::time::Duration;

use anyhow::Result;
use denizen_tests::policy::churn::{self, ChurnedKind, Pauses};
use denizen_tests::test_length;

/// A hundred changes a second. The emulated processors can do as much if nothing else keeps them
/// busy all the time.
const PAUSES: Pauses = Pauses {
    changes: Duration::from_millis(10),
    client: Duration::from_millis(20),
    strangers: Duration::from_millis(50),
};

/// The least duration. This test takes a quarter of the time of other tests, since an emulated node
/// takes half a minute to be set up, but no less than this: on a busy machine, two connections took
/// a second.
const SHORTEST: Duration = Duration::from_secs(5);

pub(crate) fn change() -> Result<()> {
    churn::run(
        "np-churn",
        ChurnedKind::OfNamespace,
        PAUSES,
        SHORTEST.max(test_length::duration() / 4),
    )?
    .check(1)
}
