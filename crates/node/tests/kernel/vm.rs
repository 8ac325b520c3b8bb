//! A virtual machine with cgroup v2 only, and with a clock that can be set: Debian's cloud kernel under qemu, with a
//! root file system of this test program, a shell and little more. The tests of limits run in it unchanged.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::is_root;

/// Environment variable set for the tests that run inside.
pub(crate) const INSIDE: &str = "AGENT_SANDBOX_MACHINE";

/// Timeout for the machine. It takes a sixth of that.
const LIMIT: Duration = Duration::from_secs(240);

/// Tests that run inside, by prefix of their names.
/// The skipped ones need a program that the machine lacks, and loop devices on a disk that is not in memory.
const TESTS: &[&str] =
    &["limits::", "machine::", "--skip", "user_limits::", "--skip", "a_storage_limit_holds_beside_a_memory_volume"];

/// Kernel modules that Pods need; their dependencies are added.
const MODULES: &[&str] = &[
    "overlay",
    "veth",
    "loop",
    "quota_v2",
    "nf_tables",
    "nft_ct",
    "nft_chain_nat",
    "nft_masq",
    "nft_fib_inet",
    "nft_limit",
    "nft_reject_inet",
    "nfnetlink",
];

/// Programs besides those of the shell; their libraries are added.
const PROGRAMS: &[&str] = &["/usr/sbin/mkfs.ext4"];

#[test]
fn a_machine_with_only_unified_control_groups_and_a_clock_that_moves() {
    if !is_root() || std::env::var_os(INSIDE).is_some() {
        return;
    }
    let Some(kernel) = Kernel::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let system = folder.path().join("system.cpio");
    System::collect(&kernel).write(&system);
    let text = boot(&kernel.image, &system);
    let output = || text.lines().filter(|line| !line.starts_with('[')).collect::<Vec<_>>().join("\n");
    assert!(text.contains("MACHINE DONE 0"), "{}", output());
    for needed in [
        "limits::a_memory_bomb_is_killed_and_reported_as_oom",
        "machine::a_delegated_group_holds_limits_without_root",
        "machine::control_groups_are_unified",
        "machine::pods_go_on_when_the_clock_moves",
        "machine::project_quotas_hold_layers_and_volumes",
    ] {
        assert!(text.contains(&format!("{needed} ... ok")), "{needed} is missing: {}", output());
    }
}

/// The kernel to boot, and its modules.
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The newest cloud kernel that is installed or was unpacked by set-up; otherwise prints what is missing.
    fn find() -> Option<Self> {
        let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/machine");
        let tops = [unpacked.as_path(), Path::new("/")];
        let found = tops.iter().find_map(|top| {
            let boot = std::fs::read_dir(top.join("boot")).ok()?;
            let names = boot.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            let newest = names.filter(|name| name.starts_with("vmlinuz-") && name.contains("cloud")).max()?;
            let version = newest.trim_start_matches("vmlinuz-");
            Some(Self { image: top.join("boot").join(&newest), modules: top.join("lib/modules").join(version) })
        });
        let emulator = Path::new("/usr/bin/qemu-system-x86_64").exists();
        let ready = found.is_some() && emulator && Path::new("/usr/bin/busybox").exists();
        let missing = "qemu-system-x86, busybox-static and a cloud kernel (see scripts/test-packages)";
        assert!(ready || std::env::var_os("CI").is_none(), "{missing} must be there where CI is set");
        if !ready {
            eprintln!("skipped: needs {missing}");
        }
        found.filter(|_| ready)
    }
}

/// Files of the machine's root file system: path inside, and content.
#[derive(Default)]
struct System {
    files: Vec<(String, Entry)>,
    folders: BTreeSet<String>,
}

enum Entry {
    Folder,
    Link(String),
    File(Vec<u8>, u32),
}

