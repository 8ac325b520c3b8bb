//! The streaming subresources of Pods: log, exec, attach and portforward.
//!
//! | module | does |
//! |---|---|
//! | [`request`] | reads query parameters and chooses the container, as Kubernetes does |
//! | [`upgrade`] | reads the client's offer (WebSocket or SPDY) and writes the `101` answer |
//! | [`spdy`] | SPDY/3.1 |
//! | [`websocket`] | WebSocket messages as channels, or as a tunnel for SPDY |
//! | [`remote`] | one command's streams, whichever protocol carries them |
//! | [`process`] | moves bytes between a [`remote`] and the node's process |
//! | [`portforward`] | moves bytes between forwarded connections and the node |
//! | [`handler`] | ties a request, a Pod and the node together |

pub mod handler;
pub mod portforward;
pub mod process;
pub mod remote;
pub mod request;
pub mod spdy;
pub mod upgrade;
pub mod websocket;

#[cfg(test)]
mod tests;
