//! The file system as seen from below a root: nothing here reads, writes, lists or reveals what lies outside.

pub mod archive;
pub mod list;
pub mod read;
mod refuse;
pub mod root;
pub mod search;
pub mod tree;
mod walk;
pub mod watch;
pub mod write;

use rustix::io::Errno;

pub(crate) use refuse::{require_regular, require_single_name};
pub use root::{Follow, Located, Root};

/// Why a file operation below a root failed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("path leaves its root")]
    Escapes,
    #[error("refused: {0}")]
    Refused(&'static str),
    #[error("{}", errno_text(*.0))]
    Os(Errno),
}

impl FileError {
    /// The target or a directory on the way to it is not there.
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

impl From<crate::paths::PathError> for FileError {
    fn from(error: crate::paths::PathError) -> Self {
        match error {
            crate::paths::PathError::TooLong => Self::Os(Errno::NAMETOOLONG),
            crate::paths::PathError::Climbs | crate::paths::PathError::Nul => Self::Escapes,
        }
    }
}

/// `[Errno 21] Is a directory`: the form users of the Python runtime know.
pub fn errno_text(errno: Errno) -> String {
    let described = std::io::Error::from_raw_os_error(errno.raw_os_error()).to_string();
    let text = described.split(" (os error").next().unwrap_or_default();
    format!("[Errno {}] {text}", errno.raw_os_error())
}

/// Runs blocking file work away from the event loop. The pool is bounded by the runtime's configuration.
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
