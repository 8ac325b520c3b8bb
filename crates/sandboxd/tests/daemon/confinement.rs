//! The path-safety corpus: every dialect, both modes, with and without `openat2`. The root is a folder in a tree full
//! of sentinel files; nothing outside is read, written, listed or revealed.

mod corpus;
mod without_openat2;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_sandbox_protocol::grpc::process::ProcessConfig;
use serde_json::json;

use crate::client::{HttpResponse, encode, form, form_type, send};
use crate::fixture::{Daemon, daemon, is_root};
use crate::grpc;
use corpus::{Case, MARKER, cases};

/// Creates every kind of file that must not be served, in a directory of the sandbox.
fn create_forbidden_files(directory: &Path, outside: &Path) {
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory.join("deep/er")).expect("a directory");
    std::fs::write(directory.join("in.txt"), "inside").expect("a file");
    let links: [(&str, &Path); 12] = [
        ("abs-file", &outside.join("sentinel")),
        ("abs-dir", outside),
        ("rel-file", Path::new("../../../../../sentinel")),
        ("rel-dir", Path::new("../../../../..")),
        ("up", Path::new("..")),
        ("chain", Path::new("abs-dir")),
        ("deep/er/link", Path::new("../../../../../../..")),
        ("loop", Path::new("loop")),
        ("magic-root", Path::new("/proc/self/root")),
        ("magic-cwd", Path::new("/proc/self/cwd")),
        ("descriptors", Path::new("/dev/fd")),
        ("device-link", Path::new("/dev/zero")),
    ];
    for (name, target) in links {
        symlink(target, directory.join(name)).expect("a link");
    }
    rustix::fs::mknodat(
        rustix::fs::CWD,
        directory.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    )
    .expect("a FIFO");
    if is_root() {
        let device = rustix::fs::makedev(1, 5);
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        // Some sandboxes forbid device nodes even to root; the corpus then has none.
        let _ = rustix::fs::mknodat(
            rustix::fs::CWD,
            directory.join("device"),
            rustix::fs::FileType::CharacterDevice,
            mode,
            device,
        );
    }
    drop(std::os::unix::net::UnixListener::bind(directory.join("socket")).expect("a socket"));
    std::fs::hard_link(outside.join("hard-target"), directory.join("hard")).expect("a hard link");
}

/// The state of everything outside: names, contents, permissions, times.
fn snapshot(outside: &Path) -> BTreeMap<String, (u32, i64, i64, Vec<u8>)> {
    let mut seen = BTreeMap::new();
    let mut pending = vec![outside.to_path_buf()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory").flatten() {
            let path = entry.path();
            if path == outside.join("sandbox") {
                continue;
            }
            let metadata = std::fs::symlink_metadata(&path).expect("a file");
            let content = if metadata.is_file() { std::fs::read(&path).expect("readable") } else { Vec::new() };
            if metadata.is_dir() {
                pending.push(path.clone());
            }
            let fact = (metadata.mode(), metadata.mtime(), metadata.mtime_nsec(), content);
            seen.insert(path.display().to_string(), fact);
        }
    }
    seen
}

