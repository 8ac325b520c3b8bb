//! The life of a Pod once more, as an ordinary user without subordinate ids.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::fixture::is_root;

/// An id that owns nothing.
const NOBODY_ELSE: u32 = 54_321;

#[test]
fn pods_live_the_same_life_without_privilege() {
    if !is_root() {
        return;
    }
    // Cargo's folders may be closed to other users; a copy of the two programs is not.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let tests = folder.path().join("tests");
    let helper = folder.path().join("helper");
    std::fs::copy(std::env::current_exe().unwrap(), &tests).unwrap();
    let attempts = folder.path().join("attempts");
    std::fs::copy(env!("CARGO_BIN_EXE_agent-sandbox-node-helper"), &helper).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_escape-attempts"), &attempts).unwrap();
    let output = Command::new(&tests)
        .args(["lifecycle::", "escape::", "--test-threads", "2"])
        .env("NODE_HELPER", &helper)
        .env("NODE_ATTEMPTS", &attempts)
        .current_dir("/")
        .uid(NOBODY_ELSE)
        .gid(NOBODY_ELSE)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("test result: ok") && !text.contains(" 0 passed"), "{text}");
}
