//! The limit of open files.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

use denizen_text::describe;

/// Raises the limit as far as any process may. Many systems start with 1,024, for programs that
/// cannot handle more. 750 ADDs that wait for their pods' rules at once, with a few hundred
/// connections to the health addresses, need more.
pub fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        warn!(error = describe(&error), "cannot raise the limit of open files");
    }
}
