//! Egress for Pods of an ordinary user: `pasta` forwards their packets through sockets of that user. The Pod's policies
//! are nftables rules in the Pod's own network namespace, which processes inside cannot change; they are written before
//! the uplink exists.

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;

use super::addresses::PodNetwork;
use super::filter::{self, FilterRule, Match, Verdict, rule};
use super::nft::{Batch, NftSocket};
use crate::kernel::config::HelperProgram;
use crate::kernel::container::oci::find_program;
use crate::kernel::sys::{self, Fork};
use crate::runtime::PodRules;

/// `argv[0]` of the helper that stops pasta when its Pod ends.
const HELPER_NAME: &str = "agent-sandbox-egress";

/// Name of the Pod's interface, the same as with a veth.
const POD_INTERFACE: &str = "eth0";

/// Our nftables table in the Pod's namespace, where it is the only one.
const TABLE: &str = "agent-sandbox";

/// Timeout for pasta to set up the uplink.
const DEADLINE: Duration = Duration::from_secs(10);

/// The device that `pasta` needs for the Pod's interface.
pub(crate) const TUN: &str = "/dev/net/tun";

/// The path of `pasta`, if it is installed and has what it needs.
pub(crate) fn program() -> Option<PathBuf> {
    let is_usable = rustix::fs::access(TUN, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK).is_ok();
    find_program("pasta").filter(|program| program.is_file() && is_usable)
}

/// The connection of one Pod to the outside.
pub(crate) struct Uplink<'a> {
    pub(crate) address: Ipv4Addr,
    pub(crate) network: PodNetwork,
    /// The supervisor's pid: a process in the Pod's network namespace and in the user namespace above it.
    pub(crate) supervisor: u32,
    /// Log file of `pasta`.
    pub(crate) log: &'a Path,
}

/// Writes the Pod's rules through a socket of its own network namespace.
pub(crate) fn set_rules(socket: OwnedFd, uplink: &Uplink<'_>, rules: &PodRules, host: &[Ipv4Addr]) -> io::Result<()> {
    const INPUT: u32 = 1;
    const OUTPUT: u32 = 3;
    let mut batch = Batch::new(TABLE);
    batch.add_table("");
    let chains = [
        ("input", INPUT, incoming()),
        ("output", OUTPUT, outgoing(uplink.address, uplink.network, rules, host, resolvers())),
    ];
    for (chain, hook, list) in &chains {
        batch.add_base_chain(chain, "filter", *hook, 0);
        batch.flush_chain(chain);
        list.iter().for_each(|rule| batch.add_rule(chain, rule));
    }
    batch.commit(&NftSocket::from_fd(socket))
}

/// Replies, and the Pod's own loopback traffic.
fn incoming() -> Vec<FilterRule> {
    vec![
        rule(vec![Match::FromInterfaces("lo".to_owned())], Verdict::Accept),
        rule(vec![Match::Established], Verdict::Accept),
        rule(Vec::new(), Verdict::Drop),
    ]
}

/// Never to the host or to other Pods, never from another address, and only where a policy allows it.
fn outgoing(
    own: Ipv4Addr,
    network: PodNetwork,
    rules: &PodRules,
    host: &[Ipv4Addr],
    resolvers: Vec<Ipv4Addr>,
) -> Vec<FilterRule> {
    let to = |address, prefix| Match::Destination { address, prefix, inverted: false };
    let mut list = vec![
        rule(vec![Match::ToInterfaces("lo".to_owned())], Verdict::Accept),
        rule(vec![Match::NotIpv4], Verdict::Drop),
        rule(vec![Match::Established], Verdict::Accept),
    ];
    if resolvers.into_iter().any(|resolver| crate::kubelet::policy::may_resolve(rules, resolver.into())) {
        for protocol in [libc::IPPROTO_UDP, libc::IPPROTO_TCP] {
            let port = Match::Ports { first: 53, last: 53 };
            let question = vec![to(network.gateway(), 32), Match::Protocol(protocol as u8), port];
            list.push(rule(question, Verdict::Accept));
        }
    }
    list.extend(host.iter().map(|address| rule(vec![to(*address, 32)], Verdict::Drop)));
    list.push(rule(vec![to(network.base, network.prefix)], Verdict::Drop));
    list.extend(filter::egress_rules(own, rules));
    list
}

