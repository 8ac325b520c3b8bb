//! File operations below a root directory: nothing here reads, writes, lists or reveals what lies outside it.

pub mod archive;
mod checks;
pub mod list;
pub mod owned;
pub mod root;
pub mod search;
pub mod tree;
mod walk;
pub mod write;

use rustix::io::Errno;

pub(crate) use checks::{is_kernel_file_system, require_regular, require_single_name};
pub use root::{Follow, Located, Root};

/// Why a file operation below a root failed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("path leaves its root")]
    Escapes,
    #[error("refused: {0}")]
    Refused(&'static str),
    #[error("{}", crate::core::errno_text(*.0))]
    Os(Errno),
}

impl FileError {
    /// The target, or a directory on the path to it, does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Os(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP))
    }

    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Os(errno) => Some(*errno),
            Self::Escapes | Self::Refused(_) => None,
        }
    }
}

impl From<Errno> for FileError {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

impl From<std::io::Error> for FileError {
    fn from(error: std::io::Error) -> Self {
        Self::Os(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

impl From<crate::core::paths::PathError> for FileError {
    fn from(error: crate::core::paths::PathError) -> Self {
        match error {
            crate::core::paths::PathError::TooLong => Self::Os(Errno::NAMETOOLONG),
            crate::core::paths::PathError::AboveRoot | crate::core::paths::PathError::Nul => Self::Escapes,
        }
    }
}

/// Runs blocking file work on the runtime's pool of blocking threads, whose size is bounded, so that the event loop
/// goes on.
pub async fn blocking<T, F>(work: F) -> Result<T, FileError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, FileError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(FileError::Os(Errno::CANCELED)),
    }
}
