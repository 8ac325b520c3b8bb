//! Changes that make this machine run or follow something later, although the user only looks at the folder: hooks of
//! git, settings of version control, editors and shells, setuid programs, links that lead out. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use super::entry::Kind;
use super::layer::Change;

/// Why a change is listed apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Risk {
    GitRuns,
    MercurialRuns,
    JujutsuRuns,
    ShellRuns,
    EditorRuns,
    ToolRuns,
    SetUserId,
    LeadsOut,
}

impl Risk {
    pub fn name(self) -> &'static str {
        match self {
            Self::GitRuns => "git runs or follows it",
            Self::MercurialRuns => "Mercurial runs or follows it",
            Self::JujutsuRuns => "Jujutsu runs or follows it",
            Self::ShellRuns => "the shell runs it",
            Self::EditorRuns => "editors run it",
            Self::ToolRuns => "development tools run it",
            Self::SetUserId => "runs as its owner, whoever starts it",
            Self::LeadsOut => "a link that leads out of the folder",
        }
    }
}

/// Files that tools run or obey as soon as they are used in the folder, by their last name in lower case.
const FILES: &[(&str, Risk)] = &[
    (".envrc", Risk::ShellRuns),
    (".exrc", Risk::EditorRuns),
    (".nvim.lua", Risk::EditorRuns),
    (".nvimrc", Risk::EditorRuns),
    (".vimrc", Risk::EditorRuns),
    (".lvimrc", Risk::EditorRuns),
    (".dir-locals.el", Risk::EditorRuns),
    (".dir-locals-2.el", Risk::EditorRuns),
    (".devcontainer.json", Risk::EditorRuns),
    (".gdbinit", Risk::ToolRuns),
    (".lldbinit", Risk::ToolRuns),
    (".mcp.json", Risk::ToolRuns),
    (".mise.toml", Risk::ShellRuns),
    ("mise.toml", Risk::ShellRuns),
    (".mise.local.toml", Risk::ShellRuns),
    ("mise.local.toml", Risk::ShellRuns),
    (".tool-versions", Risk::ShellRuns),
    (".npmrc", Risk::ToolRuns),
    (".pnpmfile.cjs", Risk::ToolRuns),
    (".yarnrc", Risk::ToolRuns),
    (".yarnrc.yml", Risk::ToolRuns),
    ("bunfig.toml", Risk::ToolRuns),
    (".bazelrc", Risk::ToolRuns),
    ("rust-toolchain", Risk::ToolRuns),
    ("rust-toolchain.toml", Risk::ToolRuns),
    (".rprofile", Risk::ToolRuns),
    (".irbrc", Risk::ToolRuns),
    (".pdbrc", Risk::ToolRuns),
    (".aider.conf.yml", Risk::ToolRuns),
    ("opencode.json", Risk::ToolRuns),
    (".pre-commit-config.yaml", Risk::GitRuns),
    (".overcommit.yml", Risk::GitRuns),
    ("lefthook.yml", Risk::GitRuns),
    ("lefthook.yaml", Risk::GitRuns),
    (".lefthook.yml", Risk::GitRuns),
    (".lefthook.yaml", Risk::GitRuns),
    ("lefthook-local.yml", Risk::GitRuns),
];

/// Folders of which everything is run or obeyed, in lower case.
const FOLDERS: &[(&str, Risk)] = &[
    (".vscode", Risk::EditorRuns),
    (".idea", Risk::EditorRuns),
    (".zed", Risk::EditorRuns),
    (".fleet", Risk::EditorRuns),
    (".devcontainer", Risk::EditorRuns),
    (".cursor", Risk::EditorRuns),
    (".windsurf", Risk::EditorRuns),
    (".helix", Risk::EditorRuns),
    (".claude", Risk::ToolRuns),
    (".codex", Risk::ToolRuns),
    (".gemini", Risk::ToolRuns),
    (".opencode", Risk::ToolRuns),
    (".cargo", Risk::ToolRuns),
    (".bundle", Risk::ToolRuns),
    (".mvn", Risk::ToolRuns),
    (".husky", Risk::GitRuns),
    (".githooks", Risk::GitRuns),
    (".mise", Risk::ShellRuns),
];

/// Files of Mercurial's and Jujutsu's own folders that make them run something, or lead to another repository. Both trust
/// what belongs to the user. The rest of these folders is data, which every commit changes.
const REPOSITORIES: &[(&str, Risk, &[&str])] = &[
    (".hg", Risk::MercurialRuns, &["hgrc", "hgrc-not-shared", "sharedpath"]),
    (
        ".jj",
        Risk::JujutsuRuns,
        &["config.toml", "workspace-config.toml", "config-id", "workspace-config-id", "repo", "git_target"],
    ),
];

