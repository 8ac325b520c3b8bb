//! The router as its clients see it: real sockets on both sides, live Pods fed into the index by hand.

mod contract;
mod support;
