//! Checks the style of the project: layers, fences, sizes, names, and the headers of Lua scripts.
//!
//! The test reads `src/` and `lua/` as text, in the form that rustfmt gives them. Rules that clippy
//! can check are not repeated here. `docs` checks the documentation.

mod docs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use regex_lite::Regex;

/// The rows of the layer table, lowest first. A file imports its own cell and lower rows, except that
/// roles do not import adapters. The domain and the shell are one cell each.
const ROWS: [&[&str]; 7] = [
    &["model", "limit"],
    &["encryption", "run", "wheel", "schedule"],
    &[
        "store",
        "broker",
        "task",
        "metric",
        "trace",
        "health",
        "clock",
        "retry",
        "client_thread",
        "http_client",
    ],
    &[
        "store/redis",
        "store/embedded",
        "broker/kafka",
        "broker/nats",
    ],
    &["membership"],
    &["ingress", "timer", "admin"],
    &[
        "main",
        "lib",
        "cli",
        "config",
        "role",
        "command",
        "telemetry",
        "testing",
    ],
];

/// Allowed imports between two cells of one row: the first imports the second.
const BESIDE: [(&str, &str); 9] = [
    ("run", "encryption"),
    ("schedule", "run"),
    ("schedule", "wheel"),
    ("store", "metric"),
    ("broker", "health"),
    ("retry", "store"),
    ("retry", "health"),
    ("trace", "metric"),
    ("clock", "metric"),
];

/// External crates that only some cells may use. Without cells, the crate is open to a row and the rows above it.
const FENCES: [(&[&str], usize, &[&str]); 15] = [
    (&["redis"], 0, &["store/redis"]),
    (&["fjall"], 0, &["store/embedded"]),
    (&["rdkafka", "rdkafka_sys"], 0, &["broker/kafka"]),
    (&["async_nats"], 0, &["broker/nats"]),
    (&["axum"], 0, &["admin"]),
    (&["clap", "clap_complete"], 0, &["cli", "main"]),
    (&["figment"], 0, &["config"]),
    (&["metrics"], 0, &["metric", "telemetry"]),
    (
        &["metrics_exporter_prometheus", "tracing_subscriber"],
        0,
        &["telemetry"],
    ),
    (
        &[
            "opentelemetry",
            "opentelemetry_http",
            "opentelemetry_otlp",
            "opentelemetry_sdk",
        ],
        0,
        &["telemetry"],
    ),
    (&["zstd"], 0, &["run", "model"]),
    (&["xxhash_rust"], 0, &["run"]),
    (&["tikv_jemallocator"], 0, &["main"]),
    (&["anyhow"], 5, &[]),
    (&["tokio", "tokio_util", "tracing", "async_trait"], 2, &[]),
];

const LINES_MAX: usize = 500;

/// Rust files in one folder, without its subfolders.
const FILES_MAX: usize = 14;

/// Words that say nothing about a duty.
const EMPTY_WORDS: [&str; 8] = [
    "manager",
    "helper",
    "processor",
    "engine",
    "util",
    "utils",
    "common",
    "misc",
];

