//! The tree's `deploy/crds` is what the crate renders.

use std::path::Path;

use serde_json::Value;

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds")
}

#[test]
fn deploy_crds_match_the_rendered_types() {
    let crds = agent_sandbox_api::crd::crds();
    for crd in &crds {
        let name = crd["metadata"]["name"].as_str().expect("name");
        let text = std::fs::read_to_string(folder().join(format!("{name}.yaml")))
            .expect("deploy/crds is rendered: run `make manifests`");
        let tree: Value = serde_saphyr::from_str(&text).expect("valid YAML");
        assert!(tree == *crd, "deploy/crds/{name}.yaml differs from the types: run `make manifests`");
    }
    let files = std::fs::read_dir(folder()).expect("folder").count();
    assert_eq!(files, crds.len(), "deploy/crds holds a file that is not rendered");
}

/// A client-side `kubectl apply` stores the whole object as JSON in one annotation, which holds 256 KiB.
#[test]
fn definitions_fit_into_the_annotation_of_a_client_side_apply() {
    for crd in agent_sandbox_api::crd::crds() {
        let size = crd.to_string().len();
        assert!(size < 250 * 1024, "{} has {size} bytes", crd["metadata"]["name"]);
    }
}
