//! Snapshots of the help text of every command.

#![expect(clippy::unwrap_used, reason = "a test fails at the first error")]

use std::process::Command;

fn help(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_agent-sandbox"))
        .args(words)
        .arg("--help")
        .env("COLUMNS", "100")
        .env_remove("AGENT_SANDBOX_DATA_DIR")
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

macro_rules! help_pages {
    ($($name:ident: $words:expr;)*) => {
        $(
            #[test]
            fn $name() {
                insta::assert_snapshot!(help(&$words));
            }
        )*
    };
}

help_pages! {
    top: [];
    run: ["run"];
    up: ["up"];
    down: ["down"];
    status: ["status"];
    usage: ["top"];
    doctor: ["doctor"];
    create: ["create"];
    claim: ["claim"];
    list: ["list"];
    get: ["get"];
    exec: ["exec"];
    shell: ["shell"];
    cp: ["cp"];
    logs: ["logs"];
    history: ["history"];
    suspend: ["suspend"];
    keep_alive: ["keep-alive"];
    resume: ["resume"];
    delete: ["delete"];
    apply: ["apply"];
    changes: ["changes"];
    changes_list: ["changes", "list"];
    changes_diff: ["changes", "diff"];
    changes_apply: ["changes", "apply"];
    changes_discard: ["changes", "discard"];
    url: ["url"];
    url_list: ["url", "list"];
    url_revoke: ["url", "revoke"];
    pool: ["pool"];
    pool_create: ["pool", "create"];
    template: ["template"];
    kubeconfig: ["kubeconfig"];
    mcp: ["mcp"];
    audit: ["audit"];
    egress: ["egress"];
    egress_log: ["egress", "log"];
    egress_test: ["egress", "test"];
    port_forward: ["port-forward"];
    token_mint: ["token", "mint"];
    image: ["image"];
    image_pull: ["image", "pull"];
    image_import: ["image", "import"];
    image_list: ["image", "list"];
    image_remove: ["image", "remove"];
    image_alias: ["image", "alias"];
    pool_list: ["pool", "list"];
    pool_scale: ["pool", "scale"];
    pool_delete: ["pool", "delete"];
    template_create: ["template", "create"];
    template_list: ["template", "list"];
    template_delete: ["template", "delete"];
    token: ["token"];
    token_list: ["token", "list"];
    token_revoke: ["token", "revoke"];
    token_rotate: ["token", "rotate"];
    token_e2b: ["token", "e2b"];
    node: ["node"];
    router: ["router"];
    controller: ["controller"];
    version: ["version"];
    completion: ["completion"];
}