/// Words that the glossary has retired, what to write instead, and the folders where the word has another, correct meaning.
const RETIRED: &[(&str, &str, &[&str])] = &[
    ("job", "message", &["ingress", "timer"]),
    ("letter", "message", &[]),
    ("eta", "due", &[]),
    ("pipeline", "route", &["store/redis"]),
    ("bucket", "shard", &["broker/nats", "telemetry", "timer"]),
    ("chunk", "run", &[]),
    ("segment", "run", &["config"]),
    ("checkout", "claim", &[]),
    ("told", "delivered", &[]),
    ("settled", "delivered", &[]),
    ("term", "lease", &[]),
    ("bearer", "worker", &["admin"]),
    ("peer", "worker", &[]),
    ("roll", "membership", &[]),
    ("placement", "assignment", &[]),
    ("wanted", "assignment", &[]),
    ("parting", "handover", &[]),
    ("filling", "prefetch", &[]),
    ("aloft", "in flight", &[]),
    ("flying", "in flight", &[]),
    ("hand", "deliver", &[]),
    ("handing", "deliver", &[]),
    ("outlet", "producer", &[]),
    ("diverted", "dead letter", &[]),
    ("rewriter", "compactor", &[]),
    ("rewriting", "compaction", &[]),
    ("sealing", "compaction", &[]),
    ("following", "rollback", &[]),
    ("glance", "position check", &[]),
    ("outcry", "delivery alert", &[]),
    ("amiss", "delivery alert", &[]),
    ("pace", "catch-up rate", &[]),
    ("mutant", "injected fault", &["testing/sim"]),
    ("desk", "the duty of the type", &[]),
    ("attendant", "the duty of the type", &[]),
    ("venue", "the duty of the type", &[]),
    ("shop", "the duty of the type", &[]),
    ("doubt", "the duty of the type", &[]),
    ("namesake", "the duty of the type", &[]),
    ("mending", "the duty of the type", &[]),
    ("succession", "failover", &[]),
];

const NOT_YET_SPLIT: &[&str] = &["src/store/embedded"];

/// The files outside its folder that a new broker changes. [`CONTRIBUTING.md`](../CONTRIBUTING.md) lists them.
const BROKER_FILES: [&str; 5] = [
    "src/broker/mod.rs",
    "src/cli/init.rs",
    "src/config/cluster/mod.rs",
    "src/config/cluster/nats.rs",
    "src/config/mod.rs",
];

/// Files that name NATS because the demo can use it. Another broker needs no such file.
const DEMO_FILES: [&str; 2] = ["src/cli/mod.rs", "src/command/demo/scene.rs"];

/// Path below the root of the project, and text.
type Files = BTreeMap<String, String>;

