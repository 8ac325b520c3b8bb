//! The seccomp filter: a check of the architecture, a decision tree over ranges of call numbers, and a few calls that
//! depend on their arguments. Everything not on the list returns ENOSYS, as on an older kernel, so that programs fall
//! back.
//!
//! A tree of about a hundred instructions costs a tenth of a linear list of the same calls, on every system call and at
//! every start.

use libc::sock_filter;

mod tables;

use crate::runtime::{ContainerSpec, MountSource};
use tables::{ALLOWED, ALLOWED_NAMES, DENIED, DENIED_NAMES, MODE_CALLS, ModeCall};

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_GREATER_OR_EQUAL: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const JUMP_SET: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const fn errno(number: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | (number as u32)
}

/// All flags of clone and unshare that create a namespace.
pub(crate) const NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32
    | 0x80; // CLONE_NEWTIME

/// Mode bits that make a program run as the file's owner or group.
pub(crate) const SET_ID_BITS: u32 = libc::S_ISUID | libc::S_ISGID;

/// Flags of open with which the mode counts: those that create a file.
pub(crate) const CREATING_FLAGS: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;

/// The modes that files may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileModes {
    Any,
    /// All but set-user-id and set-group-id.
    NoSetId,
}

impl FileModes {
    /// A file in a folder of the host belongs to the folder's owner there, where set-user-id would count: mounts of the
    /// container are `nosuid`, those of the host are not.
    pub(crate) fn of(spec: &ContainerSpec) -> Self {
        let writes =
            spec.mounts.iter().any(|mount| matches!(mount.source, MountSource::Host { .. }) && !mount.read_only);
        if writes { Self::NoSetId } else { Self::Any }
    }
}

/// The filters of all containers. They are computed once.
pub(crate) struct Filters {
    any_mode: Vec<sock_filter>,
    no_set_id: Vec<sock_filter>,
}

impl Filters {
    pub(crate) fn new() -> Self {
        Self { any_mode: program(FileModes::Any), no_set_id: program(FileModes::NoSetId) }
    }

    pub(crate) fn of(&self, spec: &ContainerSpec) -> &[sock_filter] {
        match FileModes::of(spec) {
            FileModes::Any => &self.any_mode,
            FileModes::NoSetId => &self.no_set_id,
        }
    }
}

/// What the filter does with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallAction {
    Return(u32),
    /// EPERM when any of these bits is set in the argument, else allowed.
    DenyBits {
        argument: u32,
        bits: u32,
    },
    /// EPERM when any of [`SET_ID_BITS`] is set in the mode, and the call creates a file.
    DenySetIdOfNew {
        flags: u32,
        mode: u32,
    },
    /// EPERM when the argument's low half is one of these, else allowed.
    DenyValues {
        argument: u32,
        values: &'static [u32],
    },
    /// Allowed when the argument's low half is one of these, else this error.
    AllowValues {
        argument: u32,
        values: &'static [u32],
        otherwise: u32,
    },
}

/// Socket families a sandbox may use: unix, inet, netlink (for listing interfaces), inet6.
pub(crate) const FAMILIES: &[u32] =
    &[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_NETLINK as u32, libc::AF_INET6 as u32];

/// Terminal requests that push input into another program's terminal: TIOCSTI, TIOCLINUX.
const TERMINAL_INJECTION: &[u32] = &[0x5412, 0x541c];

/// Personalities that are harmless: Linux, with or without address randomisation.
pub(crate) const PERSONALITIES: &[u32] = &[0, 0x0004_0000, 0x0020_0000, 0xffff_ffff];

/// Calls that are allowed with any arguments, by the kernel's names.
pub(crate) fn allowed_names(modes: FileModes) -> Vec<&'static str> {
    let mut names = names(ALLOWED_NAMES);
    if modes == FileModes::NoSetId {
        names.retain(|name| *name != "openat2" && MODE_CALLS.iter().all(|call| call.name != *name));
    }
    names
}

/// Calls that give a file its mode: name, argument with the mode, and argument with flags if the mode counts only with
/// [`CREATING_FLAGS`].
pub(crate) fn mode_calls() -> impl Iterator<Item = (&'static str, u32, Option<u32>)> {
    MODE_CALLS.iter().map(|call| (call.name, call.mode, call.flags))
}

/// Calls that always fail with EPERM.
pub(crate) fn denied_names() -> Vec<&'static str> {
    names(DENIED_NAMES)
}