/// The machine's DNS resolvers.
fn resolvers() -> Vec<Ipv4Addr> {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let ipv4 = |upstream: SocketAddr| match upstream.ip() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    };
    agent_sandbox_egress::upstreams(&text).into_iter().filter_map(ipv4).collect()
}

/// All addresses of the host.
pub(crate) fn host_addresses() -> Vec<Ipv4Addr> {
    parse_local(&fs::read_to_string("/proc/net/fib_trie").unwrap_or_default())
}

/// Local addresses in a routing table dump: each is on the line before the one that says so.
fn parse_local(trie: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in trie.lines() {
        if let Some((_, address)) = line.split_once("|-- ") {
            last = address.trim().parse::<Ipv4Addr>().ok();
        } else if line.contains("/32 host LOCAL") {
            found.extend(last);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// A netlink socket that reports changes of the host's addresses.
pub(crate) fn address_changes() -> io::Result<AsyncFd<OwnedFd>> {
    const ADDRESSES: u32 = 0x10;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, ADDRESSES))?;
    sys::register(socket)
}

/// Waits for the next change.
pub(crate) async fn next_change(changes: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let mut buffer = [0; 8192];
    loop {
        let mut ready = changes.readable().await?;
        match ready.try_io(|socket| Ok(rustix::net::recv(socket.get_ref(), &mut buffer, RecvFlags::empty())?)) {
            Ok(Ok(_)) => return Ok(()),
            // Some notifications were lost, which is as good as one.
            Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
}

impl Uplink<'_> {
    /// Starts pasta unless it is running. The rules must be written before.
    pub(crate) fn open(&self, pasta: &Path, helper: &HelperProgram) -> io::Result<()> {
        if self.is_open() {
            return Ok(());
        }
        let mut watcher = Command::new(helper.path())
            .arg0(HELPER_NAME)
            .arg(self.supervisor.to_string())
            .arg(pasta)
            .args(self.arguments())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.log)?)
            .spawn()?;
        let until = Instant::now() + DEADLINE;
        while !self.is_open() {
            if let Some(status) = watcher.try_wait()? {
                let message = fs::read_to_string(self.log).unwrap_or_default();
                let message = message.lines().rfind(|line| !line.contains("syslog")).unwrap_or_default().to_owned();
                return Err(io::Error::other(format!("pasta ended with {status}: {message}")));
            }
            if Instant::now() > until {
                watcher.kill()?;
                watcher.wait()?;
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            // Route changes in another namespace send no event.
            std::thread::sleep(Duration::from_millis(5));
        }
        // The helper outlives this process, as the Pod does; this thread only reaps it.
        std::thread::Builder::new().name("egress-reaper".into()).spawn(move || watcher.wait()).map(drop)
    }

    /// Whether the Pod has a default route.
    fn is_open(&self) -> bool {
        let routes = fs::read_to_string(format!("/proc/{}/net/route", self.supervisor)).unwrap_or_default();
        routes.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(POD_INTERFACE) && words.next() == Some("00000000")
        })
    }

    /// Nothing of the host is forwarded in either direction: no ports, and no loopback behind the gateway.
    fn arguments(&self) -> Vec<String> {
        let gateway = self.network.gateway().to_string();
        let mut words: Vec<String> =
            "-f -q -4 --config-net --no-map-gw --no-dhcp --no-icmp".split(' ').map(Into::into).collect();
        for option in ["-t", "-u", "-T", "-U"] {
            words.extend([option.to_owned(), "none".to_owned()]);
        }
        words.extend(["-I".into(), POD_INTERFACE.into(), "-a".into(), self.address.to_string()]);
        words.extend(["-n".into(), self.network.prefix.to_string(), "-g".into(), gateway.clone()]);
        words.extend(["--dns-forward".into(), gateway]);
        for kind in ["user", "net"] {
            words.extend([format!("--{kind}ns"), format!("/proc/{}/ns/{kind}", self.supervisor)]);
        }
        words
    }
}

