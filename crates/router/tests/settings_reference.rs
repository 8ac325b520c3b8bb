//! Keeps the generated reference of the router's settings current. `AGENT_SANDBOX_GENERATE=1` writes it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fmt::Write;

use agent_sandbox_router::settings::{Kind, OTLP_ENDPOINT, OTLP_METRICS_ENDPOINT, OTLP_TRACES_ENDPOINT, SETTINGS};

fn render() -> String {
    let mut page = String::from(
        "# Router settings\n\nGenerated from `crates/router/src/config/settings.rs`; do not edit.\n\n\
         Every setting is a flag (`--name value`, `--name=value`) and a key of the YAML file given with `--config`; some are \
         environment variables too. Command line beats file beats environment beats default. Mistakes are reported all at \
         once and end the process with status 2.\n\n| Setting | Default | Environment | Meaning |\n|---|---|---|---|\n",
    );
    for setting in SETTINGS {
        let switch = if setting.kind == Kind::Switch { " (switch)" } else { "" };
        let default = if setting.default.is_empty() { "–".to_owned() } else { format!("`{}`", setting.default) };
        let env = setting.env.map_or("–".to_owned(), |env| format!("`{env}`"));
        writeln!(page, "| `--{}`{switch} | {default} | {env} | {} |", setting.name, setting.help).unwrap();
    }
    writeln!(
        page,
        "\n`{OTLP_ENDPOINT}`, `{OTLP_TRACES_ENDPOINT}` and `{OTLP_METRICS_ENDPOINT}` switch the export of spans and metrics \
         on, unless the flags say otherwise (OTLP over gRPC, `http://` only)."
    )
    .unwrap();
    page
}

#[test]
fn the_reference_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/router-settings.md");
    if std::env::var_os("AGENT_SANDBOX_GENERATE").is_some() {
        std::fs::write(path, render()).unwrap();
    }
    let current = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(current, render(), "run this test with AGENT_SANDBOX_GENERATE=1");
}