impl System {
    fn collect(kernel: &Kernel) -> Self {
        let mut system = Self::default();
        for folder in ["proc", "sys", "dev", "tmp", "run", "new", "var", "home", "usr/lib64"] {
            system.make_folders(&format!("{folder}/."));
        }
        for (name, target) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
            system.files.push((name.into(), Entry::Link(target.into())));
        }
        system.add_busybox();
        let own = std::env::current_exe().unwrap();
        for (program, inside) in
            [(own.as_path(), "t/x/tests"), (Path::new(env!("CARGO_BIN_EXE_agent-sandbox-node-helper")), "t/helper")]
        {
            system.add(inside, Entry::File(stripped(program), 0o755));
            system.add_libraries(program);
        }
        system.add("t/examples/sandboxd-for-tests", Entry::File(Vec::new(), 0o755));
        for program in PROGRAMS {
            let real = Path::new(program).canonicalize().unwrap();
            let name = Path::new(program).file_name().unwrap().to_str().unwrap();
            system.add(&format!("usr/bin/{name}"), Entry::File(std::fs::read(&real).unwrap(), 0o755));
            system.add_libraries(&real);
        }
        system.add_modules(kernel);
        for name in ["mkfs.ext4", "modprobe"] {
            system.add(&format!("usr/sbin/{name}"), Entry::Link(format!("../bin/{name}")));
        }
        for (name, text) in [("passwd", "root:x:0:0::/:/bin/sh\n"), ("group", "root:x:0:\n")] {
            system.add(&format!("etc/{name}"), Entry::File(text.into(), 0o644));
        }
        system.add("init", Entry::File(FIRST_INIT.into(), 0o755));
        let second = SECOND_INIT.replace("TESTS", &TESTS.join(" ")).replace("INSIDE", INSIDE);
        system.add("init2", Entry::File(second.replace("MODULES", &MODULES.join(" ")).into(), 0o755));
        system
    }

    fn make_folders(&mut self, path: &str) {
        let mut at = 0;
        while let Some(next) = path[at..].find('/') {
            let folder = &path[..at + next];
            if !folder.is_empty() && self.folders.insert(folder.to_owned()) {
                self.files.push((folder.to_owned(), Entry::Folder));
            }
            at += next + 1;
        }
    }

    fn add(&mut self, path: &str, entry: Entry) {
        self.make_folders(path);
        if self.folders.insert(path.to_owned()) {
            self.files.push((path.to_owned(), entry));
        }
    }

    /// busybox, with links for all its programs.
    fn add_busybox(&mut self) {
        self.add("usr/bin/busybox", Entry::File(std::fs::read("/usr/bin/busybox").unwrap(), 0o755));
        let list = Command::new("/usr/bin/busybox").arg("--list").output().unwrap();
        for name in String::from_utf8(list.stdout).unwrap().lines().filter(|name| *name != "busybox") {
            self.add(&format!("usr/bin/{name}"), Entry::Link("busybox".into()));
        }
    }

    /// The shared libraries of a program.
    fn add_libraries(&mut self, program: &Path) {
        let list = Command::new("ldd").arg(program).output().unwrap();
        for word in String::from_utf8(list.stdout).unwrap().split_whitespace().filter(|word| word.starts_with('/')) {
            let inside = word.trim_start_matches('/');
            let inside = inside.strip_prefix("lib").map_or_else(|| inside.to_owned(), |rest| format!("usr/lib{rest}"));
            self.add(&inside, Entry::File(std::fs::read(word).unwrap(), 0o755));
        }
    }

    fn add_modules(&mut self, kernel: &Kernel) {
        let version = kernel.modules.file_name().unwrap().to_str().unwrap();
        let list = std::fs::read_to_string(kernel.modules.join("modules.dep")).unwrap_or_else(|_| {
            // Unpacked and not installed: the dependencies are not computed yet.
            let base = kernel.modules.ancestors().nth(3).unwrap();
            assert!(Command::new("depmod").arg("-b").arg(base).arg(version).status().unwrap().success());
            std::fs::read_to_string(kernel.modules.join("modules.dep")).unwrap()
        });
        let names = |path: &str| MODULES.iter().any(|name| path.ends_with(&format!("/{}.ko", name)));
        for line in list.lines() {
            let (path, needs) = line.split_once(':').unwrap();
            if names(path) || path.contains("/net/netfilter/") {
                for module in std::iter::once(path).chain(needs.split_whitespace()) {
                    let content = std::fs::read(kernel.modules.join(module)).unwrap();
                    self.add(&format!("usr/lib/modules/{version}/{module}"), Entry::File(content, 0o644));
                }
            }
        }
        for name in ["modules.dep", "modules.alias", "modules.builtin", "modules.symbols"] {
            let content = std::fs::read(kernel.modules.join(name)).unwrap_or_default();
            self.add(&format!("usr/lib/modules/{version}/{name}"), Entry::File(content, 0o644));
        }
    }

    /// Writes the initramfs (cpio archive).
    fn write(self, path: &Path) {
        let mut out = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
        for (number, (name, entry)) in self.files.into_iter().enumerate() {
            let (mode, content) = match entry {
                Entry::Folder => (0o040_755, Vec::new()),
                Entry::Link(target) => (0o120_777, target.into_bytes()),
                Entry::File(content, mode) => (0o100_000 | mode, content),
            };
            write_entry(&mut out, number + 1, mode, &name, &content);
        }
        write_entry(&mut out, 0, 0, "TRAILER!!!", &[]);
        out.flush().unwrap();
    }
}

