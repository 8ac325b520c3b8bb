//! The paths of the corpus: traversal, forbidden files, encodings.

use std::path::Path;

use crate::client::encode;

/// Content of every sentinel file.
pub(crate) const MARKER: &str = "SENTINEL-7f3a";

/// One path, as sent in a URL and as decoded once.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) raw: String,
    pub(crate) decoded: String,
}

/// Paths before any encoding.
fn paths(outside: &Path) -> Vec<String> {
    let outside = outside.display().to_string();
    let long_name = "n".repeat(300);
    let long_path = "d/".repeat(2500);
    let mut paths: Vec<String> = [
        "..",
        "../",
        "../..",
        "../sentinel",
        "../../sentinel",
        "../../../sentinel",
        "../../../../sentinel",
        "../../../../../../../../../../etc/passwd",
        "./../../../sentinel",
        "traps/../../../../sentinel",
        "traps/in.txt/../../../../../sentinel",
        "missing/../../../../sentinel",
        "/..",
        "/../sentinel",
        "//../sentinel",
        "/./../sentinel",
        "/traps/../../sentinel",
        "traps/abs-file",
        "traps/abs-dir",
        "traps/abs-dir/",
        "traps/abs-dir/sentinel",
        "traps/abs-dir/outside-only",
        "traps/abs-dir/outside-only/inner",
        "traps/abs-dir/new",
        "traps/abs-dir/new/deeper",
        "traps/abs-dir/sandbox/../sentinel",
        "traps/rel-file",
        "traps/rel-dir",
        "traps/rel-dir/sentinel",
        "traps/rel-dir/outside-only/inner",
        "traps/up/up",
        "traps/up/../../../sentinel",
        "traps/chain",
        "traps/chain/sentinel",
        "traps/chain/chain/sentinel",
        "traps/deep/er/link",
        "traps/deep/er/link/sentinel",
        "traps/loop",
        "traps/loop/x",
        "traps/magic-root",
        "traps/magic-root/etc/passwd",
        "traps/magic-cwd/sentinel",
        "traps/descriptors/0",
        "traps/descriptors/9",
        "traps/device-link",
        "traps/device",
        "traps/fifo",
        "traps/fifo/x",
        "traps/socket",
        "traps/hard",
        "....//....//sentinel",
        "..;/sentinel",
        "..\\..\\sentinel",
        "%2e%2e/%2e%2e/sentinel",
        "%252e%252e%252fsentinel",
        "\u{ff0e}\u{ff0e}/sentinel",
        "..\u{2215}sentinel",
        "~/../sentinel",
        "~root/.bashrc",
        "file:///etc/passwd",
        "$HOME/sentinel",
        "in.txt\0/../../sentinel",
        "\0",
        "traps/abs-file\0.txt",
        "traps/\n../sentinel",
        ". ./sentinel",
        ".. /sentinel",
        "...",
        "-rf",
        "*",
        "traps/*",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.push(format!("{outside}/sentinel"));
    paths.push(format!("{}/sentinel", outside.trim_start_matches('/')));
    paths.push(format!("{outside}/sandbox/../sentinel"));
    paths.push(format!("{outside}/sandbox/home/user/../../../sentinel"));
    paths.push(format!("traps/magic-root{outside}/sentinel"));
    paths.push(format!("traps/{long_name}"));
    paths.push(format!("{long_path}../sentinel"));
    paths
}

/// Every path in every encoding. A path that a URL cannot carry literally is sent encoded only.
pub(crate) fn cases(outside: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    for path in paths(outside) {
        let everything = encode(&path);
        let slashes = path.replace('%', "%25").replace('/', "%2F");
        let dots = path.replace('%', "%25").replace('.', "%2e");
        let literal =
            |text: &String| text.bytes().all(|byte| byte.is_ascii_graphic() && !b"#?\"<>\\^`{|}".contains(&byte));
        cases.push(Case { raw: everything.clone(), decoded: path.clone() });
        for raw in [path.clone(), slashes, dots] {
            if literal(&raw) && !path.contains('%') {
                cases.push(Case { raw, decoded: path.clone() });
            }
        }
        // Encoded twice: an unusual name that stays inside.
        if path.len() < 200 {
            cases.push(Case { raw: encode(&everything), decoded: everything });
        }
    }
    cases
}
