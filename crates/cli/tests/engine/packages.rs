//! Packages in the image `host`: pip installs into an environment of the sandbox's own, also where the distribution
//! forbids it for its own Python (PEP 668); npm installs below the home folder.

use crate::fixture::Engine;

/// Writes a wheel, with a module and a program, as any build tool would.
const WHEEL: &str = r#"
import zipfile
with zipfile.ZipFile("demo_pkg-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("demo_pkg.py", "def main():\n    print('from the wheel')\n")
    info = "demo_pkg-1.0.dist-info"
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\ndemo-program = demo_pkg:main\n")
    wheel.writestr(f"{info}/RECORD", "")
"#;

#[test]
fn pip_installs_into_the_sandbox_alone() {
    let Some(engine) = Engine::start_with(&["--warm", "0"]) else { return };
    engine.ok(&["create", "box"]);
    let python = engine.ok(&["exec", "box", "--", "sh", "-c", "command -v python3"]);
    if python != "/home/user/.venv/bin/python3\n" {
        eprintln!("SKIPPED: this host's Python is not below /usr: {python}");
        return;
    }
    engine.ok(&["exec", "box", "--", "python3", "-c", WHEEL]);
    let pip = ["exec", "box", "--", "pip", "install", "--no-index", "./demo_pkg-1.0-py3-none-any.whl"];
    let said = engine.ok(&pip);
    assert!(said.contains("Successfully installed demo-pkg-1.0"), "{said}");
    assert_eq!(engine.ok(&["exec", "box", "demo-program"]), "from the wheel\n");
    assert_eq!(
        engine.ok(&["exec", "box", "--", "python3", "-c", "import demo_pkg; demo_pkg.main()"]),
        "from the wheel\n"
    );
    engine.ok(&["suspend", "box"]);
    engine.ok(&["resume", "box"]);
    assert_eq!(engine.ok(&["exec", "box", "demo-program"]), "from the wheel\n", "it is in the writable layer");
    engine.ok(&["create", "other"]);
    engine.fails(&["exec", "other", "--", "python3", "-c", "import demo_pkg"]);
    engine.fails(&["exec", "other", "demo-program"]);
    engine.ok(&["exec", "box", "--", "sh", "-c", "pip uninstall -y demo-pkg && ! command -v demo-program"]);
}

#[test]
fn npm_installs_programs_below_the_home_folder() {
    let Some(engine) = Engine::start_with(&["--warm", "0"]) else { return };
    engine.ok(&["create", "box"]);
    if !engine.run(&["exec", "box", "npm", "--version"]).status.success() {
        eprintln!("SKIPPED: this host has no npm that a sandbox can run");
        return;
    }
    let package = r#"mkdir -p tool && cd tool &&
        echo '{"name": "tool", "version": "1.0.0", "bin": {"npm-tool": "main.js"}}' > package.json &&
        printf '#!/usr/bin/env node\nconsole.log("from npm")\n' > main.js && chmod +x main.js &&
        npm pack --silent && cd .. && npm install --global --offline --no-audit --no-fund ./tool/tool-1.0.0.tgz"#;
    engine.ok(&["exec", "box", "--", "sh", "-c", package]);
    assert_eq!(engine.ok(&["exec", "box", "npm-tool"]), "from npm\n");
}
