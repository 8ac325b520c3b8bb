//! Static checks of a rule before it is accepted: the names it uses exist, and its cost is bounded.

use kube_cel::cel::{
    Program,
    common::ast::{EntryExpr, Expr, IdedExpr},
};

use super::values::escape;
use crate::schema::{Schema, Type};

/// Maximum cost of one rule in evaluation steps, assuming every list has the maximum length its schema allows.
const MAX_COST: u64 = 10_000_000;
/// Assumed length of lists without `maxItems`: about what fits into a request.
const ASSUMED_LEN: u64 = 100_000;

/// Functions and methods that rules may call, in addition to operators.
const FUNCTIONS: &[&str] = &[
    "abs",
    "add",
    "all",
    "asApproximateFloat",
    "asInteger",
    "base64.decode",
    "base64.encode",
    "bool",
    "bytes",
    "charAt",
    "cidr",
    "compareTo",
    "contains",
    "containsCIDR",
    "containsIP",
    "decode",
    "distinct",
    "double",
    "duration",
    "dyn",
    "encode",
    "endsWith",
    "exists",
    "family",
    "find",
    "findAll",
    "first",
    "flatten",
    "format",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getEscapedPath",
    "getFullYear",
    "getHost",
    "getHostname",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getPort",
    "getQuery",
    "getScheme",
    "getSeconds",
    "hasValue",
    "indexOf",
    "int",
    "ip",
    "ip.isCanonical",
    "isCIDR",
    "isCanonical",
    "isGlobalUnicast",
    "isGreaterThan",
    "isIP",
    "isInteger",
    "isLessThan",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isLoopback",
    "isQuantity",
    "isSemver",
    "isSorted",
    "isURL",
    "isUnspecified",
    "join",
    "last",
    "lastIndexOf",
    "lowerAscii",
    "major",
    "masked",
    "matches",
    "max",
    "min",
    "minor",
    "named",
    "none",
    "of",
    "ofNonZeroValue",
    "optMap",
    "optFlatMap",
    "or",
    "orValue",
    "patch",
    "prefixLength",
    "quantity",
    "quote",
    "range",
    "replace",
    "reverse",
    "semver",
    "sign",
    "size",
    "slice",
    "sort",
    "sortBy",
    "split",
    "startsWith",
    "string",
    "sub",
    "substring",
    "sum",
    "timestamp",
    "trim",
    "type",
    "uint",
    "upperAscii",
    "url",
    "validate",
    "value",
    "equivalent",
    "intersects",
    "ceil",
    "floor",
    "round",
    "trunc",
    "greatest",
    "least",
    "isFinite",
    "isInf",
    "isNaN",
    "bitAnd",
    "bitOr",
    "bitXor",
    "bitNot",
    "bitShiftLeft",
    "bitShiftRight",
    "sqrt",
    "escapeKey",
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "transformList",
    "transformMap",
    "optional.of",
    "optional.none",
    "optional.ofNonZeroValue",
    "isIPv4",
    "isIPv6",
];

/// Namespace prefixes of functions, which are not variables.
const NAMESPACES: &[&str] =
    &["sets", "lists", "math", "strings", "base64", "ip", "format", "optional", "jsonpatch", "cel"];
const TYPES: &[&str] = &["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"];

/// Refuses rules that use unknown names or exceed the cost limit.
pub(super) fn check(program: &Program, schema: &Schema) -> Result<(), String> {
    let mut scope = vec!["self".to_owned(), "oldSelf".to_owned()];
    check_names(program.expression(), schema, &mut scope)?;
    let cost = cost(program.expression(), schema);
    if cost > MAX_COST {
        return Err(format!(
            "estimated rule cost exceeds budget by factor of {:.1}x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
            cost as f64 / MAX_COST as f64
        ));
    }
    Ok(())
}

