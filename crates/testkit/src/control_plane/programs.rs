//! The control plane's programs: where they are, and children that never outlive their owner.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context, bail};

/// Starts its arguments and ends them when its standard input closes, which the kernel does however the owner dies. The folder given
/// first is removed then. The programs keep no state worth a slow farewell: kube-apiserver waits for minutes when its etcd is gone.
const GUARD: &str = r#"
exec 3<&0 </dev/null
folder=$1; shift
"$@" 3<&- & program=$!
{ read -r _ <&3; kill -KILL $program; rm -rf "$folder"; } 2>/dev/null & watcher=$!
wait $program; status=$?
if [ $status = 137 ]; then wait $watcher; else kill $watcher; fi
exit $status
"#;

/// How much of a log an error message carries.
const LAST_WORDS: usize = 2000;

/// The folder with the programs, or what is missing.
pub(super) fn find_programs() -> anyhow::Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/control-plane");
    let output =
        Command::new(&script).arg("path").stdin(Stdio::null()).output().context("cannot run scripts/control-plane")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// A running program; dropping it kills it and waits for its end.
pub(super) struct Program {
    name: String,
    log: PathBuf,
    guard: Child,
    lifeline: Option<ChildStdin>,
}

impl Program {
    /// Starts `binary` with its output in `folder`, which goes when its owner dies.
    pub(super) fn start(binary: &Path, arguments: &[String], folder: &Path) -> anyhow::Result<Self> {
        use std::os::unix::process::CommandExt;
        let name = binary.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = folder.join(format!("{name}.log"));
        let output = File::create(&log)?;
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(folder)
            .arg(binary)
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            // A Ctrl-C is for the owner alone.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let lifeline = guard.stdin.take();
        Ok(Self { name, log, guard, lifeline })
    }

    /// An error with its last words when it has ended.
    pub(super) fn must_run(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.guard.try_wait()? {
            bail!("{} ended with {status}: {}", self.name, self.last_words());
        }
        Ok(())
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        let mut text = Vec::new();
        let read = File::open(&self.log).and_then(|mut file| file.read_to_end(&mut text));
        match read {
            Ok(_) => {
                let from = text.len().saturating_sub(LAST_WORDS);
                format!("{}: …{}", self.name, String::from_utf8_lossy(&text[from..]))
            }
            Err(error) => format!("{}: no log: {error}", self.name),
        }
    }

    /// Lets go without waiting; [`Drop`] waits.
    pub(super) fn release(&mut self) {
        self.lifeline = None;
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.release();
        // The guard ends right after its program, which SIGKILL ends.
        let _ = self.guard.wait();
    }
}
