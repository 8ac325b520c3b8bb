//! The seccomp filter as an OCI configuration, from the same tables as the built-in one.

use serde_json::{Value, json};

use crate::kernel::container::seccomp::{self, FileModes};

/// The filter. Unknown calls return ENOSYS, dangerous ones EPERM.
pub(super) fn profile(modes: FileModes) -> Value {
    let allow = "SCMP_ACT_ALLOW";
    let equal = |index: u32, values: &[u32], names: &[&str]| -> Vec<Value> {
        let rule = |value: &u32| {
            json!({"names": names, "action": allow,
                "args": [{"index": index, "value": value, "op": "SCMP_CMP_EQ"}]})
        };
        values.iter().map(rule).collect()
    };
    let mut rules = vec![
        json!({"names": seccomp::allowed_names(modes), "action": allow}),
        json!({"names": seccomp::denied_names(), "action": "SCMP_ACT_ERRNO", "errnoRet": libc::EPERM}),
        // Threads and processes are allowed, namespaces are not.
        json!({"names": ["clone", "unshare"], "action": allow, "args": [
            {"index": 0, "value": seccomp::NAMESPACE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]}),
        json!({"names": ["ioctl"], "action": allow, "args": [
            {"index": 1, "value": libc::TIOCSTI, "op": "SCMP_CMP_NE"}]}),
    ];
    rules.extend(equal(0, seccomp::FAMILIES, &["socket", "socketpair"]));
    rules.extend(equal(0, seccomp::PERSONALITIES, &["personality"]));
    if modes == FileModes::NoSetId {
        let without = |name: &str, index: u32, bits: u32| {
            json!({"names": [name], "action": allow, "args": [
                {"index": index, "value": bits, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]})
        };
        for (name, mode, flags) in seccomp::mode_calls() {
            rules.push(without(name, mode, seccomp::SET_ID_BITS));
            rules.extend(flags.map(|flags| without(name, flags, seccomp::CREATING_FLAGS)));
        }
    }
    let architecture = if cfg!(target_arch = "aarch64") { "SCMP_ARCH_AARCH64" } else { "SCMP_ARCH_X86_64" };
    json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": libc::ENOSYS, "architectures": [architecture],
        "syscalls": rules})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_named_as_the_kernel_names_them() {
        let rules = profile(FileModes::Any);
        let names = |index: usize| -> Vec<String> {
            serde_json::from_value(rules["syscalls"][index]["names"].clone()).unwrap()
        };
        assert!(names(0).contains(&"openat".to_owned()), "{:?}", names(0));
        assert!(names(1).contains(&"keyctl".to_owned()), "{:?}", names(1));
        for special in ["clone3", "clone", "socket", "ioctl"] {
            assert!(!names(0).contains(&special.to_owned()), "{special} depends on its arguments");
        }
        let careful = profile(FileModes::NoSetId)["syscalls"].to_string();
        assert!(!careful.contains("openat2") && careful.contains("fchmodat2"), "{careful}");
    }
}