/// Programs that git runs from a folder `hooks`.
const HOOKS: &[&str] = &[
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "p4-prepare-changelist",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-receive",
    "post-rewrite",
    "post-update",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "pre-receive",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
];

/// The reasons for which a change needs the user's word.
pub struct Risks {
    /// The folder is itself git's own folder.
    is_git: bool,
}

impl Risks {
    /// `is_git` says that the folder is git's own folder of a work tree.
    pub fn new(is_git: bool) -> Self {
        Self { is_git }
    }

    /// The risk of a change; `link` is the target of a link. A deletion has none.
    pub fn of(&self, change: &Change, link: Option<&OsStr>) -> Option<Risk> {
        let after = change.after?;
        if after.kind == Kind::File && after.mode & 0o6000 != 0 {
            return Some(Risk::SetUserId);
        }
        let names: Vec<String> =
            change.path.iter().map(|name| String::from_utf8_lossy(name.as_bytes()).to_lowercase()).collect();
        if let Some(risk) = self.by_name(&names, after.kind) {
            return Some(risk);
        }
        let leads_out = after.kind == Kind::Link && link.is_none_or(|target| leads_out(&change.path, target));
        leads_out.then_some(Risk::LeadsOut)
    }

    fn by_name(&self, names: &[String], kind: Kind) -> Option<Risk> {
        let (last, above) = names.split_last()?;
        let in_git = self.is_git || above.iter().any(|name| name == ".git");
        let git_file = last == ".git" && kind != Kind::Folder;
        // Git takes every folder with a file `HEAD` for a repository, whenever that file came there: outside of `.git`,
        // the names by which a repository makes git run something count alone.
        let is_config = matches!(last.as_str(), "config" | "config.worktree" | "commondir") && kind != Kind::Folder;
        let is_hook = above.last().is_some_and(|folder| folder == "hooks") && HOOKS.contains(&last.as_str());
        // A link would put other files, which are no risk where they lie, in the place of git's own.
        let is_link = in_git && (kind == Kind::Link || last == "hooks" && kind != Kind::Folder);
        // Attributes choose filters, and alternates and commondir lead to other repositories.
        let followed = matches!(last.as_str(), "alternates" | "commondir" | "gitdir" | "attributes");
        let in_hooks = above.iter().any(|name| name == "hooks");
        if git_file || is_config || is_hook || is_link || in_git && (followed || in_hooks) {
            return Some(Risk::GitRuns);
        }
        if kind == Kind::Folder {
            return None;
        }
        let repository = |(own, risk, files): &(&str, Risk, &[&str])| {
            // A link would put other files in the place of the repository's.
            let inside = above.iter().any(|name| name == own) && (kind == Kind::Link || files.contains(&last.as_str()));
            (inside || last == own).then_some(*risk)
        };
        if let Some(risk) = REPOSITORIES.iter().find_map(repository) {
            return Some(risk);
        }
        let workspace = last.ends_with(".code-workspace") || last.ends_with(".sublime-project");
        let by_file = FILES.iter().find(|(name, _)| name == last).map(|(_, risk)| *risk);
        let by_folder = names.iter().find_map(|name| FOLDERS.iter().find(|(folder, _)| folder == name));
        by_file.or(by_folder.map(|(_, risk)| *risk)).or(workspace.then_some(Risk::EditorRuns))
    }
}

