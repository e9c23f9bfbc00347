//! The rules on crates, from `cargo metadata`: who depends on whom, and under which licences.

use serde_json::Value;

/// Crates that must be useful alone: they depend on no crate of this workspace.
const LEAVES: [&str; 3] = ["sluice-gguf", "sluice-kernels", "sluice-loader"];

/// Licences that ask for nothing but their notice; a crate under one of these can be linked into a binary of ours.
const LICENCES: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Every complaint about the output of `cargo metadata`.
pub fn check(metadata: &Value) -> Vec<String> {
    let packages = list(&metadata["packages"]);
    let mut findings = Vec::new();
    // Crates of the workspace come from no registry.
    let own: Vec<&str> = packages.iter().filter(|package| package["source"].is_null()).map(name).collect();
    for package in packages {
        let name = name(package);
        let licence = package["license"].as_str().unwrap_or("none");
        if !licence_allowed(licence) {
            findings.push(format!("{name}: licence `{licence}` is not among the allowed ones"));
        }
        for dependency in list(&package["dependencies"]) {
            let other = dependency["name"].as_str().unwrap_or_default();
            // A dev-dependency has kind "dev", a normal one has null.
            let normal = dependency["kind"].as_str() != Some("dev");
            if LEAVES.contains(&name) && own.contains(&other) {
                findings
                    .push(format!("{name} depends on {other}: leaves depend on no crate of the workspace"));
            }
            if name == "sluice-gguf" && normal {
                findings.push(format!("sluice-gguf depends on {other}: it has no dependencies"));
            }
        }
    }
    for leaf in LEAVES.iter().filter(|leaf| !own.contains(leaf)) {
        findings.push(format!("{leaf} is not in the workspace, so nothing was checked of it"));
    }
    findings
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

/// Whether an SPDX expression (or the older `A/B`) can be met with allowed licences alone.
fn licence_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut tokens = spaced.split_whitespace().peekable();
    let allowed = any_of(&mut tokens);
    // Something left over was not understood, and what is not understood is not allowed.
    allowed && tokens.next().is_none()
}

type Tokens<'a, 'b> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(tokens: &mut Tokens) -> bool {
    let mut allowed = all_of(tokens);
    while tokens.next_if_eq(&"OR").is_some() {
        allowed |= all_of(tokens);
    }
    allowed
}

fn all_of(tokens: &mut Tokens) -> bool {
    let mut allowed = one(tokens);
    while tokens.next_if_eq(&"AND").is_some() {
        allowed &= one(tokens);
    }
    allowed
}

fn one(tokens: &mut Tokens) -> bool {
    match tokens.next() {
        Some("(") => any_of(tokens) & (tokens.next() == Some(")")),
        Some(id) if tokens.next_if_eq(&"WITH").is_some() => {
            let exception = tokens.next().unwrap_or_default();
            LICENCES.contains(&format!("{id} WITH {exception}").as_str()) || LICENCES.contains(&id)
        }
        Some(id) => LICENCES.contains(&id),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, source: Value, licence: &str, dependencies: Value) -> Value {
        json!({"name": name, "source": source, "license": licence, "dependencies": dependencies})
    }

    fn workspace(extra: Vec<Value>) -> Vec<String> {
        let mut packages: Vec<Value> = extra;
        for leaf in LEAVES {
            if !packages.iter().any(|package| name(package) == leaf) {
                packages.push(package(leaf, Value::Null, "MIT OR Apache-2.0", json!([])));
            }
        }
        check(&json!({ "packages": packages }))
    }

    #[test]
    fn leaves_stand_alone() {
        assert_eq!(workspace(vec![]), [""; 0]);
        let dependencies = json!([{"name": "half", "kind": null}, {"name": "sluice-gguf", "kind": "dev"}]);
        let found = workspace(vec![package("sluice-kernels", Value::Null, "MIT", dependencies)]);
        assert_eq!(
            found,
            ["sluice-kernels depends on sluice-gguf: leaves depend on no crate of the workspace"]
        );
        assert_eq!(check(&json!({"packages": []})).len(), LEAVES.len());
    }

    #[test]
    fn gguf_has_no_dependencies_but_for_tests() {
        let dependencies = json!([{"name": "proptest", "kind": "dev"}, {"name": "half", "kind": null}]);
        let found = workspace(vec![package("sluice-gguf", Value::Null, "MIT", dependencies)]);
        assert_eq!(found, ["sluice-gguf depends on half: it has no dependencies"]);
    }

    #[test]
    fn licences_are_evaluated() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        ] {
            assert!(licence_allowed(good), "{good}");
        }
        for bad in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR Apache-2.0) AND MPL-2.0",
            "",
            "none",
            "MIT Apache-2.0",
            "(MIT",
        ] {
            assert!(!licence_allowed(bad), "{bad}");
        }
        let found = workspace(vec![package("odd", json!("registry"), "GPL-3.0", json!([]))]);
        assert_eq!(found, ["odd: licence `GPL-3.0` is not among the allowed ones"]);
    }
}
