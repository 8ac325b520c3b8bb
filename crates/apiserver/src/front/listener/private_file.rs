//! Files that only their owner may read, replaced atomically.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::ListenerError;

/// Writes `contents` with mode 0600. Readers see the old file or the new one, never a partial one.
pub fn write(path: &Path, contents: &[u8]) -> Result<(), ListenerError> {
    let failed = |action| move |source| ListenerError::File { action, path: path.to_owned(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(failed("create the folder of"))?;
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", uuid::Uuid::new_v4().simple()));
    let temporary = Path::new(&temporary);
    let outcome = write_new(temporary, contents).and_then(|()| fs::rename(temporary, path)).and_then(|()| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(folder)?.sync_all()
    });
    if outcome.is_err() {
        // Best effort: the error of the write is reported, and the temporary file may not exist.
        let _ = fs::remove_file(temporary);
    }
    outcome.map_err(failed("write"))
}

fn write_new(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}
