//! Checks that `docs/internals/formats.md` has a decision for everything that is stored or sent
//! between processes.

use std::collections::BTreeSet;

use super::{files, read, regex, root};

/// A file with one of these in front of its tests writes a format.
const WRITES: &str =
    r#"derive\([^)]*\bSerialize|const [A-Z_]*VERSION[A-Z_]*: |const FORMAT: |fn encode\b|"pd:\{\{"#;

/// Files that match, and the reason why nothing that they write is read by another process.
const NOT_OURS: &[(&str, &str)] = &[
    ("broker/inspection.rs", "the output of `check`"),
    ("broker/nats/header.rs", "the protocol of NATS"),
    ("broker/nats/target/mod.rs", "the protocol of NATS"),
    ("run/test_messages.rs", "only for tests"),
    ("store/redis/connection/mod.rs", "the version of Redis"),
];

fn writers() -> BTreeSet<String> {
    let folders = ["model", "run", "store", "broker", "ingress", "timer"];
    let paths = folders.map(|folder| files(&format!("src/{folder}"), ".rs"));
    let writes = regex(WRITES);
    let is_writer = |path: &std::path::PathBuf| {
        let text = read(path);
        writes.is_match(text.split("mod tests {").next().unwrap_or_default())
    };
    let found = paths.into_iter().flatten().filter(is_writer);
    let source = root().join("src");
    let names = found.map(|path| {
        path.strip_prefix(&source)
            .expect("a file of the source")
            .display()
            .to_string()
    });
    let ours = |name: &String| NOT_OURS.iter().all(|(other, _)| name != other);
    names
        .filter(|name| ours(name) && !name.contains("tests"))
        .collect()
}

#[test]
fn every_format_has_a_decision_for_older_readers() {
    let page = read(&root().join("docs/internals/formats.md"));
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let mut listed = BTreeSet::new();
    for row in rows.skip(1) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let &[_, what, code, version, older, _] = &cells[..] else {
            panic!("{row}");
        };
        assert!(
            !version.is_empty() && !older.is_empty(),
            "{what}: no decision"
        );
        listed.extend(
            code.split(", ")
                .map(|path| path.trim_matches('`').to_owned()),
        );
    }
    for path in &listed {
        assert!(root().join("src").join(path).exists(), "{path} is gone");
    }
    let missing: Vec<_> = writers().difference(&listed).cloned().collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}
