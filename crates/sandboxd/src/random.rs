//! Unpredictable numbers from the kernel, for names and ids.

use rustix::rand::{GetRandomFlags, getrandom};

/// Sixty-four unpredictable bits.
pub(crate) fn number() -> u64 {
    let mut bytes = [0_u8; 8];
    // A kernel that has run a process has seeded its pool; a short read of eight bytes does not exist.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
