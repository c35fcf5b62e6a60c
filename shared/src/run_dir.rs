//! The run directory: where the state file, its lock and the agent's socket lie.

/// Where both programs look when nobody names another directory. A tmpfs on every real node: a
/// reboot ends every pod, and the records with it.
pub const DEFAULT: &str = "/run/denizen";

/// File name of the state file in the run directory.
pub const STATE_FILE: &str = "pods.json";

/// File name of the lock that a writer of the state file holds. It is never removed.
pub const LOCK_FILE: &str = "pods.json.lock";

/// File name of the agent's socket in the run directory.
pub const SOCKET: &str = "agent.sock";

/// The largest state file that is read or written, in bytes: more than any node needs (an attachment
/// takes some 400), and little enough to read at once.
pub(crate) const MAX_STATE_SIZE: u64 = 64 << 20;
