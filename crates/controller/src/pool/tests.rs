//! Tests of the pool reconciler.
