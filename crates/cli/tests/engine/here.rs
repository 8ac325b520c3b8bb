//! `run --here`, `create --here` and `changes`: a copy of a folder, and what becomes of the changes. As root and, where
//! the machine lets ordinary users make namespaces, as one.

use crate::fixture::{Engine, PROGRAM, can_run, eventually, is_root};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// A uid that owns no files.
const USER: u32 = 54_322;

/// A project, and a data folder outside it.
struct Project {
    folder: tempfile::TempDir,
    user: Option<u32>,
}

impl Project {
    /// `None`, with a message, where a sandbox cannot run so.
    fn new(user: Option<u32>) -> Option<Self> {
        if !can_run() || user.is_some() && !is_root() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let project = Self { folder, user };
        for name in ["repo/src", "repo/old", "home"] {
            fs::create_dir_all(project.at(name)).unwrap();
        }
        for (name, text) in [("repo/src/main", "one\ntwo\n"), ("repo/old/a", "a"), ("repo/readme", "read me\n")] {
            fs::write(project.at(name), text).unwrap();
        }
        project.give(project.folder.path());
        if user.is_some() && !project.run(&["--", "true"]).status.success() {
            eprintln!("SKIPPED: ordinary users cannot make namespaces here");
            return None;
        }
        Some(project)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    /// Gives a tree to the user.
    fn give(&self, path: &Path) {
        let Some(user) = self.user else { return };
        chown(path, Some(user), Some(user)).unwrap();
        if path.is_dir() && !path.is_symlink() {
            fs::read_dir(path).unwrap().for_each(|entry| self.give(&entry.unwrap().path()));
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = match self.user {
            None => Command::new(PROGRAM),
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).args(["--clear-groups", PROGRAM]);
                command
            }
        };
        command.arg("--data-dir").arg(self.at("data")).args(words).current_dir(self.at("repo"));
        command.env("HOME", self.at("home")).env_remove("KUBECONFIG").env_remove("AGENT_SANDBOX_TARGET");
        command.env_remove("XDG_DATA_HOME").env_remove("XDG_CACHE_HOME").env("TMPDIR", "/tmp").stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(&[&["run"], words].concat()).output().unwrap()
    }

