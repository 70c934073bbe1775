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
    ("store/query/message_copy.rs", "it stays in its process"),
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
    let (versions, _) = page
        .split_once("## Encryption of stored values")
        .expect("a section");
    let rows = versions.lines().filter(|line| line.starts_with("| "));
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

/// The kinds of values that a table of the module docs lists: the cells of a column in backticks, or the
/// first cells.
fn listed_values(path: &str, column: usize) -> BTreeSet<String> {
    let text = read(&root().join("src").join(path));
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! | "));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let cells = cells.filter_map(|cells| Some((*cells.get(column)?).to_owned()));
    cells
        .map(|cell| cell.trim_matches('`').to_owned())
        .collect()
}

/// Fails if a key or a row of a store is new: decide whether its value is encrypted, and write it on the page.
#[test]
fn every_stored_value_has_a_decision_about_encryption() {
    let page = read(&root().join("docs/internals/formats.md"));
    let (_, part) = page
        .split_once("## Encryption of stored values")
        .expect("a section");
    let rows = part.lines().filter(|line| line.starts_with("| "));
    let mut decided = BTreeSet::new();
    for row in rows.skip(1) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let &[_, what, decision, _] = &cells[..] else {
            panic!("{row}");
        };
        assert!(!decision.is_empty(), "{what}: no decision");
        decided.extend(what.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    let mut stored = listed_values("store/redis/key.rs", 0);
    stored.extend(listed_values("store/redis/key.rs", 2));
    let is_field = |name: &str| {
        !name.is_empty()
            && !name.contains(' ')
            && name.chars().all(|c| c != '<' || name.contains(':'))
    };
    stored.retain(|name| is_field(name));
    stored.extend(listed_values("store/embedded/key.rs", 0));
    let headings = ["key", "format", "row", "---", "type", "text", "field"];
    // Fields of `counts` and formats of values, which are not values themselves.
    let parts = [
        "offset,", "place", "pair", "score", "epoch", "lineage", "slice,",
    ];
    let missing: Vec<_> = stored
        .difference(&decided)
        .filter(|name| !headings.contains(&name.as_str()) && !parts.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "no decision for {missing:?}");
}
