//! Random numbers from the kernel, for names and ids.

use rustix::rand::{GetRandomFlags, getrandom};

/// 64 random bits.
pub(crate) fn number() -> u64 {
    let mut bytes = [0_u8; 8];
    // The kernel's pool is seeded before the first process runs, and reads of up to 256 bytes are never short.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
