//! Writes the CRDs as YAML: `render_crds <deploy/crds>`.

use std::path::Path;

fn main() -> anyhow::Result<()> {
    let folder = std::env::args().nth(1).ok_or_else(|| anyhow::anyhow!("usage: render_crds <folder>"))?;
    std::fs::create_dir_all(&folder)?;
    for crd in agent_sandbox_api::crd::crds() {
        let name = crd["metadata"]["name"].as_str().ok_or_else(|| anyhow::anyhow!("a CRD without a name"))?;
        let text = format!("# Rendered by `make manifests`; do not edit.\n---\n{}", serde_saphyr::to_string(&crd)?);
        std::fs::write(Path::new(&folder).join(format!("{name}.yaml")), text)?;
    }
    Ok(())
}
