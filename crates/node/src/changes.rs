//! What a sandbox changed in a copy of a folder: overlayfs keeps the changes in an upper folder, the folder itself is the
//! lower one and is never written.
//!
//! [`layer`] compares an upper folder with its lower one, [`copy`] knows how a copy is stored, [`record`] what the lower
//! folder was like when the sandbox first saw it, [`conflicts`] what changed there since, [`risks`] which changes make
//! this machine run or follow something, and [`mod@apply`] writes changes into the real folder.

pub mod apply;
pub mod conflicts;
pub mod copy;
mod entry;
pub mod layer;
pub mod record;
pub mod risks;
mod tree;

pub use apply::{Applied, ApplyError, apply};
pub use conflicts::{Conflict, Moved};
pub use copy::{Copy, CopyInfo};
pub use entry::{Entry, Kind};
pub use layer::{Change, Diff, Marks, What};
pub use record::Record;
pub use risks::Risk;
pub use tree::Tree;
