//! Runs the filter in a small interpreter of the same instructions that the kernel runs.

use super::*;

/// The kernel's result for this call.
fn run(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut data = [0u8; 64];
    data[0..4].copy_from_slice(&number.to_le_bytes());
    data[4..8].copy_from_slice(&architecture.to_le_bytes());
    for (index, argument) in arguments.iter().enumerate() {
        data[16 + index * 8..24 + index * 8].copy_from_slice(&argument.to_le_bytes());
    }
    let (mut accumulator, mut at) = (0u32, 0usize);
    loop {
        let step = program[at];
        at += 1;
        let offset = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
        match step.code {
            LOAD => {
                let start = step.k as usize;
                accumulator = u32::from_le_bytes(data[start..start + 4].try_into().unwrap());
            }
            JUMP_EQUAL => at += offset(accumulator == step.k),
            JUMP_GREATER_OR_EQUAL => at += offset(accumulator >= step.k),
            JUMP_SET => at += offset(accumulator & step.k != 0),
            0x05 => at += step.k as usize,
            RETURN => return step.k,
            other => panic!("unexpected instruction {other:#x}"),
        }
    }
}

fn result_of(number: i64, arguments: [u64; 6]) -> u32 {
    run(&program(), ARCHITECTURE, number as u32, arguments)
}

const EPERM: u32 = errno(libc::EPERM);
const ENOSYS: u32 = errno(libc::ENOSYS);

#[test]
fn tree_agrees_with_the_tables_for_every_number() {
    let program = program();
    for number in 0..2_000u32 {
        let expected = match action_for(number) {
            _ if number >= LAST_NUMBER => ENOSYS,
            CallAction::Return(value) => value,
            _ => continue,
        };
        assert_eq!(run(&program, ARCHITECTURE, number, [0; 6]), expected, "call {number}");
    }
}

#[test]
fn another_architecture_is_killed() {
    assert_eq!(run(&program(), 0x4000_0003, libc::SYS_read as u32, [0; 6]), KILL);
}

#[test]
fn x32_numbers_are_unknown() {
    assert_eq!(result_of(0x4000_0000 | libc::SYS_read, [0; 6]), ENOSYS);
}

#[test]
fn clone3_and_unknown_calls_return_enosys() {
    assert_eq!(result_of(libc::SYS_clone3, [0; 6]), ENOSYS);
    assert_eq!(result_of(999, [0; 6]), ENOSYS);
}

#[test]
fn kernel_attack_surface_is_refused() {
    for call in [
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_setns,
        libc::SYS_open_by_handle_at,
        libc::SYS_init_module,
        libc::SYS_kexec_load,
        libc::SYS_reboot,
    ] {
        assert_eq!(result_of(call, [0; 6]), EPERM, "call {call}");
    }
}

/// The kernel has one number of AIO requests for all users: one sandbox could take them all. ENOSYS is what programs
/// get from a kernel without AIO, and they fall back to threads.
#[test]
fn asynchronous_io_is_unknown() {
    for call in [libc::SYS_io_setup, libc::SYS_io_submit, libc::SYS_io_getevents, libc::SYS_io_destroy] {
        assert_eq!(result_of(call, [0; 6]), ENOSYS, "call {call}");
    }
}

#[test]
fn clone_and_unshare_are_allowed_only_without_namespaces() {
    let threads = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
    assert_eq!(result_of(libc::SYS_clone, [threads, 0, 0, 0, 0, 0]), ALLOW);
    assert_eq!(result_of(libc::SYS_clone, [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0]), EPERM);
    assert_eq!(result_of(libc::SYS_unshare, [libc::CLONE_FILES as u64, 0, 0, 0, 0, 0]), ALLOW);
    assert_eq!(result_of(libc::SYS_unshare, [libc::CLONE_NEWNS as u64, 0, 0, 0, 0, 0]), EPERM);
    assert_eq!(result_of(libc::SYS_unshare, [0x80, 0, 0, 0, 0, 0]), EPERM);
}

#[test]
fn terminal_injection_is_refused_with_garbage_in_the_high_half() {
    assert_eq!(result_of(libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0]), EPERM);
    assert_eq!(result_of(libc::SYS_ioctl, [0, 0xdead_0000_0000_5412, 0, 0, 0, 0]), EPERM);
    assert_eq!(result_of(libc::SYS_ioctl, [0, 0x5413, 0, 0, 0, 0]), ALLOW);
}

#[test]
fn only_everyday_socket_families_exist() {
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK] {
        assert_eq!(result_of(libc::SYS_socket, [family as u64, 0, 0, 0, 0, 0]), ALLOW);
    }
    for family in [libc::AF_PACKET, libc::AF_ALG, libc::AF_VSOCK, libc::AF_BLUETOOTH] {
        assert_eq!(result_of(libc::SYS_socket, [family as u64, 0, 0, 0, 0, 0]), errno(libc::EAFNOSUPPORT));
    }
}

#[test]
fn program_is_small() {
    let length = program().len();
    assert!(length < 260, "{length} instructions");
}