/// Whether a link at `path` may lead out of the folder, by its text alone: a target that goes up after it went down
/// could pass another link, and counts as leading out.
fn leads_out(path: &Path, target: &OsStr) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    let mut went_down = false;
    for component in Path::new(target).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(_) => went_down = true,
            Component::ParentDir if depth > 0 && !went_down => depth -= 1,
            _ => return true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::{Entry, What};

    fn added(path: &str, kind: Kind, mode: u32) -> Change {
        let after = Entry {
            kind,
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            inode: 1,
            links: 1,
            device: 0,
            modified: (0, 0),
            changed: (0, 0),
        };
        Change { path: path.into(), what: What::Added, before: None, after: Some(after), same_as: None }
    }

    fn risk(path: &str) -> Option<Risk> {
        Risks::new(false).of(&added(path, Kind::File, 0o644), None)
    }

    #[test]
    fn what_tools_run_is_listed_apart_and_sources_are_not() {
        for path in [
            ".git/hooks/pre-commit",
            ".git/config",
            ".git",
            ".GIT/hooks/post-checkout",
            "sub/.git/config.worktree",
            ".git/modules/x/config",
            ".git/modules/x/hooks/post-merge",
            ".git/info/attributes",
            ".git/objects/info/alternates",
            ".husky/pre-commit",
            // A repository is recognised by git wherever it is, and may come in parts.
            "fixtures/r/config",
            "config",
            "fixtures/r/commondir",
            "fixtures/r/hooks/post-checkout",
        ] {
            assert_eq!(risk(path), Some(Risk::GitRuns), "{path}");
        }
        for path in [".vscode/tasks.json", "a/.vscode/settings.json", ".idea/workspace.xml", "x.code-workspace"] {
            assert_eq!(risk(path), Some(Risk::EditorRuns), "{path}");
        }
        for path in [".envrc", "a/.tool-versions", "mise.local.toml"] {
            assert_eq!(risk(path), Some(Risk::ShellRuns), "{path}");
        }
        for path in ["a/.cargo/config.toml", ".Rprofile", "rust-toolchain.toml", ".mvn/extensions.xml", "bunfig.toml"] {
            assert_eq!(risk(path), Some(Risk::ToolRuns), "{path}");
        }
        for path in
            ["src/main.rs", ".git/index", ".git/refs/heads/main", ".git/objects/aa/bb", "hooks/x", "config.toml"]
        {
            assert_eq!(risk(path), None, "{path}");
        }
        for path in ["conftest.py", "Makefile", "package.json", "build.rs", "hgrc", "repo", ".env"] {
            assert_eq!(risk(path), None, "program text and data of the project: {path}");
        }
        let deleted = Change { what: What::Deleted, after: None, ..added(".git/hooks/x", Kind::File, 0o755) };
        assert_eq!(Risks::new(false).of(&deleted, None), None);
    }

    #[test]
    fn links_in_gits_own_folder_are_listed_apart_wherever_they_lead() {
        let link = |risks: Risks, path: &str| risks.of(&added(path, Kind::Link, 0o777), Some(OsStr::new("tools")));
        for path in [".git/hooks", ".git/info", ".git/modules", "sub/.git/refs"] {
            assert_eq!(link(Risks::new(false), path), Some(Risk::GitRuns), "{path}");
        }
        assert_eq!(link(Risks::new(true), "hooks"), Some(Risk::GitRuns));
        assert_eq!(link(Risks::new(false), "hooks"), None, "not a folder of git's");
        let hook = added("hooks/anything", Kind::File, 0o755);
        assert_eq!(Risks::new(true).of(&hook, None), Some(Risk::GitRuns));
        assert_eq!(Risks::new(false).of(&added("config", Kind::Folder, 0o755), None), None);
    }

    #[test]
    fn settings_of_other_version_control_are_listed_apart_and_commits_are_not() {
        for path in [".hg/hgrc", "sub/.HG/hgrc", ".hg/hgrc-not-shared", ".hg/sharedpath", ".hg"] {
            assert_eq!(risk(path), Some(Risk::MercurialRuns), "{path}");
        }
        for path in
            [".jj/repo/config.toml", ".jj/workspace-config.toml", ".jj/repo", ".jj/repo/store/git_target", ".jj"]
        {
            assert_eq!(risk(path), Some(Risk::JujutsuRuns), "{path}");
        }
        for path in [".hg/dirstate", ".hg/store/00changelog.i", ".jj/repo/op_store/operations/a", ".jj/working_copy/x"]
        {
            assert_eq!(risk(path), None, "{path}");
        }
        let of = |path: &str, kind| Risks::new(false).of(&added(path, kind, 0o755), Some(OsStr::new("a")));
        assert_eq!(of(".hg/store", Kind::Link), Some(Risk::MercurialRuns), "other files in its place");
        assert_eq!((of(".hg", Kind::Folder), of(".jj/repo", Kind::Folder)), (None, None));
    }

    #[test]
    fn setuid_programs_and_links_out_are_listed_apart() {
        let risks = Risks::new(false);
        assert_eq!(risks.of(&added("bin/x", Kind::File, 0o4755), None), Some(Risk::SetUserId));
        assert_eq!(risks.of(&added("bin/x", Kind::File, 0o2755), None), Some(Risk::SetUserId));
        let link = |path: &str, target: &str| risks.of(&added(path, Kind::Link, 0o777), Some(OsStr::new(target)));
        for (path, target) in
            [("l", "/etc"), ("l", ".."), ("a/l", "../.."), ("l", "b/../.."), ("a/b/l", "c/../../../..")]
        {
            assert_eq!(link(path, target), Some(Risk::LeadsOut), "{path} -> {target}");
        }
        for (path, target) in [("l", "a/b"), ("a/l", "../b"), ("a/b/l", "../../c"), ("l", ".")] {
            assert_eq!(link(path, target), None, "{path} -> {target}");
        }
        assert_eq!(risks.of(&added("l", Kind::Link, 0o777), None), Some(Risk::LeadsOut), "a link that cannot be read");
    }
}
