//! Finds the tests that cite behaviour ids. An id counts only inside a test: in the comment above it, its name or its
//! body.

use anyhow::Result;
use regex::{Captures, Regex};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// A test, by file (relative to the repository) and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Citation {
    pub(crate) file: String,
    pub(crate) name: String,
}

pub(crate) fn is_id(word: &str) -> bool {
    let mut parts = word.splitn(2, '-');
    matches!(parts.next(), Some("S" | "X" | "D" | "E"))
        && parts.next().is_some_and(|number| number.len() == 3 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Every cited id with the tests that cite it.
pub(crate) fn find(root: &Path) -> Result<BTreeMap<String, BTreeSet<Citation>>> {
    let mut found: BTreeMap<String, BTreeSet<Citation>> = BTreeMap::new();
    let id = Regex::new(r"\b([SXDE])-(\d{3})(?: to ([SXDE])-(\d{3}))?\b")?;
    let mut folders = vec![root.join("crates"), root.join("tests"), root.join("sdk")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let tests = match extension {
                "rs" => rust_tests(&fs::read_to_string(&path)?),
                "py" => python_tests(&fs::read_to_string(&path)?),
                "go" if file.ends_with("_test.go") => go_tests(&fs::read_to_string(&path)?),
                _ => continue,
            };
            for (name, text) in tests {
                let in_text = id.captures_iter(&text).flat_map(|cited| ids_of(&cited));
                for cited in in_text.chain(ids_in_name(&name)) {
                    let citation = Citation { file: file.clone(), name: name.clone() };
                    found.entry(cited).or_default().insert(citation);
                }
            }
        }
    }
    Ok(found)
}

/// One id, or all ids of a range. The caller reports numbers inside a range that are not behaviour ids.
fn ids_of(cited: &Captures<'_>) -> Vec<String> {
    let number = |group: usize| cited.get(group).and_then(|digits| digits.as_str().parse::<u16>().ok());
    let letter = &cited[1];
    let first = number(2).unwrap_or_default();
    let last = if cited.get(3).is_some_and(|other| other.as_str() == letter) { number(4) } else { None };
    (first..=last.unwrap_or(first)).map(|number| format!("{letter}-{number:03}")).collect()
}

/// Ids that a test carries in its own name, as in `x_050_labels_reach_the_pod`.
fn ids_in_name(name: &str) -> Vec<String> {
    let words: Vec<&str> = name.split('_').collect();
    let pairs = words.windows(2).map(|pair| format!("{}-{}", pair[0].to_ascii_uppercase(), pair[1]));
    pairs.filter(|pair| is_id(pair)).collect()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The tests of a Rust file: comments and attributes above `fn`, and the body up to the closing brace of the same
/// indent.
fn rust_tests(source: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = source.lines().collect();
    let mut tests = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let is_attribute = trimmed.starts_with("#[test") || trimmed.starts_with("#[tokio::test");
        if !is_attribute {
            continue;
        }
        let mut start = at;
        while start > 0 && starts_comment_or_attribute(lines[start - 1]) {
            start -= 1;
        }
        let Some(head) = (at..lines.len()).find(|index| lines[*index].trim_start().contains("fn ")) else { continue };
        let name = lines[head].split("fn ").nth(1).and_then(|rest| rest.split(['(', '<']).next()).unwrap_or_default();
        let margin = indent(lines[head]);
        let close = |candidate: &str| indent(candidate) == margin && candidate.trim_start().starts_with('}');
        let end = (head..lines.len())
            .find(|index| close(lines[*index]) || (*index == head && lines[*index].trim_end().ends_with('}')))
            .unwrap_or(lines.len() - 1);
        tests.push((name.to_owned(), lines[start..=end].join("\n")));
    }
    tests
}

fn starts_comment_or_attribute(line: &str) -> bool {
    let trimmed = line.trim_start();
    trimmed.starts_with("//") || trimmed.starts_with("#[")
}

/// The tests of a Python file: comments above `def test_…` and the indented body.
fn python_tests(source: &str) -> Vec<(String, String)> {
    indented_tests(
        source,
        |line| line.strip_prefix("async ").unwrap_or(line).strip_prefix("def test_"),
        "test_",
        |trimmed| trimmed.starts_with('#') || trimmed.starts_with('@'),
    )
}

/// The tests of a Go file: comments above `func Test…` and the indented body.
fn go_tests(source: &str) -> Vec<(String, String)> {
    indented_tests(source, |line| line.strip_prefix("func Test"), "Test", |trimmed| trimmed.starts_with("//"))
}

fn indented_tests(
    source: &str,
    head: impl Fn(&str) -> Option<&str>,
    prefix: &str,
    belongs_above: impl Fn(&str) -> bool,
) -> Vec<(String, String)> {
    let lines: Vec<&str> = source.lines().collect();
    let mut tests = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(rest) = head(line.trim_start()) else { continue };
        let name = format!("{prefix}{}", rest.split('(').next().unwrap_or_default());
        let margin = indent(line);
        let mut start = at;
        while start > 0 && belongs_above(lines[start - 1].trim_start()) {
            start -= 1;
        }
        let end = (at + 1..lines.len())
            .find(|index| !lines[*index].trim().is_empty() && indent(lines[*index]) <= margin)
            .unwrap_or(lines.len());
        tests.push((name, lines[start..end].join("\n")));
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    // The examples spell ids with `#` so that this file cites nothing itself.
    fn source(text: &str) -> String {
        text.replace('#', "-").replace("~", "#")
    }

    #[test]
    fn an_id_counts_only_inside_a_test() {
        let text = source(
            "/// S#001 in production code\nfn plain() {}\n\n/// Shows S#002.\n~[test]\nfn shown() {\n    // and S#003\n}\n// S#004\n",
        );
        let tests = rust_tests(&text);
        assert_eq!(tests.len(), 1);
        assert_eq!(tests[0].0, "shown");
        assert!(tests[0].1.contains("S-002") && tests[0].1.contains("S-003"));
        assert!(!tests[0].1.contains("S-001") && !tests[0].1.contains("S-004"));
    }

    #[test]
    fn python_and_go_tests_are_found_by_name() {
        let python = source("~ D#001\ndef test_one():\n    pass\n\ndef helper():\n    'D#002'\n");
        let tests = python_tests(&python);
        assert_eq!((tests.len(), tests[0].0.as_str()), (1, "test_one"));
        assert!(tests[0].1.contains("D-001") && !tests[0].1.contains("D-002"));
        let go = source("// D#003\nfunc TestTwo(t *testing.T) {\n\t_ = 1\n}\n");
        assert_eq!(go_tests(&go)[0].0, "TestTwo");
    }

    #[test]
    fn a_range_cites_all_between() {
        let id = Regex::new(r"\b([SXDE])-(\d{3})(?: to ([SXDE])-(\d{3}))?\b").unwrap();
        let text = source("S#010 to S#012, X#001");
        let cited: Vec<String> = id.captures_iter(&text).flat_map(|cited| ids_of(&cited)).collect();
        assert_eq!(cited, ["S#010", "S#011", "S#012", "X#001"].map(source));
    }

    #[test]
    fn a_name_may_carry_ids() {
        assert_eq!(ids_in_name("x_050_x_051_labels_reach_the_pod"), ["X#050", "X#051"].map(source));
        assert!(ids_in_name("an_x_50_plane_is_no_id").is_empty());
    }

    #[test]
    fn ids_have_a_letter_and_three_digits() {
        assert!(is_id(&source("S#031")));
        assert!(!is_id(&source("S#31")) && !is_id(&source("Q#031")) && !is_id("S031"));
    }
}
