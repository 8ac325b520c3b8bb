//! Fixtures, a fake clock, a simulated kubelet and clusters for tests. Nothing in production depends on it.