fn names(calls: &[&'static str]) -> Vec<&'static str> {
    calls.iter().map(|call| call.rsplit_once("SYS_").map_or(*call, |(_, name)| name)).collect()
}

fn action_for(number: u32, modes: FileModes) -> CallAction {
    let call = i64::from(number);
    if modes == FileModes::NoSetId {
        if let Some(ModeCall { mode, flags, .. }) = MODE_CALLS.iter().find(|known| known.number == call) {
            return match *flags {
                Some(flags) => CallAction::DenySetIdOfNew { flags, mode: *mode },
                None => CallAction::DenyBits { argument: *mode, bits: SET_ID_BITS },
            };
        }
        // A filter cannot read its mode from memory; programs fall back to openat.
        if call == libc::SYS_openat2 {
            return CallAction::Return(errno(libc::ENOSYS));
        }
    }
    if call == libc::SYS_clone {
        return CallAction::DenyBits { argument: 0, bits: NAMESPACE_FLAGS };
    }
    if call == libc::SYS_unshare {
        return CallAction::DenyBits { argument: 0, bits: NAMESPACE_FLAGS };
    }
    if call == libc::SYS_ioctl {
        return CallAction::DenyValues { argument: 1, values: TERMINAL_INJECTION };
    }
    if call == libc::SYS_socket || call == libc::SYS_socketpair {
        return CallAction::AllowValues { argument: 0, values: FAMILIES, otherwise: errno(libc::EAFNOSUPPORT) };
    }
    if call == libc::SYS_personality {
        return CallAction::AllowValues { argument: 0, values: PERSONALITIES, otherwise: errno(libc::EPERM) };
    }
    if DENIED.contains(&call) {
        return CallAction::Return(errno(libc::EPERM));
    }
    if ALLOWED.contains(&call) {
        return CallAction::Return(ALLOW);
    }
    CallAction::Return(errno(libc::ENOSYS))
}

/// A range of call numbers with the same action: from `first` up to the next range.
#[derive(Debug, Clone, Copy)]
struct Range {
    first: u32,
    action: CallAction,
}

/// Upper bound of call numbers; all from here on are unknown.
const LAST_NUMBER: u32 = 1_024;

fn ranges(modes: FileModes) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for number in 0..=LAST_NUMBER {
        let action =
            if number == LAST_NUMBER { CallAction::Return(errno(libc::ENOSYS)) } else { action_for(number, modes) };
        if ranges.last().is_none_or(|last| last.action != action) {
            ranges.push(Range { first: number, action });
        }
    }
    ranges
}

/// The whole filter for this architecture.
pub(crate) fn program(modes: FileModes) -> Vec<sock_filter> {
    let mut code = vec![
        statement(LOAD, OFFSET_ARCHITECTURE),
        jump(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        statement(RETURN, KILL),
        statement(LOAD, OFFSET_NUMBER),
    ];
    emit_tree(&ranges(modes), &mut code);
    code
}

/// Binary search over the ranges. Both halves are complete trees that always return, so the jump's distance is the size
/// of the left half.
fn emit_tree(ranges: &[Range], code: &mut Vec<sock_filter>) {
    match ranges {
        [] => code.push(statement(RETURN, errno(libc::ENOSYS))),
        [only] => emit_action(only.action, code),
        _ => {
            let (left, right) = ranges.split_at(ranges.len() / 2);
            let mut left_code = Vec::new();
            emit_tree(left, &mut left_code);
            let middle = right.first().map_or(0, |range| range.first);
            match u8::try_from(left_code.len()) {
                Ok(distance) => code.push(jump(JUMP_GREATER_OR_EQUAL, middle, distance, 0)),
                Err(_) => {
                    // Too far for a conditional jump: step over an unconditional one.
                    code.push(jump(JUMP_GREATER_OR_EQUAL, middle, 0, 1));
                    code.push(statement(0x05, left_code.len() as u32)); // BPF_JMP | BPF_JA
                }
            }
            code.append(&mut left_code);
            emit_tree(right, code);
        }
    }
}

fn emit_action(action: CallAction, code: &mut Vec<sock_filter>) {
    let low_half = |argument: u32| OFFSET_ARGUMENTS + 8 * argument;
    match action {
        CallAction::Return(value) => code.push(statement(RETURN, value)),
        CallAction::DenyBits { argument, bits } => {
            code.push(statement(LOAD, low_half(argument)));
            code.push(jump(JUMP_SET, bits, 0, 1));
            code.push(statement(RETURN, errno(libc::EPERM)));
            code.push(statement(RETURN, ALLOW));
        }
        CallAction::DenySetIdOfNew { flags, mode } => {
            code.push(statement(LOAD, low_half(flags)));
            code.push(jump(JUMP_SET, CREATING_FLAGS, 0, 2));
            code.push(statement(LOAD, low_half(mode)));
            code.push(jump(JUMP_SET, SET_ID_BITS, 1, 0));
            code.push(statement(RETURN, ALLOW));
            code.push(statement(RETURN, errno(libc::EPERM)));
        }
        CallAction::DenyValues { argument, values } => {
            emit_values(low_half(argument), values, errno(libc::EPERM), ALLOW, code);
        }
        CallAction::AllowValues { argument, values, otherwise } => {
            emit_values(low_half(argument), values, ALLOW, otherwise, code);
        }
    }
}

/// Compares one word with a few values.
fn emit_values(offset: u32, values: &[u32], on_match: u32, otherwise: u32, code: &mut Vec<sock_filter>) {
    code.push(statement(LOAD, offset));
    for (index, value) in values.iter().enumerate() {
        let to_match = values.len() - index;
        code.push(jump(JUMP_EQUAL, *value, to_match as u8, 0));
    }
    code.push(statement(RETURN, otherwise));
    code.push(statement(RETURN, on_match));
}

fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests;