type Operation = (&'static str, fn(&Daemon, &Case) -> Option<HttpResponse>);

fn query(case: &Case) -> String {
    // `&`, `#`, `+` and `%` have a meaning in a query, so the raw path is sent decoded once.
    encode(&case.decoded)
}

fn plain_name(case: &Case) -> bool {
    !case.decoded.bytes().any(|byte| byte.is_ascii_control() || byte == b'"')
}

const OPERATIONS: [Operation; 27] = [
    ("runtime download", |daemon, case| Some(daemon.get(&format!("/download/{}", case.raw)))),
    ("runtime list", |daemon, case| Some(daemon.get(&format!("/list/{}", case.raw)))),
    ("runtime exists", |daemon, case| Some(daemon.get(&format!("/exists/{}", case.raw)))),
    ("runtime upload", |daemon, case| plain_name(case).then(|| daemon.upload(&case.decoded, b"written"))),
    ("workspace get", |daemon, case| Some(daemon.get(&format!("/v1/files/{}", case.raw)))),
    ("workspace head", |daemon, case| Some(daemon.send("HEAD", &format!("/v1/files/{}", case.raw), b""))),
    ("workspace put", |daemon, case| {
        Some(daemon.send("PUT", &format!("/v1/files/{}?mode=0777", case.raw), b"written"))
    }),
    ("workspace form", |daemon, case| {
        let form = form("file", Some("x"), None, b"written");
        let path = format!("/v1/files/{}", case.raw);
        Some(send(daemon.address, "PUT", &path, &[("content-type", &form_type())], &form))
    }),
    ("workspace delete", |daemon, case| {
        Some(daemon.send("DELETE", &format!("/v1/files/{}?recursive=true", case.raw), b""))
    }),
    ("native read", |daemon, case| Some(daemon.get(&format!("/sandbox/v1/files?path={}", query(case))))),
    ("native write", |daemon, case| {
        Some(daemon.send("PUT", &format!("/sandbox/v1/files?path={}", query(case)), b"written"))
    }),
    ("native append", |daemon, case| {
        Some(daemon.send("PUT", &format!("/sandbox/v1/files?append=true&path={}", query(case)), b"written"))
    }),
    ("native stat", |daemon, case| {
        Some(daemon.get(&format!("/sandbox/v1/files/stat?follow=true&path={}", query(case))))
    }),
    ("native list", |daemon, case| Some(daemon.get(&format!("/sandbox/v1/files/list?path={}", query(case))))),
    ("native glob", |daemon, case| {
        Some(daemon.get(&format!("/sandbox/v1/files/glob?pattern=**&path={}", query(case))))
    }),
    ("native search", |daemon, case| {
        Some(daemon.get(&format!("/sandbox/v1/files/search?pattern={MARKER}&path={}", query(case))))
    }),
    ("native mkdir", |daemon, case| Some(daemon.post("/sandbox/v1/files/mkdir", &json!({"path": case.decoded})))),
    ("native chmod", |daemon, case| {
        Some(daemon.post("/sandbox/v1/files/chmod", &json!({"path": case.decoded, "mode": "0000"})))
    }),
    ("native copy", |daemon, case| {
        Some(daemon.post("/sandbox/v1/files/copy", &json!({"from": case.decoded, "to": "copied", "overwrite": true})))
    }),
    ("native copy to", |daemon, case| {
        Some(
            daemon.post(
                "/sandbox/v1/files/copy",
                &json!({"from": "traps/in.txt", "to": case.decoded, "overwrite": true}),
            ),
        )
    }),
    ("native move", |daemon, case| {
        Some(daemon.post("/sandbox/v1/files/move", &json!({"from": case.decoded, "to": "moved", "overwrite": true})))
    }),
    ("native tar up", |daemon, case| {
        Some(daemon.send("PUT", &format!("/sandbox/v1/files/tar?path={}", query(case)), &archive()))
    }),
    ("native watch", |daemon, case| {
        // A watch never ends; a path that stat refuses is refused for watches, too.
        let path = query(case);
        let seen = daemon.get(&format!("/sandbox/v1/files/stat?follow=true&path={path}"));
        (seen.status != 200).then(|| daemon.get(&format!("/sandbox/v1/files/watch?path={path}")))
    }),
    ("native exec cwd", |daemon, case| {
        Some(daemon.post("/sandbox/v1/exec", &json!({"argv": ["/bin/ls", "-a"], "cwd": case.decoded})))
    }),
    ("process service cwd", |daemon, case| Some(list_over_grpc(daemon, &case.decoded))),
    ("native tar", |daemon, case| Some(daemon.get(&format!("/sandbox/v1/files/tar?path={}", query(case))))),
    ("native delete", |daemon, case| {
        Some(daemon.send("DELETE", &format!("/sandbox/v1/files?recursive=true&path={}", query(case)), b""))
    }),
];

/// An archive with one file in a directory.
fn archive() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(7);
    header.set_mode(0o644);
    archive.append_data(&mut header, "unpacked/file", b"written".as_slice()).expect("an entry");
    archive.into_inner().expect("an archive")
}

/// `ls` in a working directory, over gRPC; D-085.
fn list_over_grpc(daemon: &Daemon, cwd: &str) -> HttpResponse {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let config = ProcessConfig {
        command: vec!["/bin/ls".into(), "-a".into()],
        cwd: Some(cwd.to_owned()),
        ..ProcessConfig::default()
    };
    match runtime.block_on(grpc::execute(daemon, config)) {
        Ok(done) => HttpResponse { status: 200, headers: Vec::new(), body: done.stdout.to_vec() },
        Err(status) => {
            assert_ne!(status.code(), tonic::Code::Internal, "{cwd:?}: {status}");
            HttpResponse { status: 400, headers: Vec::new(), body: status.message().as_bytes().to_vec() }
        }
    }
}

/// D-028, D-035, D-036, D-037, D-071, D-072, D-085
fn run_corpus(daemon: &Daemon) {
    std::fs::write(daemon.outside.join("sentinel"), MARKER).expect("a file");
    std::fs::write(daemon.outside.join("hard-target"), "hard").expect("a file");
    std::fs::create_dir(daemon.outside.join("outside-only")).expect("a directory");
    std::fs::write(daemon.outside.join("outside-only/inner"), MARKER).expect("a file");
    let cases = cases(&daemon.outside);
    assert!(cases.len() >= 200, "{} cases", cases.len());
    let before = snapshot(&daemon.outside);
    for (name, operation) in OPERATIONS {
        for directory in [daemon.base(), daemon.workspace()] {
            create_forbidden_files(&directory.join("traps"), &daemon.outside);
        }
        for case in &cases {
            let Some(response) = operation(daemon, case) else { continue };
            // A response may repeat the path of its request.
            let text = response.text().replace(&case.decoded, "");
            assert!(!text.contains(MARKER), "{name} {case:?} revealed a sentinel: {text}");
            assert!(!text.contains("outside-only"), "{name} {case:?} listed the outside: {text}");
            assert!(
                response.status < 500 || text.contains("upload failed"),
                "{name} {case:?}: {} {text}",
                response.status
            );
        }
        assert_eq!(snapshot(&daemon.outside), before, "{name} changed the outside");
    }
}

