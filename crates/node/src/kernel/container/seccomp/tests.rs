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
    run(&program(FileModes::Any), ARCHITECTURE, number as u32, arguments)
}

const EPERM: u32 = errno(libc::EPERM);
const ENOSYS: u32 = errno(libc::ENOSYS);

#[test]
fn tree_agrees_with_the_tables_for_every_number() {
    for modes in [FileModes::Any, FileModes::NoSetId] {
        let program = program(modes);
        for number in 0..2_000u32 {
            let expected = match action_for(number, modes) {
                _ if number >= LAST_NUMBER => ENOSYS,
                CallAction::Return(value) => value,
                _ => continue,
            };
            assert_eq!(run(&program, ARCHITECTURE, number, [0; 6]), expected, "call {number}");
        }
    }
}

#[test]
fn another_architecture_is_killed() {
    assert_eq!(run(&program(FileModes::Any), 0x4000_0003, libc::SYS_read as u32, [0; 6]), KILL);
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

/// The mode of a call that creates nothing is whatever the register holds.
#[test]
fn set_id_modes_are_refused_where_a_folder_of_the_host_is_written() {
    let program = program(FileModes::NoSetId);
    for call in MODE_CALLS {
        let result = |mode: u64, flags: libc::c_int| {
            let mut arguments = [0; 6];
            arguments[call.mode as usize] = mode;
            if let Some(argument) = call.flags {
                arguments[argument as usize] = flags as u64;
            }
            run(&program, ARCHITECTURE, call.number as u32, arguments)
        };
        for flags in [libc::O_CREAT | libc::O_EXCL, libc::O_TMPFILE | libc::O_RDWR] {
            assert_eq!(result(0o755, flags), ALLOW, "{}", call.name);
            assert_eq!(result(0o1777, flags), ALLOW, "{}", call.name);
            for mode in [0o4000, 0o4755, 0o2755, 0xdead_0000_0000_4755_u64 & !0o777 | 0o4755] {
                assert_eq!(result(mode, flags), EPERM, "{} {mode:o}", call.name);
                assert_eq!(result_of(call.number, [mode; 6]), ALLOW, "{} elsewhere", call.name);
            }
        }
        if call.flags.is_some() {
            assert_eq!(result(0o4755, libc::O_RDWR | libc::O_DIRECTORY), ALLOW, "{} creates nothing", call.name);
        }
    }
    assert_eq!(run(&program, ARCHITECTURE, libc::SYS_openat2 as u32, [0; 6]), ENOSYS);
}

#[test]
fn programs_are_small() {
    for (modes, limit) in [(FileModes::Any, 260), (FileModes::NoSetId, 330)] {
        let length = program(modes).len();
        assert!(length < limit, "{length} instructions");
    }
}
