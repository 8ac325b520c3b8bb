//! Tests of the claim reconciler.
