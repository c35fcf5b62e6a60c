//! The run directory, which contains the state file, its lock and the agent's socket.

/// The default run directory of both programs. It is a tmpfs on every real node: a reboot ends
/// every pod, and the records with it.
pub const DEFAULT: &str = "/run/denizen";

/// File name of the state file in the run directory.
pub const STATE_FILE: &str = "pods.json";

/// File name of the lock that a writer of the state file holds. It is never removed.
pub const LOCK_FILE: &str = "pods.json.lock";

/// File name of the agent's socket in the run directory.
pub const SOCKET: &str = "agent.sock";

/// File name of the socket of an agent that starts, until it takes [`SOCKET`]'s place.
pub const NEXT_SOCKET: &str = "agent.sock.next";

/// The largest state file that is read or written, in bytes: more than any node needs (an
/// attachment takes some 400), and little enough to read at once.
#[cfg(feature = "files")]
pub(crate) const MAX_STATE_SIZE: u64 = 64 << 20;
