//! CRD types of both versions, conversion, conditions, keys, names and hashes. No IO, no async, no clock.
