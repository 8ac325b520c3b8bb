//! Pseudo-terminals: opening a pair and setting its window size.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
pub use rustix::termios::Winsize;

/// A window size in characters.
pub fn window_size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Opens a pseudo-terminal: the controlling side, and the side that becomes a command's standard streams.
pub(super) fn open(size: Winsize) -> Result<(OwnedFd, OwnedFd), Errno> {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&controller)?;
    unlockpt(&controller)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = match ioctl_tiocgptpeer(&controller, flags) {
        Ok(terminal) => terminal,
        // Kernels before 4.13 and some sandboxes have no TIOCGPTPEER: open the terminal by name.
        Err(_) => {
            let name = rustix::pty::ptsname(&controller, Vec::new())?;
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?
        }
    };
    if size.ws_col > 0 && size.ws_row > 0 {
        resize(&controller, size)?;
    }
    Ok((controller, terminal))
}

/// Changes the window size; the kernel sends SIGWINCH to the foreground process group.
pub(super) fn resize(controller: &OwnedFd, size: Winsize) -> Result<(), Errno> {
    rustix::termios::tcsetwinsize(controller, size)
}
