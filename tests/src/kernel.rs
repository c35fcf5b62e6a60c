//! What the kernel holds, read and written by programs that are not denizen's; guests with a kernel
//! of their own; and processes that are stopped at their system calls.

pub mod conntrack;
pub mod ctnetlink;
pub mod iptables;
pub mod ruleset;
pub mod system_calls;
pub mod table_owner;
pub mod vm;
