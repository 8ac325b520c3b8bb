//! Results of set-up steps: an error carries the name of the step that failed, for the user.

use std::io;

/// The result of a named step of the set-up.
pub(crate) type StepResult<T> = Result<T, (&'static str, io::Error)>;

/// Adds the name of a step to an error.
pub(crate) trait StepExt<T> {
    fn step(self, name: &'static str) -> StepResult<T>;
}

impl<T, E: Into<io::Error>> StepExt<T> for Result<T, E> {
    fn step(self, name: &'static str) -> StepResult<T> {
        self.map_err(|error| (name, error.into()))
    }
}
