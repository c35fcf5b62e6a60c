//! Who sends packets and connections, and who answers and remembers them.

pub mod flood;
pub mod frame;
pub mod http;
pub mod load;
pub mod long_connection;
pub mod probe;
pub mod recorder;
pub mod sctp;
pub mod server;
pub mod spray;
pub mod syn;
