//! `--volume SOURCE:TARGET[:ro]`.

use anyhow::{Context as _, Result, bail};

/// Source (absolute, existing), target, read-only.
pub(crate) fn parse(text: &str) -> Result<(String, String, bool)> {
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, read_only) = match parts.as_slice() {
        [source, target] => (*source, *target, false),
        [source, target, "ro"] => (*source, *target, true),
        [source, target, "rw"] => (*source, *target, false),
        _ => bail!("`{text}` is not SOURCE:TARGET or SOURCE:TARGET:ro"),
    };
    if !target.starts_with('/') {
        bail!("`{text}`: the target must be an absolute path inside the sandbox");
    }
    let source = std::fs::canonicalize(source).with_context(|| format!("cannot show `{source}` in the sandbox"))?;
    let Some(source) = source.to_str() else { bail!("`{text}`: the source's path is not UTF-8") };
    Ok((source.to_owned(), target.to_owned(), read_only))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_a_source_that_exists_and_an_absolute_target() {
        assert_eq!(parse("/usr:/mnt:ro").unwrap(), ("/usr".into(), "/mnt".into(), true));
        assert!(!parse("/usr:/mnt").unwrap().2);
        for wrong in ["/usr", "/usr:mnt", "/usr:/mnt:maybe", "/no/such/folder:/mnt", "", ":"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
