//! `image`: with a running engine and without, and `run` with those images.

use crate::{
    archive::Image,
    fixture::{Engine, PROGRAM},
};
use std::process::{Command, Stdio};

#[test]
fn an_imported_image_is_listed_run_kept_while_needed_and_removed() {
    let Some(engine) = Engine::start() else { return };
    let file = engine.folder.path().join("image.tar");
    Image::with_shell().save(&file, "tiny:v1");
    assert_eq!(engine.ok(&["image", "import", file.to_str().unwrap()]), "image tiny:v1 is here\n");
    let list = engine.ok(&["image", "list"]);
    assert!(list.starts_with("NAME") && list.contains("docker.io/library/tiny:v1   sha256:"), "{list}");
    let listed: serde_json::Value = serde_json::from_str(&engine.ok(&["image", "list", "-o", "json"])).unwrap();
    assert!(listed[0]["size"].as_u64().unwrap() > 100_000, "{listed}");

    engine.ok(&["create", "box", "--image", "tiny:v1", "--", "/bin/sleep", "1000"]);
    assert_eq!(engine.ok(&["exec", "box", "--", "cat", "/data/here"]), "in the image\n");
    let (_, _, said) = engine.fails(&["image", "remove", "tiny:v1"]);
    assert!(said.contains("a sandbox, running or suspended, needs image tiny:v1"), "{said}");
    engine.ok(&["suspend", "box"]);
    let (_, _, said) = engine.fails(&["image", "rm", "tiny:v1"]);
    assert!(said.contains("needs image tiny:v1"), "{said}");
    // A second name of the image does not help: the sandbox was created with the first.
    engine.ok(&["image", "import", file.to_str().unwrap(), "--name", "tiny:v2"]);
    let (_, _, said) = engine.fails(&["image", "rm", "tiny:v1"]);
    assert!(said.contains("needs image tiny:v1"), "{said}");
    engine.ok(&["resume", "box"]);
    assert_eq!(engine.ok(&["exec", "box", "--", "cat", "/data/here"]), "in the image\n");

    // `run` has an engine of its own and the same images.
    assert_eq!(engine.ok(&["run", "--image", "tiny:v1", "--", "cat", "/data/here"]), "in the image\n");
    engine.ok(&["delete", "box"]);
    crate::fixture::eventually("the deleted sandbox lets go of its image", || {
        engine.run(&["image", "remove", "tiny:v1"]).status.success()
    });
    engine.ok(&["image", "remove", "tiny:v2"]);
    assert_eq!(engine.ok(&["image", "list", "-o", "name"]), "");
    let (_, _, said) = engine.fails(&["image", "remove", "tiny:v1"]);
    assert!(said.contains("there is no image tiny:v1 here"), "{said}");
}

#[test]
fn an_image_is_pulled_without_an_engine_and_found_by_it_later() {
    let Some(engine) = Engine::stopped() else { return };
    let name = format!("127.0.0.1:{}/team/tiny:v1", Image::with_shell().serve());
    let said = engine.ok(&["image", "pull", &name]);
    assert!(said.starts_with(&format!("image {name} is here, sha256:")), "{said}");
    assert_eq!(engine.ok(&["image", "ls", "-o", "name"]), format!("{name}\n"));
    assert_eq!(engine.ok(&["run", "--image", &name, "--", "cat", "/data/here"]), "in the image\n");
    engine.up();
    assert_eq!(engine.ok(&["image", "list", "-o", "name"]), format!("{name}\n"));
    let (_, _, said) = engine.fails(&["image", "pull", "127.0.0.1:1/none:v1"]);
    assert!(said.contains("cannot pull 127.0.0.1:1/none:v1"), "{said}");
}

#[test]
fn an_archive_comes_through_standard_input_and_may_be_renamed() {
    let Some(engine) = Engine::stopped() else { return };
    let file = engine.folder.path().join("image.tar");
    Image::with_shell().save(&file, "tiny:v1");
    let mut command = Command::new(PROGRAM);
    command.arg("--data-dir").arg(engine.data()).args(["image", "import", "-", "--name", "mine:2", "-o", "json"]);
    let output = command.stdin(Stdio::from(std::fs::File::open(&file).unwrap())).output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["names"], serde_json::json!(["mine:2"]), "{output:?}");
}

#[test]
fn aliases_are_the_users_to_change_and_to_empty() {
    let Some(engine) = Engine::start() else { return };
    assert_eq!(engine.ok(&["image", "alias"]), "PATTERN                  IMAGE\npython-runtime-sandbox   host\n");
    engine.ok(&["image", "alias", "python", "host"]);
    engine.ok(&["create", "box", "--image", "python:3.11", "--", "sleep", "1000"]);
    assert_eq!(engine.ok(&["exec", "box", "--", "python3", "-c", "print(6 * 7)"]), "42\n");
    engine.ok(&["image", "alias", "--remove", "python"]);
    let (_, _, said) = engine.fails(&["image", "alias", "--remove", "python"]);
    assert!(said.contains("no alias has the pattern `python`"), "{said}");
    engine.ok(&["image", "alias", "--clear"]);
    engine.ok(&["down"]);
    assert_eq!(engine.ok(&["image", "alias", "-o", "json"]), "[]\n", "the change outlives the engine");
}
