//! The control plane's programs: finding them, and running them as child processes that never outlive their owner.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context, bail};

/// Shell script that starts a program and kills it when the script's standard input is closed, which the kernel does
/// however the owner dies. It then removes the folder given as first argument. SIGKILL is used because the programs
/// keep no state that needs a graceful end, and kube-apiserver would wait for minutes when its etcd is gone.
const GUARD: &str = r#"
exec 3<&0 </dev/null
folder=$1; shift
"$@" 3<&- & program=$!
{ read -r _ <&3; kill -KILL $program; rm -rf "$folder"; } 2>/dev/null & watcher=$!
wait $program; status=$?
if [ $status = 137 ]; then wait $watcher; else kill $watcher; fi
exit $status
"#;

/// Maximum number of bytes of a log in an error message.
const LOG_TAIL: usize = 2000;

/// The folder with the programs, or an error that says what is missing.
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
    /// Starts `binary` with its output in `folder`, which is removed when the owner dies.
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
            // A process group of its own, so that Ctrl-C reaches only the owner.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let lifeline = guard.stdin.take();
        Ok(Self { name, log, guard, lifeline })
    }

    /// Returns an error with the end of the log when the program has ended.
    pub(super) fn check_running(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.guard.try_wait()? {
            bail!("{} ended with {status}: {}", self.name, self.log_tail());
        }
        Ok(())
    }

    /// The end of the program's log.
    pub(super) fn log_tail(&self) -> String {
        let mut text = Vec::new();
        let read = File::open(&self.log).and_then(|mut file| file.read_to_end(&mut text));
        match read {
            Ok(_) => {
                let from = text.len().saturating_sub(LOG_TAIL);
                format!("{}: …{}", self.name, String::from_utf8_lossy(&text[from..]))
            }
            Err(error) => format!("{}: no log: {error}", self.name),
        }
    }

    /// Lets the guard kill the program, without waiting for it; [`Drop`] waits.
    pub(super) fn stop(&mut self) {
        self.lifeline = None;
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop();
        // The guard ends right after its program, which SIGKILL has ended.
        let _ = self.guard.wait();
    }
}