fn write_entry(out: &mut impl Write, number: usize, mode: u32, name: &str, content: &[u8]) {
    let header = format!(
        "070701{number:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}",
        0,
        0,
        1,
        0,
        content.len(),
        0,
        0,
        0,
        0,
        name.len() + 1,
        0
    );
    let padded = |length: usize| vec![0; (4 - length % 4) % 4];
    out.write_all(header.as_bytes()).unwrap();
    out.write_all(name.as_bytes()).unwrap();
    out.write_all(&[0]).unwrap();
    out.write_all(&padded(header.len() + name.len() + 1)).unwrap();
    out.write_all(content).unwrap();
    out.write_all(&padded(content.len())).unwrap();
}

/// A program without debug information, which is most of its size.
fn stripped(program: &Path) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("program");
    let done = Command::new("strip").arg("-o").arg(&copy).arg(program).status();
    std::fs::read(if done.is_ok_and(|status| status.success()) { &copy } else { program }).unwrap()
}

/// Runs the machine until it powers off; returns its output.
fn boot(kernel: &Path, system: &Path) -> String {
    let mut machine = Command::new("/usr/bin/qemu-system-x86_64")
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1536", "-nographic", "-no-reboot"])
        .args([
            "-nic",
            "none",
            "-append",
            "console=ttyS0 quiet loglevel=0 panic=-1 cgroup_no_v1=all random.trust_cpu=on",
        ])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(system)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = machine.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = output.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let until = Instant::now() + LIMIT;
    while machine.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            machine.kill().unwrap();
            machine.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    reader.join().unwrap()
}

/// The initramfs cannot be the old root of pivot_root, which every sandbox calls: everything is copied to a tmpfs.
const FIRST_INIT: &str = "#!/usr/bin/busybox sh
mount -t tmpfs -o mode=755 tmpfs /new
cp -a /usr /bin /sbin /lib /lib64 /t /etc /init2 /new
for folder in proc sys dev tmp run var home; do mkdir -p /new/$folder; done
exec switch_root /new /init2
";

const SECOND_INIT: &str = "#!/usr/bin/busybox sh
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs -o size=16g tmpfs /run
ip link set lo up
for module in MODULES; do modprobe $module || echo MACHINE lacks $module; done
truncate -s 8G /run/disk
mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1,nodiscard /run/disk
mount -o loop /run/disk /tmp
chmod 1777 /tmp
export PATH=/usr/bin NODE_HELPER=/t/helper INSIDE=1 RUST_BACKTRACE=0
/t/x/tests --test-threads 1 TESTS
echo MACHINE DONE $?
sync
poweroff -f
";
