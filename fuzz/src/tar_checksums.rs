//! Tar archives as input of a fuzz target. Included by the modules `fuzzing` of several crates.

const BLOCK: usize = 512;

/// Corrects the checksum of every header, without which a changed archive would be refused at once.
pub(crate) fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let mut at = 0_usize;
    while let Some(block) = bytes.get_mut(at..at.saturating_add(BLOCK)) {
        at += BLOCK;
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let mut header = tar::Header::new_old();
        header.as_mut_bytes().copy_from_slice(block);
        let size = header.entry_size().unwrap_or(0);
        at = at.saturating_add(usize::try_from(size).unwrap_or(usize::MAX).div_ceil(BLOCK).saturating_mul(BLOCK));
    }
    bytes
}
