//! Passes the committed corpora to fuzz targets. Included by the tests of the modules `fuzzing`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use super::Target;

/// Runs every target with every file of its corpus. A target without a corpus fails.
pub(crate) fn replay(targets: &[(&str, Target)]) {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in targets {
        let folder = corpora.join(name);
        let files = std::fs::read_dir(&folder).expect("every fuzz target has a folder in fuzz/corpus");
        let mut count = 0;
        for file in files {
            let path = file.expect("a file of the corpus").path();
            let input = std::fs::read(&path).expect("a readable file of the corpus");
            count += 1;
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&input))) {
                eprintln!("fuzz target {name} fails with {}", path.display());
                resume_unwind(panic);
            }
        }
        assert!(count > 0, "fuzz target {name} has no corpus");
    }
}
