//! Empty: only the dependency features of this package matter. `make generate` keeps them.