/// Every complaint about the files.
fn judge(files: &Files) -> Vec<String> {
    let tests: Vec<String> = files
        .iter()
        .flat_map(|(path, text)| test_files(path, text))
        .collect();
    let is_test = |path: &str| {
        tests.iter().any(|test| {
            path.strip_prefix(test.as_str())
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    let mut complaints = judge_folders(files);
    for (path, text) in files {
        let found = match path.strip_prefix("src/") {
            Some(module) => judge_module(module, text, is_test(path)),
            None => judge_script(path, text, files.get("src/store/redis/script.rs")),
        };
        complaints.extend(
            found
                .into_iter()
                .map(|complaint| format!("{path}: {complaint}")),
        );
    }
    complaints
}

fn judge_folders(files: &Files) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (folder, _) in files.keys().filter_map(|path| path.rsplit_once('/')) {
        *counts.entry(folder).or_default() += 1;
    }
    counts
        .into_iter()
        .filter(|(folder, count)| {
            folder.starts_with("src/") && *count > FILES_MAX && !NOT_YET_SPLIT.contains(folder)
        })
        .map(|(folder, count)| format!("{folder}: {count} files, of at most {FILES_MAX}"))
        .collect()
}

/// `is_test`: the file is compiled for tests only. Such a file may import everything.
fn judge_module(module: &str, text: &str, is_test: bool) -> Vec<String> {
    let place: Vec<&str> = module
        .trim_end_matches(".rs")
        .split('/')
        .filter(|part| *part != "mod")
        .collect();
    let code = production(text);
    let tokens = tokens(&code);
    let mut complaints = Vec::new();
    if !text.starts_with("//! ") {
        complaints.push("its first line is not a `//!` sentence about its duty".to_owned());
    }
    if !is_test && code.lines().count() > LINES_MAX {
        complaints.push(format!(
            "{} lines before its tests, of at most {LINES_MAX}",
            code.lines().count()
        ));
    }
    let names = place.iter().copied().chain(declared(&tokens));
    complaints.extend(names.filter_map(|name| judge_name(module, name)));
    if is_test {
        return complaints;
    }
    match cell(&place) {
        Some((row, cell)) => complaints.extend(
            references(&place, &tokens)
                .iter()
                .filter_map(|path| trespass(row, cell, path)),
        ),
        None => complaints.push("it has no place in the layer table".to_owned()),
    }
    complaints
}

/// The row and the cell of a module's path.
fn cell(path: &[&str]) -> Option<(usize, &'static str)> {
    let names = [
        path.get(..2).map(|two| two.join("/")),
        path.first().map(|&one| one.to_owned()),
    ];
    let find = |name: String| {
        ROWS.iter()
            .enumerate()
            .find_map(|(row, cells)| Some((row, *cells.iter().find(|cell| **cell == name)?)))
    };
    names.into_iter().flatten().find_map(find)
}

/// Why a file of this cell must not name that path; `None` if it may.
fn trespass(row: usize, from: &str, path: &str) -> Option<String> {
    let mut parts = path.split("::");
    let first = parts.next()?;
    if first == "crate" {
        let (other, to) = cell(&parts.collect::<Vec<_>>()).unwrap_or((6, "lib"));
        let beside = other == row && ([0, 6].contains(&row) || BESIDE.contains(&(from, to)));
        let fine = to == from
            || beside
            || (other < row
                && ([0, 1, 2].contains(&other) || ![4, 5].contains(&row) || other == 4));
        return (!fine).then(|| {
            format!(
                "`{path}` belongs to `{to}` in row {other}, which `{from}` in row {row} must not import"
            )
        });
    }
    let (_, lowest, cells) = FENCES.iter().find(|(crates, ..)| crates.contains(&first))?;
    let fine = row >= *lowest && (cells.is_empty() || cells.contains(&from));
    (!fine).then(|| format!("`{path}` is fenced off from `{from}`"))
}

/// Returns whether a line is an attribute that keeps the next item out of the service.
fn is_test_attribute(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("#[cfg(test)]")
        || (line.starts_with("#[cfg(") && line.contains("feature = \"test-support\""))
}

/// The part of the file that is compiled into the service. A module of tests ends the file.
fn production(text: &str) -> String {
    let (mut code, mut lines) = (String::new(), text.lines());
    while let Some(line) = lines.next() {
        if !is_test_attribute(line) {
            code += line;
            code += "\n";
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let mut item = lines
            .by_ref()
            .skip_while(|line| line.trim_start().starts_with("#["));
        let first = item.next().unwrap_or_default();
        if first.contains("mod ") && first.ends_with('{') {
            break;
        }
        let ends = |line: &str| {
            line.ends_with([';', '}', ',']) && line.len() - line.trim_start().len() == indent
        };
        if !ends(first) {
            item.find(|line| ends(line));
        }
    }
    code
}

/// The paths, without extension, of the modules that a file declares for tests only.
fn test_files(path: &str, text: &str) -> Vec<String> {
    let folder = path
        .strip_suffix("mod.rs")
        .or(path.strip_suffix("lib.rs"))
        .map_or_else(|| path.replace(".rs", "/"), str::to_owned);
    let lines: Vec<&str> = text.lines().collect();
    let pairs = lines.windows(2).filter(|pair| is_test_attribute(pair[0]));
    pairs
        .filter_map(|pair| {
            Some(format!(
                "{folder}{}",
                pair[1].rsplit_once("mod ")?.1.strip_suffix(';')?
            ))
        })
        .collect()
}

/// Why a file or a type must not have that name; `None` if it may.
fn judge_name(module: &str, name: &str) -> Option<String> {
    // A dead letter is the right word for a refused message.
    let name = name.replace("DeadLetter", "").replace("dead_letter", "");
    let words: Vec<String> = regex("[A-Z]?[a-z]+")
        .find_iter(&name)
        .map(|word| word.as_str().to_lowercase())
        .collect();
    let has = |wanted: &str| {
        words
            .iter()
            .any(|word| word.as_str() == wanted || word.strip_suffix('s') == Some(wanted))
    };
    if EMPTY_WORDS.into_iter().any(has) {
        return Some(format!("the name `{name}` says nothing: what does it do?"));
    }
    let (word, instead, _) = RETIRED.iter().find(|(word, _, folders)| {
        has(word) && !folders.iter().any(|folder| module.starts_with(folder))
    })?;
    Some(format!(
        "the name `{name}` uses the retired word `{word}`: write {instead}"
    ))
}

/// Checks a script: shebang, header, body. The header lists the keys and arguments that the body uses, as
/// `-- KEYS   1 meta  2 counts`, then `-- ARGV` in the same form, then `-- Reply`. A file in
/// `lua/include` is inserted after the shebang of each script. It uses the first keys and the first argument.
fn judge_script(path: &str, text: &str, scripts: Option<&String>) -> Vec<String> {
    let mut complaints = Vec::new();
    let name = path.strip_prefix("lua/").unwrap_or(path);
    if !scripts.is_some_and(|scripts| scripts.contains(&format!("lua/{name}\")"))) {
        complaints.push("src/store/redis/script.rs does not include it".to_owned());
    }
    if name.starts_with("include/") {
        return complaints
            .into_iter()
            .chain(
                (!text.starts_with("-- "))
                    .then(|| "its first line is not a comment about its duty".to_owned()),
            )
            .collect();
    }
    let (shebang, rest) = text.split_once('\n').unwrap_or((text, ""));
    let head: String = rest
        .lines()
        .take_while(|line| line.starts_with("--"))
        .map(|line| line.to_owned() + "\n")
        .collect();
    let body: String = rest[head.len()..]
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default().to_owned() + "\n")
        .collect();
    if !shebang.starts_with("#!lua") {
        complaints.push("its first line is not `#!lua`".to_owned());
    }
    if !head.contains("-- Reply") {
        complaints.push("its header does not list its replies".to_owned());
    }
    for (kind, after, of_includes) in [
        ("KEYS", "-- ARGV", &["1", "2"][..]),
        ("ARGV", "-- Reply", &["1"][..]),
    ] {
        let section = head
            .split_once(&format!("-- {kind}"))
            .map_or("", |(_, rest)| rest.split(after).next().unwrap_or_default());
        let listed: BTreeSet<&str> = regex(r"\s(\d+) \w")
            .captures_iter(section)
            .filter_map(|found| Some(found.get(1)?.as_str()))
            .collect();
        let index = regex(&format!(r"{kind}\[(\d+)\]"));
        let used: BTreeSet<&str> = index
            .captures_iter(&body)
            .filter_map(|found| Some(found.get(1)?.as_str()))
            .collect();
        complaints.extend(
            used.difference(&listed)
                .map(|index| format!("its header does not list {kind}[{index}]")),
        );
        // A table that is passed as a whole or indexed by a variable may use any element, as does `foreign`.
        let whole = regex(&format!(r"{kind}([^\[]|\[\D)|foreign\(")).is_match(&body);
        let unused = listed
            .difference(&used)
            .filter(|index| !whole && !of_includes.contains(index));
        complaints.extend(
            unused.map(|index| {
                format!("its header lists {kind}[{index}], which the body does not use")
            }),
        );
    }
    complaints
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is valid")
}

/// The tokens of Rust code, without comments and literals.
fn tokens(code: &str) -> Vec<&str> {
    let token = regex(
        r##"(?s)//[^\n]*|r#".*?"#|r"[^"]*"|"(?:\\.|[^"\\])*"|'(?:\\[^']+|\\'|[^'\\])'|(\w+|::|\S)"##,
    );
    token
        .captures_iter(code)
        .filter_map(|found| Some(found.get(1)?.as_str()))
        .collect()
}

fn declared<'a>(tokens: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    tokens
        .windows(2)
        .filter(|pair| ["struct", "enum", "trait", "type", "mod"].contains(&pair[0]))
        .map(|pair| pair[1])
}

/// Every path that the code names, in a `use` or elsewhere, from `crate` or an external crate on.
fn references(place: &[&str], tokens: &[&str]) -> Vec<String> {
    let children = tokens
        .windows(2)
        .filter(|pair| pair[0] == "mod")
        .map(|pair| (pair[1].to_owned(), format!("self::{}", pair[1])));
    let (mut paths, mut locals, mut at): (_, BTreeMap<_, _>, _) =
        (Vec::new(), children.collect(), 0);
    while at < tokens.len() {
        if tokens[at] == "use" && tokens.get(at + 1) != Some(&"<") {
            at += 1;
            for (path, name) in use_tree(tokens, &mut at, "") {
                paths.push(path.clone());
                locals.insert(name, path);
            }
        } else {
            let length = 2 * tokens[at + 1..]
                .chunks(2)
                .take_while(|pair| pair[0] == "::")
                .count();
            paths.extend(
                (length > 0).then(|| tokens[at..=(at + length).min(tokens.len() - 1)].concat()),
            );
            at += length + 1;
        }
    }
    // In a file with an inline module, `super` may name the file itself.
    let inside = tokens
        .windows(3)
        .any(|three| three[0] == "mod" && three[2] == "{");
    let place = if inside {
        &[place, &["inside"]].concat()
    } else {
        place
    };
    paths
        .iter()
        .map(|path| resolve(place, path, &locals))
        .collect()
}

/// The imports of one `use` tree: paths, each with its name in this file.
fn use_tree(tokens: &[&str], at: &mut usize, before: &str) -> Vec<(String, String)> {
    let (mut path, mut name, mut brought) = (before.to_owned(), String::new(), Vec::new());
    while let Some(&token) = tokens
        .get(*at)
        .filter(|token| ![";", ",", "}"].contains(token))
    {
        *at += 1;
        if token == "{" {
            while tokens.get(*at).is_some_and(|token| *token != "}") {
                brought.extend(use_tree(tokens, at, &path));
                *at += usize::from(tokens.get(*at) == Some(&","));
            }
            *at += 1;
            return brought;
        } else if token == "as" {
            name = (*tokens.get(*at).unwrap_or(&"_")).to_owned();
            *at += 1;
        } else if token == "self" && path.ends_with("::") {
            path.truncate(path.len() - 2);
            name = path.rsplit("::").next().unwrap_or_default().to_owned();
        } else {
            path += token;
            name = token.to_owned();
        }
    }
    vec![(path, name)]
}

fn resolve(place: &[&str], path: &str, locals: &BTreeMap<String, String>) -> String {
    let first = path.split("::").next().unwrap_or_default();
    let path = locals.get(first).map_or_else(
        || path.to_owned(),
        |local| format!("{local}{}", &path[first.len()..]),
    );
    let (mut above, mut rest) = (place.len(), path.as_str());
    while let Some(inner) = rest.strip_prefix("super::") {
        (above, rest) = (above.saturating_sub(1), inner);
    }
    let rest = rest.strip_prefix("self::").unwrap_or(rest);
    if rest.len() == path.len() {
        path
    } else {
        ["crate", &place[..above].join("::"), rest]
            .join("::")
            .replace("::::", "::")
    }
}

fn read(folder: &Path, root: &Path, files: &mut Files) {
    for path in std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("the folder can be read").path())
    {
        if path.is_dir() {
            read(&path, root, files);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "rs" || extension == "lua")
        {
            let name = path
                .strip_prefix(root)
                .expect("the path starts with the root")
                .to_str()
                .expect("the name is UTF-8")
                .to_owned();
            files.insert(
                name,
                std::fs::read_to_string(&path).expect("the text is UTF-8"),
            );
        }
    }
}

