//! The open connections of a listener: how many there may be, which one gives way to a new one, and how long a client
//! has until its first authenticated request. It accepts and serves nothing itself.
//!
//! | module | does |
//! |---|---|
//! | `table` | the table of connections, and the decision which one is closed |
//! | `peer` | who is at the other end: the user id of a local process, else the address |

mod peer;
mod table;

pub use table::{AUTHENTICATION_TIMEOUT, Connection, Connections};