    /// Standard output of a command that succeeds.
    fn ok(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Standard error of a command that fails.
    fn fails(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(!output.status.success(), "{words:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at("repo").join(name)).unwrap()
    }

    /// Names in the folder of copies that runs left.
    fn copies(&self) -> usize {
        fs::read_dir(self.at("data/copies")).map_or(0, Iterator::count)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const WORK: &str = "set -e; cat readme; printf 'one\\n2\\n' > src/main; echo new > src/new; rm -r old; mkdir -p .git/hooks; \
                    echo evil > .git/hooks/pre-commit; ln -s /etc out; pwd";

fn a_run_changes_a_copy(user: Option<u32>) {
    let Some(project) = Project::new(user) else { return };
    let output = project.run(&["--here", "--", "sh", "-c", WORK]);
    let (said, printed) = (text(&output.stderr), text(&output.stdout));
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(printed, format!("read me\n{}\n", project.at("repo").display()));
    assert!(said.contains("5 added, 1 changed, 2 deleted; 2 of them this machine would later run"), "{said}");
    assert_eq!((project.read("src/main").as_str(), project.at("repo/old/a").exists()), ("one\ntwo\n", true));
    assert!(!project.at("repo/src/new").exists() && !project.at("repo/.git").exists());

    let diff = project.ok(&["changes", "diff"]);
    assert!(diff.contains("--- a/src/main\n+++ b/src/main\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"), "{diff}");
    assert!(diff.contains("--- a/old/a\n+++ /dev/null\n"), "{diff}");
    let json: serde_json::Value = serde_json::from_str(&project.ok(&["changes", "--json"])).unwrap();
    let changes = json["folders"][0]["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 8, "{json}");
    let hook = changes.iter().find(|change| change["path"] == ".git/hooks/pre-commit").unwrap();
    assert_eq!((&hook["change"], &hook["risk"]), (&"added".into(), &"git runs or follows it".into()));

    let listed = project.ok(&["changes", "apply", "--dry-run"]);
    let (deleted, changed) = (listed.find("deleted  old/").unwrap(), listed.find("changed  src/main").unwrap());
    assert!(deleted < changed, "deletions come first: {listed}");
    assert!(project.at("repo/old").exists());
    project.ok(&["changes", "apply"]);
    assert_eq!((project.read("src/main").as_str(), project.read("src/new").as_str()), ("one\n2\n", "new\n"));
    assert!(!project.at("repo/old").exists());
    assert!(!project.at("repo/.git/hooks/pre-commit").exists() && !project.at("repo/out").is_symlink(), "left out");
    let owner = fs::metadata(project.at("repo/src/new")).unwrap().uid();
    assert_eq!(owner, fs::metadata(project.at("repo")).unwrap().uid());
    assert_eq!(project.copies(), 1, "two changes are left");
    project.ok(&["changes", "apply", "--risky"]);
    assert_eq!(project.read(".git/hooks/pre-commit"), "evil\n");
    assert_eq!(fs::read_link(project.at("repo/out")).unwrap(), Path::new("/etc"));
    assert_eq!(project.copies(), 0, "nothing is left to apply");
    assert!(project.fails(&["changes"]).contains("no sandbox has a copy of"));
}

#[test]
fn a_run_changes_a_copy_which_is_shown_and_applied_as_root() {
    a_run_changes_a_copy(None);
}

#[test]
fn a_run_changes_a_copy_which_is_shown_and_applied_as_an_ordinary_user() {
    a_run_changes_a_copy(Some(USER));
}

/// Root runs an agent in the folder of another user: what is applied belongs to that user.
#[test]
fn what_root_applies_belongs_to_the_owner_of_the_folder() {
    let Some(project) = Project::new(None).filter(|_| is_root()) else { return };
    let owned = Project { user: Some(USER), folder: project.folder };
    owned.give(&owned.at("repo"));
    let project = Project { user: None, ..owned };
    let output =
        project.run(&["--here", "--", "sh", "-c", "echo x >> src/main; echo y > src/new; stat -c %U readme src/new"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let users = text(&output.stdout);
    let mut users = users.lines();
    assert_eq!(users.next(), users.next(), "inside, both belong to the user that the command runs as");
    project.ok(&["changes", "apply"]);
    for name in ["src/main", "src/new"] {
        assert_eq!(fs::metadata(project.at("repo").join(name)).unwrap().uid(), USER, "{name}");
    }
}

/// What `changes diff` shows on a terminal, with variables that are given as a shell's assignments.
fn diff_on_terminal(project: &Project, variables: &str) -> String {
    let line = format!("{variables} {PROGRAM} --data-dir {} changes diff", project.at("data").display());
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(project.at("repo"));
    for (key, value) in project.command(&[]).get_envs() {
        match value {
            Some(value) => script.env(key, value),
            None => script.env_remove(key),
        };
    }
    script.env("TERM", "xterm").env_remove("NO_COLOR").env_remove("PAGER");
    let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Held open: when it is closed, `script` types an end-of-file character into the terminal.
    let typing = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(typing);
    text(&output.stdout).replace('\r', "")
}

#[test]
fn a_diff_on_a_terminal_has_colours_a_pager_and_no_escapes_of_the_sandbox() {
    let Some(project) = Project::new(None) else { return };
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("SKIPPED: util-linux's `script` is not here");
        return;
    }
    let output = project.run(&["--here", "--", "sh", "-c", "printf 'one\\n\\033[2Jtwo\\n' > src/main"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let pager = "sed 's/^/paged: /'";
    let said = diff_on_terminal(&project, &format!("PAGER=\"{pager}\""));
    for line in [
        "paged: \x1b[1m--- a/src/main\x1b[0m\n",
        "paged: \x1b[36m@@ -1,2 +1,2 @@\x1b[0m\n",
        "paged:  one\n",
        "paged: \x1b[31m-two\x1b[0m\n",
    ] {
        assert!(said.contains(line), "{line:?} in {said:?}");
    }
    assert!(!said.contains("\x1b[2J"), "{said:?}");
    let said = diff_on_terminal(&project, &format!("PAGER=\"{pager}\" NO_COLOR=1"));
    assert!(said.contains("paged: -two\n") && !said.contains('\x1b'), "{said:?}");
    // Without any pager the diff is printed.
    let said = diff_on_terminal(&project, "PATH=/nowhere NO_COLOR=1");
    assert!(said.contains("\n-two\n"), "{said:?}");
    // A file gets the diff as it is.
    let output = project.command(&["changes", "diff"]).env("PAGER", pager).output().unwrap();
    assert!(text(&output.stdout).contains("\n-two\n+\x1b[2Jtwo\n"), "{}", text(&output.stdout));
}

#[test]
fn conflicts_are_named_and_nothing_is_written_while_there_are_any() {
    let Some(project) = Project::new(None) else { return };
    let output = project.run(&["--here", "--", "sh", "-c", "echo inside > src/main; echo inside > readme"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::write(project.at("repo/.readme.new"), "outside\n").unwrap();
    fs::rename(project.at("repo/.readme.new"), project.at("repo/readme")).unwrap();
    let refused = project.fails(&["changes", "apply"]);
    assert!(refused.contains("changed  readme  (changed in the folder meanwhile)"), "{refused}");
    assert!(!refused.contains("src/main"), "{refused}");
    assert_eq!((project.read("src/main").as_str(), project.read("readme").as_str()), ("one\ntwo\n", "outside\n"));
    project.ok(&["changes", "apply", "--path", "src"]);
    assert_eq!(project.read("src/main"), "inside\n");
    assert!(project.fails(&["changes", "apply", "--path", "nowhere"]).contains("nothing has changed at nowhere"));
    project.ok(&["changes", "apply", "--overwrite"]);
    assert_eq!((project.read("readme").as_str(), project.copies()), ("inside\n", 0));
}

#[test]
fn without_changes_nothing_is_kept_and_discarded_changes_are_gone() {
    let Some(project) = Project::new(None) else { return };
    let output = project.run(&["--here", "--", "cat", "readme"]);
    assert!(text(&output.stderr).starts_with("no changes in "), "{}", text(&output.stderr));
    assert_eq!(project.copies(), 0);
    let output = project.run(&["--here", "--", "sh", "-c", "rm readme; exit 3"]);
    assert_eq!(output.status.code(), Some(3), "the command's own exit code");
    assert!(project.ok(&["changes", "list"]).contains("repo"), "it is listed");
    project.ok(&["changes", "discard"]);
    assert_eq!((project.copies(), project.read("readme").as_str()), (0, "read me\n"));
    assert_eq!(project.ok(&["changes", "list"]), "no copies of folders\n");
}

#[test]
fn write_mounts_the_folder_itself_and_with_adds_a_private_copy() {
    let Some(project) = Project::new(None) else { return };
    fs::create_dir_all(project.at("home/.config/tool")).unwrap();
    fs::write(project.at("home/.config/tool/settings"), "mine\n").unwrap();
    let settings = project.at("home/.config/tool");
    let script = "cat $HOME/.config/tool/settings; echo other > $HOME/.config/tool/settings; echo direct > readme";
    let output = project.run(&["--here", "--write", "--with", settings.to_str().unwrap(), "--", "sh", "-c", script]);
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("mine\n", Some(0)), "{}", text(&output.stderr));
    assert_eq!(project.read("readme"), "direct\n");
    assert_eq!(fs::read_to_string(settings.join("settings")).unwrap(), "mine\n");
    assert_eq!(project.copies(), 0, "private changes are not kept");
}

#[test]
fn a_home_folder_and_the_root_are_refused() {
    let Some(project) = Project::new(None) else { return };
    for (folder, reason) in
        [(project.at("home"), "your home folder"), (PathBuf::from("/"), "all files of this machine")]
    {
        let output = project.command(&["run", "--here", "--", "true"]).current_dir(folder).output().unwrap();
        assert!(!output.status.success() && text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
    // Without `HOME`, `/etc/passwd` decides.
    if let Some(home) = is_root().then(|| Path::new("/root")).filter(|home| home.is_dir()) {
        let mut command = project.command(&["run", "--here", "--", "true"]);
        let output = command.current_dir(home).env_remove("HOME").output().unwrap();
        assert!(text(&output.stderr).contains("your home folder /root"), "{}", text(&output.stderr));
    }
}

fn has_git() -> bool {
    let found = Command::new("git").arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: git is not here");
    }
    found
}

/// Standard output of a git command that succeeds.
fn git(project: &Project, folder: &Path, words: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "safe.directory=*"]);
    command.args(["-c", "protocol.file.allow=always"]).args(words).current_dir(folder);
    let output = command.env("HOME", project.at("home")).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The project as a repository with one commit.
fn repository(project: &Project) -> PathBuf {
    let repo = project.at("repo");
    git(project, &repo, &["init", "-q", "-b", "main"]);
    git(project, &repo, &["add", "."]);
    git(project, &repo, &["commit", "-qm", "first"]);
    repo
}

#[test]
fn a_submodule_of_git_works_and_its_commits_are_applied() {
    let Some(project) = Project::new(None) else { return };
    if !has_git() {
        return;
    }
    let repo = repository(&project);
    let outer = project.at("outer");
    fs::create_dir(&outer).unwrap();
    git(&project, &outer, &["init", "-q", "-b", "main"]);
    git(&project, &outer, &["submodule", "--quiet", "add", repo.to_str().unwrap(), "lib"]);
    git(&project, &outer, &["commit", "-qm", "with a submodule"]);
    let lib = outer.join("lib");
    assert!(lib.join(".git").is_file(), "git keeps its own folder outside");
    let script = "set -e; git config --global safe.directory '*'; echo more >> readme; \
                  git -c user.name=a -c user.email=a@example.org commit -qam second; git log --format=%s";
    let run = |words: &[&str]| project.command(words).current_dir(&lib).output().unwrap();
    let output = run(&["run", "--here", "--env", "HOME=/tmp", "--", "sh", "-c", script]);
    assert_eq!(text(&output.stdout), "second\nfirst\n", "{}", text(&output.stderr));
    assert_eq!(git(&project, &lib, &["log", "--format=%s"]), "first\n", "the submodule did not change");
    let output = run(&["changes", "apply"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(git(&project, &lib, &["log", "--format=%s"]), "second\nfirst\n");
    assert_eq!(git(&project, &outer, &["status", "--porcelain"]), " M lib\n", "only the submodule's commit is new");
}

/// The user goes to another branch while a command works on its copy.
#[test]
fn files_that_another_branch_has_otherwise_are_conflicts() {
    let Some(project) = Project::new(None) else { return };
    if !has_git() {
        return;
    }
    let repo = repository(&project);
    git(&project, &repo, &["checkout", "-qb", "other"]);
    for name in ["src/main", "readme"] {
        fs::write(repo.join(name), "of the other branch\n").unwrap();
    }
    git(&project, &repo, &["commit", "-qam", "other"]);
    git(&project, &repo, &["checkout", "-q", "main"]);
    let script = "echo inside > src/main; echo new > src/new; echo working; read line";
    let mut run = project.command(&["run", "--here", "-i", "--", "sh", "-c", script]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(run.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "working\n");
    git(&project, &repo, &["checkout", "-q", "other"]);
    run.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let refused = project.fails(&["changes", "apply"]);
    let named: Vec<&str> = refused.lines().filter(|line| line.contains("src/") || line.contains("readme")).collect();
    assert!(matches!(named[..], [line] if line.contains("src/main")), "{refused}");
    project.ok(&["changes", "apply", "--path", "src/new"]);
    assert_eq!(git(&project, &repo, &["status", "--porcelain"]), "?? src/new\n", "the other branch is as it was");
    project.ok(&["changes", "discard"]);
}

#[test]
fn a_work_tree_of_git_works_and_its_commits_are_applied() {
    let Some(project) = Project::new(None) else { return };
    if !has_git() {
        return;
    }
    let git = |folder: &Path, words: &[&str]| git(&project, folder, words);
    let repo = repository(&project);
    git(&repo, &["worktree", "add", "-q", "../tree"]);
    let script = "set -e; git config --global safe.directory '*'; echo more >> readme; \
                  git -c user.name=a -c user.email=a@example.org commit -qam second; git log --format=%s";
    let run = |words: &[&str]| project.command(words).current_dir(project.at("tree")).output().unwrap();
    let output = run(&["run", "--here", "--env", "HOME=/tmp", "--", "sh", "-c", script]);
    assert_eq!(text(&output.stdout), "second\nfirst\n", "{}", text(&output.stderr));
    assert_eq!(git(&project.at("tree"), &["log", "--format=%s"]), "first\n", "the repository did not change");
    let output = run(&["changes", "apply"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(git(&project.at("tree"), &["log", "--format=%s"]), "second\nfirst\n");
    assert_eq!(git(&project.at("tree"), &["status", "--porcelain"]), "");
}

/// A sandbox of an engine: the copy survives suspend, another sandbox cannot have the folder, and a running one is not
/// discarded.
#[test]
fn a_sandbox_keeps_its_copy_and_no_other_gets_the_folder() {
    let Some(engine) = Engine::start() else { return };
    let repo = engine.folder.path().canonicalize().unwrap().join("repo");
    fs::create_dir(&repo).unwrap();
    fs::set_permissions(&repo, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(repo.join("file"), "real\n").unwrap();
    let here = |words: &[&str]| {
        let output = engine.command(words).current_dir(&repo).output().unwrap();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (created, _, said) = here(&["create", "box", "--here"]);
    assert!(created, "{said}{}", engine.log());
    engine.ok(&["exec", "box", "--", "sh", "-c", &format!("cd {}; cat file; echo inside > file", repo.display())]);
    assert_eq!(fs::read_to_string(repo.join("file")).unwrap(), "real\n");
    let (discarded, _, said) = here(&["changes", "discard", "box"]);
    assert!(!discarded && said.contains("agent-sandbox suspend box"), "{said}");
    engine.ok(&["suspend", "box"]);
    engine.ok(&["resume", "box"]);
    let read = format!("cat {}/file", repo.display());
    assert_eq!(engine.ok(&["exec", "box", "--", "sh", "-c", &read]), "inside\n");
    let (shown, summary, said) = here(&["changes", "box"]);
    assert!(shown && summary.contains("0 added, 1 changed, 0 deleted"), "{summary}{said}");

    // The annotation alone gives no one the folder.
    let manifest = engine.folder.path().join("thief.yaml");
    let volume = format!("[{{name: here, hostPath: {{path: {}}}}}]", repo.display());
    let yaml = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: thief\n  annotations: {{agent-sandbox.dev/copied-volumes: here}}\n\
         spec:\n  volumes: {volume}\n  containers: [{{name: c, image: host, command: [sleep, '60'], volumeMounts: [{{name: here, \
         mountPath: /x, readOnly: true}}]}}]\n"
    );
    fs::write(&manifest, yaml).unwrap();
    engine.ok(&["apply", "-f", manifest.to_str().unwrap()]);
    eventually("the Pod is refused", || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let pod = runtime.block_on(async {
            let client = kube::Client::try_from(crate::tenants::config(&engine, None).await).unwrap();
            let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::namespaced(client, "default");
            pods.get("thief").await.unwrap()
        });
        pod.status.and_then(|status| status.message).is_some_and(|message| message.contains("--allow-host-path"))
    });

    engine.ok(&["suspend", "box"]);
    let (applied, _, said) = here(&["changes", "apply"]);
    assert!(applied, "{said}");
    assert_eq!(fs::read_to_string(repo.join("file")).unwrap(), "inside\n");
    engine.ok(&["resume", "box"]);
    engine.ok(&["exec", "box", "--", "sh", "-c", &format!("echo again > {}/file", repo.display())]);
    engine.ok(&["suspend", "box"]);
    let (discarded, _, said) = here(&["changes", "discard", "box"]);
    assert!(discarded, "{said}");
    engine.ok(&["resume", "box"]);
    assert_eq!(engine.ok(&["exec", "box", "--", "sh", "-c", &read]), "inside\n", "the real folder shows again");
    engine.ok(&["delete", "box"]);
    eventually("the copy goes with the sandbox", || {
        here(&["changes", "box"]).2.contains("has no copy of a folder here")
    });
}

/// What a hostile command leaves behind stays inside the folder.
#[test]
fn nothing_outside_is_written_whatever_a_command_leaves_behind() {
    let Some(project) = Project::new(None) else { return };
    fs::create_dir(project.at("outside")).unwrap();
    fs::write(project.at("outside/key"), "secret\n").unwrap();
    let outside = project.at("outside");
    let script =
        format!("rm -r src; ln -s {} src; mkfifo pipe; chmod 4755 readme; echo evil > .envrc", outside.display());
    let output = project.run(&["--here", "--", "sh", "-c", &script]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = project.command(&["changes", "apply"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "the pipe is reported: {}", text(&output.stderr));
    assert!(text(&output.stderr).contains("pipe: a named pipe is not applied"), "{}", text(&output.stderr));
    assert!(!project.at("repo/src").is_symlink() && !project.at("repo/.envrc").exists());
    assert_eq!(fs::metadata(project.at("repo/readme")).unwrap().mode() & 0o7000, 0);
    // The user puts a link where the sandbox had a folder.
    let output = project.run(&["--here", "--", "sh", "-c", "mkdir -p sub; echo evil > sub/key"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    symlink(&outside, project.at("repo/sub")).unwrap();
    assert!(project.fails(&["changes", "apply"]).contains("in the folder meanwhile"));
    project.command(&["changes", "apply", "--overwrite"]).output().unwrap();
    assert_eq!(fs::read_to_string(project.at("outside/key")).unwrap(), "secret\n");
}