#[test]
fn the_project_follows_its_style() {
    let (root, mut files) = (Path::new(env!("CARGO_MANIFEST_DIR")), Files::new());
    for folder in ["src", "lua"] {
        read(&root.join(folder), root, &mut files);
    }
    assert!(files.contains_key("src/lib.rs"), "no file was read");
    let complaints = judge(&files);
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// The domain names the dialect of NATS.
#[test]
fn a_new_broker_changes_few_files_outside_its_folder() {
    let (root, mut files) = (Path::new(env!("CARGO_MANIFEST_DIR")), Files::new());
    read(&root.join("src"), root, &mut files);
    let own = ["src/broker/nats/", "src/model/", "src/testing/"];
    let tests: Vec<String> = files
        .iter()
        .flat_map(|(path, text)| test_files(path, text))
        .collect();
    files.retain(|path, _| {
        !own.iter().any(|folder| path.starts_with(folder))
            && !tests.iter().any(|test| *path == format!("{test}.rs"))
    });
    let names_nats = |text: &String| {
        let code = production(text);
        let tokens = tokens(&code);
        let is_name = |at: usize| ["nats", "Nats"].contains(&tokens[at]);
        (0..tokens.len()).any(|at| is_name(at) && !tokens[..at].ends_with(&["Dialect", "::"]))
    };
    let named = files.iter().filter(|(_, text)| names_nats(text));
    let named: BTreeSet<&str> = named.map(|(path, _)| path.as_str()).collect();
    let known: BTreeSet<&str> = BROKER_FILES.into_iter().chain(DEMO_FILES).collect();
    assert_eq!(named, known);
    let page = std::fs::read_to_string(root.join("CONTRIBUTING.md")).expect("the page is UTF-8");
    for file in BROKER_FILES {
        let file = file.replace("nats", "<broker>");
        assert!(page.contains(&format!("| `{file}` |")), "{file}");
    }
}

fn verdict(path: &str, text: &str) -> Vec<String> {
    let script = "//! Scripts.\nconst A: &str = include_str!(\"../../../lua/a.lua\");\n";
    judge(&Files::from([
        ("src/store/redis/script.rs".into(), script.into()),
        (path.to_owned(), text.to_owned()),
    ]))
}

/// Fails unless the file gets this complaint.
fn assert_reported(path: &str, text: &str, complaint: &str) {
    let found = verdict(path, text);
    assert!(
        found
            .iter()
            .any(|found| found.contains(complaint) && found.starts_with(path)),
        "{path}: {complaint}\nfound: {found:#?}"
    );
}

#[test]
fn each_import_against_the_layers_is_reported() {
    for (path, text, complaint) in [
        (
            "src/model/time.rs",
            "//! Time.\nuse crate::{limit::A, wheel::{self, Wheel}};",
            "`crate::wheel` belongs to `wheel` in row 1",
        ),
        (
            "src/wheel/mod.rs",
            "//! Wheel.\nuse crate::schedule;",
            "`crate::schedule` belongs to `schedule` in row 1",
        ),
        (
            "src/timer/mod.rs",
            "//! Timer.\nuse super::ingress::Intake as I;",
            "`crate::ingress::Intake` belongs to `ingress` in row 5",
        ),
        (
            "src/timer/mod.rs",
            "//! Timer.\nfn f() { crate::store::redis::g() }",
            "`crate::store::redis::g` belongs to `store/redis` in row 3",
        ),
        (
            "src/admin/mod.rs",
            "//! Admin.\nuse crate::store;\ntype A = store::embedded::B;",
            "`crate::store::embedded::B` belongs to `store/embedded`",
        ),
        (
            "src/broker/kafka/source.rs",
            "//! Source.\nuse crate::store::embedded;",
            "row 3, which `broker/kafka` in row 3 must not",
        ),
        (
            "src/store/mod.rs",
            "//! Store.\npub mod redis;\nfn f() { redis::g() }",
            "`crate::store::redis::g` belongs to `store/redis`",
        ),
        (
            "src/store/lease.rs",
            "//! Lease.\nfn f() -> redis::Client { }",
            "`redis::Client` is fenced off from `store`",
        ),
        (
            "src/metric.rs",
            "//! Metric.\nuse {std::fmt, anyhow::Result};",
            "`anyhow::Result` is fenced off from `metric`",
        ),
        (
            "src/run/mod.rs",
            "//! Run.\nconst A: [&str; 1] = [\"\\\"\"];\n#[tokio::test]\nfn f() {}",
            "`tokio::test` is fenced off from `run`",
        ),
        (
            "src/misc.rs",
            "//! Misc.\n",
            "it has no place in the layer table",
        ),
    ] {
        assert_reported(path, text, complaint);
    }
}

#[test]
fn each_offence_of_form_and_names_is_reported() {
    let long = format!(
        "//! Long.\n{}#[cfg(test)]\nmod tests {{\n",
        "//\n".repeat(LINES_MAX)
    );
    for (path, text, complaint) in [
        (
            "src/clock.rs",
            "use std::fmt;\n",
            "its first line is not a `//!` sentence",
        ),
        (
            "src/clock.rs",
            "//! Clock.\nstruct ClockManager;",
            "the name `ClockManager` says nothing",
        ),
        (
            "src/run/utils.rs",
            "//! Utils.\n",
            "the name `utils` says nothing",
        ),
        ("src/clock.rs", &long, "lines before its tests, of at most"),
        (
            "src/run/seal.rs",
            "//! Seal.\nenum BucketState {}",
            "the name `BucketState` uses the retired word `bucket`: write shard",
        ),
        (
            "src/run/outlets.rs",
            "//! Outlets.\n",
            "the name `outlets` uses the retired word `outlet`",
        ),
    ] {
        assert_reported(path, text, complaint);
    }
}

#[test]
fn each_offence_of_a_script_is_reported() {
    for (path, text, complaint) in [
        (
            "lua/a.lua",
            "-- KEYS  1 a\n-- ARGV  1 b\n-- Reply  c\n",
            "its first line is not `#!lua`",
        ),
        (
            "lua/a.lua",
            "#!lua\n-- KEYS  1 a\n-- ARGV  1 b\nlocal a = KEYS[1]",
            "its header does not list its replies",
        ),
        (
            "lua/a.lua",
            "#!lua\n-- KEYS  1 a\n-- ARGV  1 b\n-- Reply  c\nreturn KEYS[2], ARGV[i]",
            "its header does not list KEYS[2]",
        ),
        (
            "lua/a.lua",
            "#!lua\n-- KEYS  1 a\n-- ARGV  1 b  2 c\n-- Reply  c\nreturn KEYS[1] -- ARGV[2]",
            "its header lists ARGV[2], which the body",
        ),
        (
            "lua/b.lua",
            "#!lua\n-- KEYS  1 a\n-- ARGV  1 b\n-- Reply  c\n",
            "src/store/redis/script.rs does not include it",
        ),
        (
            "lua/include/c.lua",
            "local function f() end\n",
            "its first line is not a comment about its duty",
        ),
    ] {
        assert_reported(path, text, complaint);
    }
}

#[test]
fn correct_files_pass() {
    let tests = "#[cfg(test)]\nuse crate::{\n    role::A,\n};\nstruct B<'a>(&'a u8);\n#[cfg(test)]\nmod tests {\n    use crate::testing;\n}\n";
    for (path, text) in [
        (
            "src/role.rs",
            "//! Role.\nuse crate::config::Config;\nuse crate::store::redis;\nfn f() { redis::connect() }",
        ),
        (
            "src/store/redis/mod.rs",
            "//! Redis.\nuse super::{Store, redis::key::Key};\nuse redis::Client;\nuse crate::limit;\n// use crate::timer;",
        ),
        (
            "src/broker/nats/bucket.rs",
            "//! A bucket.\nstruct DeadLetters;",
        ),
        (
            "src/model/time.rs",
            &format!(
                "//! Time.\nuse crate::limit;\nconst A: &str = \"crate::timer::B\";\nconst C: char = '\"';\n{tests}"
            ),
        ),
        (
            "lua/a.lua",
            "#!lua flags=no-writes\n-- Reads.\n-- KEYS   1 meta\n-- ARGV   1 version  2 from\n--        3 to\n-- Reply  rows\nreturn {KEYS[1], unpack(ARGV)}",
        ),
    ] {
        assert_eq!(verdict(path, text), Vec::<String>::new(), "{path}");
    }
    let pair = [
        ("src/clock.rs", "//! Clock.\n#[cfg(test)]\nmod tests;\n"),
        ("src/clock/tests.rs", "//! Tests.\nuse crate::timer;\n"),
    ];
    assert_eq!(
        judge(
            &pair
                .map(|(path, text)| (path.to_owned(), text.to_owned()))
                .into()
        ),
        Vec::<String>::new()
    );
}