fn check_names(expr: &IdedExpr, schema: &Schema, scope: &mut Vec<String>) -> Result<(), String> {
    match &expr.expr {
        Expr::Unspecified | Expr::Literal(_) => Ok(()),
        Expr::Ident(name) => {
            let known = scope.contains(name) || TYPES.contains(&name.as_str()) || name.starts_with('@');
            if known {
                Ok(())
            } else {
                Err(format!("compilation failed: undeclared reference to '{name}' (in container '')"))
            }
        }
        Expr::Select(select) => {
            // Only paths that start at self or oldSelf have a schema to check against.
            resolve(expr, schema)?;
            check_names(&select.operand, schema, scope)
        }
        Expr::Call(call) => {
            let operator = call.func_name.contains(['_', '@', '!', '-']);
            if !operator && !FUNCTIONS.contains(&call.func_name.as_str()) {
                return Err(format!(
                    "compilation failed: undeclared reference to '{}' (in container '')",
                    call.func_name
                ));
            }
            if let Some(target) = &call.target
                && !matches!(&target.expr, Expr::Ident(name) if NAMESPACES.contains(&name.as_str()))
            {
                check_names(target, schema, scope)?;
            }
            call.args.iter().try_for_each(|arg| check_names(arg, schema, scope))
        }
        Expr::List(list) => list.elements.iter().try_for_each(|e| check_names(e, schema, scope)),
        Expr::Map(map) => map.entries.iter().try_for_each(|e| check_entry(&e.expr, schema, scope)),
        Expr::Struct(literal) => literal.entries.iter().try_for_each(|e| check_entry(&e.expr, schema, scope)),
        Expr::Comprehension(loops) => {
            check_names(&loops.iter_range, schema, scope)?;
            check_names(&loops.accu_init, schema, scope)?;
            let before = scope.len();
            scope.push(loops.iter_var.clone());
            scope.extend(loops.iter_var2.clone());
            scope.push(loops.accu_var.clone());
            let inner = [&loops.loop_cond, &loops.loop_step, &loops.result];
            let checked = inner.into_iter().try_for_each(|e| check_names(e, schema, scope));
            scope.truncate(before);
            checked
        }
    }
}

fn check_entry(entry: &EntryExpr, schema: &Schema, scope: &mut Vec<String>) -> Result<(), String> {
    match entry {
        EntryExpr::StructField(field) => check_names(&field.value, schema, scope),
        EntryExpr::MapEntry(pair) => {
            check_names(&pair.key, schema, scope)?;
            check_names(&pair.value, schema, scope)
        }
    }
}

/// The schema of a path like `self.spec.replicas`; an error if a field on it is not declared.
fn resolve<'s>(expr: &IdedExpr, schema: &'s Schema) -> Result<Option<&'s Schema>, String> {
    match &expr.expr {
        Expr::Ident(name) if name == "self" || name == "oldSelf" => Ok(Some(schema)),
        Expr::Select(select) => {
            let Some(parent) = resolve(&select.operand, schema)? else { return Ok(None) };
            if parent.kind != Type::Object || parent.preserve_unknown {
                return Ok(None);
            }
            let declared = parent.properties.iter().find(|(name, _)| escape(name) == select.field).map(|(_, s)| s);
            if let Some(found) = declared.or(parent.additional.as_ref()) {
                return Ok(Some(found));
            }
            if matches!(select.field.as_str(), "apiVersion" | "kind" | "metadata") {
                return Ok(None);
            }
            Err(format!("compilation failed: undefined field '{}'", select.field))
        }
        _ => Ok(None),
    }
}

/// Estimated number of evaluation steps, with every list at its maximum length.
fn cost(expr: &IdedExpr, schema: &Schema) -> u64 {
    match &expr.expr {
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) => 1,
        Expr::Select(select) => 1 + cost(&select.operand, schema),
        Expr::Call(call) => {
            let target = call.target.as_ref().map_or(0, |t| cost(t, schema));
            call.args.iter().fold(target + 1, |sum, arg| sum.saturating_add(cost(arg, schema)))
        }
        Expr::List(list) => list.elements.iter().fold(1, |sum: u64, e| sum.saturating_add(cost(e, schema))),
        Expr::Map(_) | Expr::Struct(_) => 1,
        Expr::Comprehension(loops) => {
            let times = match resolve(&loops.iter_range, schema) {
                Ok(Some(list)) => list.max_items().map_or(ASSUMED_LEN, |n| n as u64),
                _ if matches!(&loops.iter_range.expr, Expr::List(_)) => 16,
                _ => ASSUMED_LEN,
            };
            let step = cost(&loops.loop_step, schema).saturating_add(cost(&loops.loop_cond, schema));
            cost(&loops.iter_range, schema).saturating_add(times.saturating_mul(step))
        }
    }
}