/// Runs the helper and exits when this process was started as one.
#[expect(clippy::exit, reason = "a helper must never return into the embedding program's main")]
pub(crate) fn run_if_helper() {
    let mut arguments = std::env::args_os();
    if arguments.next().is_some_and(|name| name == HELPER_NAME) {
        let words: Vec<CString> = arguments.filter_map(|word| CString::new(word.as_bytes()).ok()).collect();
        std::process::exit(run_until_supervisor_exits(&words).unwrap_or(1));
    }
}

/// Runs a program until a process exits. Arguments: the process's pid, then the program and its arguments.
fn run_until_supervisor_exits(words: &[CString]) -> io::Result<i32> {
    let [pid, command @ ..] = words else { return Ok(2) };
    let pid = pid.to_str().ok().and_then(|pid| pid.parse().ok()).and_then(rustix::process::Pid::from_raw);
    let (Some(pid), Some(program)) = (pid, command.first()) else { return Ok(2) };
    let supervisor = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    rustix::process::setsid()?;
    let child = match sys::fork_with(0)? {
        Fork::Child => {
            // Some versions of pasta take an already ignored signal for a failure to ignore it.
            sys::reset_signals();
            let _ = sys::set_parent_death_signal(libc::SIGKILL);
            let error = sys::exec(program, command, &[]);
            eprintln!("{error}");
            sys::exit_now(127)
        }
        Fork::Parent(pid) => pid,
    };
    let pasta = rustix::process::Pid::from_raw(child).ok_or(io::ErrorKind::InvalidData)?;
    let pasta = rustix::process::pidfd_open(pasta, rustix::process::PidfdFlags::empty())?;
    let _ = sys::set_process_name(c"asb-egress");
    let mut ends = [
        rustix::event::PollFd::new(&supervisor, rustix::event::PollFlags::IN),
        rustix::event::PollFd::new(&pasta, rustix::event::PollFlags::IN),
    ];
    while let Err(rustix::io::Errno::INTR) = rustix::event::poll(&mut ends, None) {}
    let _ = sys::kill(child, libc::SIGKILL);
    Ok(libc::WEXITSTATUS(sys::wait_for(child)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Allow, IpBlock};

    #[test]
    fn local_addresses_are_read() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\nLocal:\n           |-- 10.1.2.3\n              /32 host LOCAL\n           |-- 10.1.2.255\n              /32 link BROADCAST\n           |-- 127.0.0.0\n              /8 host LOCAL\n              |-- 127.0.0.1\n                 /32 host LOCAL\n";
        assert_eq!(parse_local(trie), [Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::LOCALHOST]);
    }

    #[test]
    fn the_host_and_other_pods_stay_closed_before_any_permission() {
        let network = PodNetwork::parse("10.88.0.0/16").unwrap();
        let everything = Allow {
            peers: vec![IpBlock { address: [0, 0, 0, 0].into(), prefix: 0, except: Vec::new() }],
            ports: Vec::new(),
        };
        let rules = PodRules { egress: vec![everything], ingress: Vec::new(), by_domain: false };
        let host = [Ipv4Addr::new(192, 0, 2, 1)];
        let resolver = vec![Ipv4Addr::new(9, 9, 9, 9)];
        let list = outgoing(Ipv4Addr::new(10, 88, 0, 2), network, &rules, &host, resolver.clone());
        let at = |wanted: &dyn Fn(&FilterRule) -> bool| list.iter().position(wanted).unwrap();
        let allowed = at(&|rule| rule.verdict == Verdict::Return);
        for (address, prefix) in [(host[0], 32), (network.base, 16)] {
            let closed = Match::Destination { address, prefix, inverted: false };
            assert!(at(&|rule| rule.matches == [closed.clone()] && rule.verdict == Verdict::Drop) < allowed);
        }
        assert_eq!(list.last(), Some(&rule(Vec::new(), Verdict::Drop)));
        let asks = |list: &[FilterRule]| {
            list.iter().filter(|rule| rule.verdict == Verdict::Accept && rule.matches.len() == 3).count()
        };
        assert_eq!(asks(&list), 2, "DNS queries are allowed");
        let nothing = PodRules { egress: Vec::new(), ingress: Vec::new(), by_domain: false };
        assert_eq!(asks(&outgoing(Ipv4Addr::new(10, 88, 0, 2), network, &nothing, &host, resolver)), 0);
    }
}
