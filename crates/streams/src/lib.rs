//! The streaming subresources of Pods (log, exec, attach and portforward) over SPDY and WebSocket.
//!
//! The embedded API server and the node's kubelet server both pass authorized requests to [`server::StreamServer`].
//! This crate does no authentication or authorization and does not know who calls. It reads the request, speaks the
//! client's streaming protocol, and passes plain byte streams to a [`backend::NodeBackend`].
//!
//! | module | does |
//! |---|---|
//! | [`backend`] | the [`NodeBackend`](backend::NodeBackend) trait and its data types |
//! | [`server`] | handles a request for a stored Pod and owns the upgraded connections |
//! | [`request`] | parses query parameters and chooses the container, as Kubernetes does |
//! | [`upgrade`] | parses the client's upgrade offer (WebSocket or SPDY) and builds the `101` response |
//! | [`body`] | the body type of responses |
//! | [`spdy`] | SPDY/3.1 framing |
//! | [`websocket`] | WebSocket messages as channels, or as a tunnel for SPDY |
//! | [`remotecommand`] | the streams of one exec or attach, independent of the transport |
//! | [`process`] | copies bytes between those streams and a process of the node |
//! | [`portforward`] | copies bytes between forwarded connections and ports of a Pod |

pub mod backend;
pub mod body;
/// Entry points for `make fuzz`, and for the test that repeats its corpora.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod portforward;
pub mod process;
pub mod remotecommand;
pub mod request;
pub mod server;
pub mod spdy;
pub mod upgrade;
pub mod websocket;

#[cfg(test)]
mod tests;