#[test]
fn natural_mode_is_confined() {
    run_corpus(&daemon().start());
}

#[test]
fn strict_mode_is_confined() {
    run_corpus(&daemon().flag("--mode=strict").start());
}

#[test]
fn natural_mode_is_confined_without_openat2() {
    run_corpus(&daemon().before_exec(without_openat2::install).start());
}

#[test]
fn strict_mode_is_confined_without_openat2() {
    run_corpus(&daemon().flag("--mode=strict").before_exec(without_openat2::install).start());
}

/// Names that exist outside and names that do not get the same response, so that existence is not revealed.
#[test]
fn the_answer_does_not_depend_on_what_is_outside() {
    let daemon = daemon().start();
    for directory in [daemon.base(), daemon.workspace()] {
        std::fs::write(daemon.outside.join("hard-target"), "hard").expect("a file");
        create_forbidden_files(&directory.join("traps"), &daemon.outside);
    }
    for way in ["traps/abs-dir", "traps/rel-dir", "traps/chain", "../../..", "traps/magic-root"] {
        for endpoint in ["/exists/", "/download/", "/list/", "/v1/files/", "/sandbox/v1/files/stat?path="] {
            let ask = |name: &str| daemon.get(&format!("{endpoint}{}", encode(&format!("{way}/{name}"))));
            let (present, absent) = (ask("sentinel"), ask("nothing-there"));
            assert_eq!((present.status, &present.body), (absent.status, &absent.body), "{endpoint} {way}");
            assert_eq!(present.status, 403, "{endpoint} {way}");
        }
    }
}

/// A directory and a link out of the root are swapped continuously; no request gets through.
fn race(daemon: &Daemon) {
    let outside = &daemon.outside;
    std::fs::write(outside.join("sentinel"), MARKER).expect("a file");
    for directory in [daemon.base(), daemon.workspace()] {
        std::fs::create_dir(directory.join("race")).expect("a directory");
        std::fs::write(directory.join("race/sentinel"), "inside").expect("a file");
        symlink(outside, directory.join("other")).expect("a link");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for directory in [daemon.base(), daemon.workspace()] {
                    let (one, two) = (directory.join("race"), directory.join("other"));
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    let _ = rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &two, flags);
                }
            }
        });
        for round in 0..300 {
            for response in [
                daemon.get("/download/race/sentinel"),
                daemon.get("/list/race"),
                daemon.upload("race/evil", b"x"),
                daemon.get("/v1/files/race/sentinel"),
                daemon.send("PUT", "/v1/files/race/evil", b"x"),
                daemon.send("DELETE", "/v1/files/race/evil", b""),
                daemon.get("/sandbox/v1/files/tar?path=race"),
            ] {
                let text = response.text();
                assert!(!text.contains(MARKER) && !text.contains("hard-target"), "round {round}: {text}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(!outside.join("evil").exists(), "something was written outside");
    assert_eq!(std::fs::read_to_string(outside.join("sentinel")).expect("a file"), MARKER);
}

#[test]
fn swapped_links_never_leave_the_root() {
    race(&daemon().start());
}

#[test]
fn swapped_links_never_leave_the_root_without_openat2() {
    race(&daemon().before_exec(without_openat2::install).start());
}

/// With `/` as the root: kernel file systems, devices and magic links are refused however they are reached.
#[test]
fn the_kernels_files_are_refused_in_the_whole_root() {
    let daemon = daemon().whole_root().start();
    create_forbidden_files_in_whole_root(&daemon);
    for path in [
        "/proc/self/environ",
        "/proc/self/root/etc/passwd",
        "/proc/self/cwd/x",
        "/proc/1/maps",
        "/proc",
        "/sys/kernel",
        "/sys/kernel/profiling",
        "/dev/null",
        "/dev/zero",
        "/dev/fd/0",
        "/dev/stdin",
        "magic",
        "magic/etc/passwd",
    ] {
        for endpoint in ["/download/", "/sandbox/v1/files?path=", "/sandbox/v1/files/tar?path="] {
            let response = daemon.get(&format!("{endpoint}{}", encode(path)));
            assert!(
                matches!(response.status, 403 | 404 | 409),
                "{endpoint} {path}: {} {}",
                response.status,
                response.text()
            );
        }
        assert!(daemon.upload(path, b"x").status >= 400, "{path}");
        assert!(daemon.send("PUT", &format!("/sandbox/v1/files?path={}", encode(path)), b"x").status >= 400, "{path}");
    }
    assert_eq!(daemon.get("/list/%2F").status, 200);
    assert_eq!(daemon.get("/download/%2Fetc%2Fpasswd").status, 200, "the sandbox's own files are its own");
}

fn create_forbidden_files_in_whole_root(daemon: &Daemon) {
    symlink("/proc/self/root", daemon.base().join("magic")).expect("a link");
    assert!(daemon.sandbox().is_dir());
}
