//! Properties of the adoption machine.
