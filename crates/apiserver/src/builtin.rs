//! What Kubernetes does to its own kinds on the way in: names, defaults, validation, immutability.

pub mod names;
