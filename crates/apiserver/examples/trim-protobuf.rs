//! Writes `data/kubernetes-protobuf.json`: for every message of the built-in kinds the number, JSON name and type of
//! each field, read from the struct tags of the Go modules `k8s.io/api` and `k8s.io/apimachinery`.
//!
//! Usage: `cargo run -p agent-sandbox-apiserver --example trim-protobuf -- <api module> <apimachinery module>`.
//! One message per line: field number → `name:flags:type`. An empty name is an inlined struct. Flags: `p` pointer
//! (zero values count), `o` omitted when empty. Types: `string bool int float
//! bytes`, `strings` (a message that holds a list), a message, `[]T`, `{}T`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

use regex::Regex;
use serde_json::{Value, json};

const PACKAGES: [&str; 14] = [
    "apps/v1",
    "authentication/v1",
    "authorization/v1",
    "autoscaling/v1",
    "coordination/v1",
    "core/v1",
    "discovery/v1",
    "events/v1",
    "networking/v1",
    "node/v1",
    "policy/v1",
    "rbac/v1",
    "scheduling/v1",
    "storage/v1",
];

type Messages = BTreeMap<String, BTreeMap<u32, String>>;

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let (Some(api), Some(machinery)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: trim-protobuf <k8s.io/api folder> <k8s.io/apimachinery folder>"));
    };
    let mut sources = vec![("meta/v1".to_owned(), Path::new(&machinery).join("pkg/apis/meta/v1"))];
    sources.extend(PACKAGES.map(|package| (package.to_owned(), Path::new(&api).join(package))));
    let mut messages = Messages::new();
    let mut aliases = BTreeMap::new();
    for (package, folder) in &sources {
        read_package(package, &fs::read_to_string(folder.join("types.go"))?, &mut messages, &mut aliases);
    }
    resolve(&mut messages, &aliases);
    fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/kubernetes-protobuf.json"), render(&messages))
}

/// Structs with tagged fields become messages; all other named types are aliases.
fn read_package(package: &str, source: &str, messages: &mut Messages, aliases: &mut BTreeMap<String, String>) {
    let import = Regex::new(r#"(?m)^\s+(\w+)?\s*"(k8s\.io/[^"]+)"$"#).expect("valid");
    let struct_start = Regex::new(r"^type (\w+) struct \{").expect("valid");
    let alias = Regex::new(r"^type (\w+) ([\w\[\].*]+)$").expect("valid");
    let field =
        Regex::new(r#"^\s+(?:(\w+)\s+)?([\w\[\].*]+)\s+`json:"([^"]*)"[^`]*protobuf:"\w+,(\d+),"#).expect("valid");
    let imports: BTreeMap<String, String> = import
        .captures_iter(source)
        .map(|found| {
            let path = found[2].trim_start_matches("k8s.io/api/").replace("k8s.io/apimachinery/pkg/apis/", "");
            let short = path.replace("k8s.io/apimachinery/pkg/", "");
            let name = found.get(1).map_or_else(|| short.rsplit('/').next().unwrap_or_default(), |name| name.as_str());
            (name.to_owned(), short.clone())
        })
        .collect();
    let mut current: Option<String> = None;
    for line in source.lines() {
        if let Some(found) = struct_start.captures(line) {
            current = Some(format!("{package}.{}", &found[1]));
        } else if line == "}" {
            current = None;
        } else if let Some(found) = alias.captures(line) {
            aliases.insert(format!("{package}.{}", &found[1]), qualify(package, &imports, &found[2]));
        } else if let (Some(message), Some(found)) = (&current, field.captures(line)) {
            let (name, options) = found[3].split_once(',').unwrap_or((&found[3], ""));
            let name = if options.contains("inline") { "" } else { name };
            let pointer = found[2].starts_with('*');
            let mut flags = String::new();
            flags.push_str(if pointer { "p" } else { "" });
            flags.push_str(if options.contains("omit") { "o" } else { "" });
            let kind = qualify(package, &imports, found[2].trim_start_matches('*'));
            let number = found[4].parse().expect("digits");
            messages.entry(message.clone()).or_default().insert(number, format!("{name}:{flags}:{kind}"));
        }
    }
}

/// A Go type as `[]T`, `{}T`, a scalar or `package.Name`.
fn qualify(package: &str, imports: &BTreeMap<String, String>, kind: &str) -> String {
    let kind = kind.trim_start_matches('*');
    if kind == "[]byte" {
        return "bytes".into();
    }
    if let Some(item) = kind.strip_prefix("[]") {
        return format!("[]{}", qualify(package, imports, item));
    }
    if let Some((_, value)) = kind.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
        return format!("{{}}{}", qualify(package, imports, value));
    }
    match (kind, kind.split_once('.')) {
        ("string" | "bool", _) => kind.into(),
        ("int" | "int32" | "int64" | "uint32" | "uint64" | "uint8" | "byte", _) => "int".into(),
        ("float32" | "float64", _) => "float".into(),
        (_, Some((alias, name))) => format!("{}.{name}", imports.get(alias).map_or(alias, String::as_str)),
        (_, None) => format!("{package}.{kind}"),
    }
}

/// Replaces aliases by the types that they stand for, also inside lists and maps.
fn resolve(messages: &mut Messages, aliases: &BTreeMap<String, String>) {
    let resolved = |kind: &str| {
        let split = kind.rfind(']').or_else(|| kind.rfind('}')).map_or(0, |at| at + 1);
        let (prefix, mut name) = (kind[..split].to_owned(), kind[split..].to_owned());
        while let Some(target) = aliases.get(&name) {
            // A named list of strings is a message of its own on the wire.
            name = if target == "[]string" { "strings".into() } else { target.clone() };
        }
        // uids are strings of a package that is not read.
        prefix + if name == "types.UID" || name == "types.NodeName" { "string" } else { &name }
    };
    for fields in messages.values_mut() {
        for field in fields.values_mut() {
            let mut parts = field.splitn(3, ':');
            let (name, flags, kind) = (parts.next(), parts.next(), parts.next());
            if let (Some(name), Some(flags), Some(kind)) = (name, flags, kind) {
                *field = format!("{name}:{flags}:{}", resolved(kind));
            }
        }
    }
}

fn render(messages: &Messages) -> String {
    let mut out = String::from("{\n");
    for (index, (name, fields)) in messages.iter().enumerate() {
        let comma = if index + 1 == messages.len() { "" } else { "," };
        let fields: Value = fields.iter().map(|(number, field)| (number.to_string(), json!(field))).collect();
        writeln!(out, "{}:{fields}{comma}", json!(name)).expect("writing to a string cannot fail");
    }
    out.push_str("}\n");
    out
}
