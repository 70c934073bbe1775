//! Style as a test: layers, fences, sizes, names, and scripts that are what their heads say. It reads `src/` and `lua/` as text, as
//! rustfmt leaves them; what clippy can hold is not its business.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use regex_lite::Regex;

/// The rows of the layer table, lowest first. A file imports its own cell and lower rows, but roles no adapters: only the shell knows those.
/// The domain and the shell are one cell each.
const ROWS: [&[&str]; 6] = [
    &["model", "limit", "mutant"],
    &["run", "wheel", "schedule"],
    &[
        "store", "broker", "task", "metric", "trace", "health", "clock",
    ],
    &[
        "store/redis",
        "store/embedded",
        "store/memory",
        "broker/kafka",
        "broker/nats",
        "broker/memory",
    ],
    &["ingress", "timer", "admin"],
    &[
        "main",
        "lib",
        "cli",
        "config",
        "role",
        "command",
        "telemetry",
        "sim",
    ],
];

/// The steps sideways: what a shard may claim is told from the runs seen and the wheel that holds them, a metered store counts, and so does a
/// tracer what it drops.
const BESIDE: [(&str, &str); 4] = [
    ("schedule", "run"),
    ("schedule", "wheel"),
    ("store", "metric"),
    ("trace", "metric"),
];

/// Outside crates that are kept to some cells, or (without cells) to a row and those above.
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
    (&["zstd", "xxhash_rust"], 0, &["run"]),
    (&["tikv_jemallocator"], 0, &["main"]),
    (&["ratatui"], 0, &["command"]),
    (&["anyhow"], 5, &[]),
    (&["tokio", "tokio_util", "tracing", "async_trait"], 2, &[]),
];

const LINES_MAX: usize = 600;
const EMPTY_WORDS: [&str; 8] = [
    "manager",
    "handler",
    "helper",
    "processor",
    "engine",
    "util",
    "utils",
    "common",
];

/// Path below the project's root, and text.
type Files = BTreeMap<String, String>;

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
    let mut complaints = Vec::new();
    for (path, text) in files {
        let found = match path.strip_prefix("src/") {
            Some(module) if !is_test(path) => judge_module(module, text),
            Some(_) => Vec::new(),
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

fn judge_module(module: &str, text: &str) -> Vec<String> {
    let place: Vec<&str> = module
        .trim_end_matches(".rs")
        .split('/')
        .filter(|part| *part != "mod")
        .collect();
    let code = production(text);
    let tokens = tokens(&code);
    let mut complaints = Vec::new();
    if !text.starts_with("//! ") {
        complaints.push("its first line is no `//!` sentence that says its duty".to_owned());
    }
    if code.lines().count() > LINES_MAX {
        complaints.push(format!(
            "{} lines before its tests, of {LINES_MAX}",
            code.lines().count()
        ));
    }
    let names = place.iter().copied().chain(declared(&tokens));
    complaints.extend(
        names
            .filter(|name| says_nothing(name))
            .map(|name| format!("the name `{name}` says nothing: what does it do?")),
    );
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

/// Why a file of this cell may not name that path.
fn trespass(row: usize, from: &str, path: &str) -> Option<String> {
    let mut parts = path.split("::");
    let first = parts.next()?;
    if first == "crate" {
        let (other, to) = cell(&parts.collect::<Vec<_>>()).unwrap_or((5, "lib"));
        let beside = other == row && ([0, 5].contains(&row) || BESIDE.contains(&(from, to)));
        let fine = to == from || beside || (other < row && (row, other) != (4, 3));
        return (!fine).then(|| {
            format!(
                "`{path}` is of `{to}` in row {other}, and `{from}` in row {row} may not know it"
            )
        });
    }
    let (_, lowest, cells) = FENCES.iter().find(|(crates, ..)| crates.contains(&first))?;
    let fine = row >= *lowest && (cells.is_empty() || cells.contains(&from));
    (!fine).then(|| format!("`{path}` is fenced off from `{from}`"))
}

/// What is compiled into the service: the file without the items that `#[cfg(test)]` stands on. A module of tests ends its file.
fn production(text: &str) -> String {
    let (mut code, mut lines) = (String::new(), text.lines());
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("#[cfg(test)]") {
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

/// What the files of `#[cfg(test)] mod name;` lines begin with.
fn test_files(path: &str, text: &str) -> Vec<String> {
    let folder = path
        .strip_suffix("mod.rs")
        .or(path.strip_suffix("lib.rs"))
        .map_or_else(|| path.replace(".rs", "/"), str::to_owned);
    let lines: Vec<&str> = text.lines().collect();
    let pairs = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
    pairs
        .filter_map(|pair| {
            Some(format!(
                "{folder}{}",
                pair[1].rsplit_once("mod ")?.1.strip_suffix(';')?
            ))
        })
        .collect()
}

fn says_nothing(name: &str) -> bool {
    regex("[A-Z]?[a-z]+")
        .find_iter(name)
        .any(|word| EMPTY_WORDS.contains(&word.as_str().to_lowercase().as_str()))
}

/// A script: shebang, head, body. The head lists what the body takes, `-- KEYS   1 meta  2 counts`, then `-- ARGV` likewise, then `-- Reply`.
/// What lies in `lua/include` is put in behind the shebang of each, and uses the first keys and the first argument of any.
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
                    .then(|| "it does not begin with what it is for".to_owned()),
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
        complaints.push("its first line is no `#!lua`".to_owned());
    }
    if !head.contains("-- Reply") {
        complaints.push("its head does not list its replies".to_owned());
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
                .map(|index| format!("its head does not list {kind}[{index}]")),
        );
        // A table that is handed on whole, or indexed by a variable, may use any of its places; so does the include that looks at types.
        let whole = regex(&format!(r"{kind}([^\[]|\[\D)|foreign\(")).is_match(&body);
        let unused = listed
            .difference(&used)
            .filter(|index| !whole && !of_includes.contains(index));
        complaints.extend(
            unused.map(|index| format!("its head lists {kind}[{index}], which it does not use")),
        );
    }
    complaints
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

/// The words and signs of Rust code, without comments and literals.
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

/// Every path that the code names, in `use` or in place, from `crate` or an outside crate on.
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
    // Where a module lies inside of the file, `super` may stand for the file itself.
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

/// What one tree of a `use` brings: paths, each with its name in this file.
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
        .map(|entry| entry.expect("a readable folder").path())
    {
        if path.is_dir() {
            read(&path, root, files);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "rs" || extension == "lua")
        {
            let name = path
                .strip_prefix(root)
                .expect("below the root")
                .to_str()
                .expect("a name in UTF-8")
                .to_owned();
            files.insert(
                name,
                std::fs::read_to_string(&path).expect("a text in UTF-8"),
            );
        }
    }
}

#[test]
fn the_project_keeps_to_its_style() {
    let (root, mut files) = (Path::new(env!("CARGO_MANIFEST_DIR")), Files::new());
    for folder in ["src", "lua"] {
        read(&root.join(folder), root, &mut files);
    }
    assert!(files.contains_key("src/lib.rs"), "nothing was read");
    let complaints = judge(&files);
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

fn verdict(path: &str, text: &str) -> Vec<String> {
    let script = "//! Scripts.\nconst A: &str = include_str!(\"../../../lua/a.lua\");\n";
    judge(&Files::from([
        ("src/store/redis/script.rs".into(), script.into()),
        (path.to_owned(), text.to_owned()),
    ]))
}

#[test]
fn an_offence_is_found() {
    let long = format!(
        "//! Long.\n{}#[cfg(test)]\nmod tests {{\n",
        "//\n".repeat(600)
    );
    for (path, text, complaint) in [
        (
            "src/model/time.rs",
            "//! Time.\nuse crate::{limit::A, wheel::{self, Wheel}};",
            "`crate::wheel` is of `wheel` in row 1",
        ),
        (
            "src/wheel/mod.rs",
            "//! Wheel.\nuse crate::schedule;",
            "`crate::schedule` is of `schedule` in row 1",
        ),
        (
            "src/timer/mod.rs",
            "//! Timer.\nuse super::ingress::Intake as I;",
            "`crate::ingress::Intake` is of `ingress` in row 4",
        ),
        (
            "src/timer/mod.rs",
            "//! Timer.\nfn f() { crate::store::redis::g() }",
            "`crate::store::redis::g` is of `store/redis` in row 3",
        ),
        (
            "src/admin/mod.rs",
            "//! Admin.\nuse crate::store;\ntype A = store::memory::B;",
            "`crate::store::memory::B` is of `store/memory`",
        ),
        (
            "src/broker/kafka/source.rs",
            "//! Source.\nuse crate::store::embedded;",
            "row 3, and `broker/kafka` in row 3 may not",
        ),
        (
            "src/store/mod.rs",
            "//! Store.\npub mod redis;\nfn f() { redis::g() }",
            "`crate::store::redis::g` is of `store/redis`",
        ),
        (
            "src/store/contract.rs",
            "//! Contract.\nfn f() -> redis::Client { }",
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
        (
            "src/clock.rs",
            "use std::fmt;\n",
            "its first line is no `//!` sentence",
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
        ("src/clock.rs", &long, "601 lines before its tests, of 600"),
        (
            "lua/a.lua",
            "-- KEYS  1 a\n-- ARGV  1 b\n-- Reply  c\n",
            "its first line is no `#!lua`",
        ),
        (
            "lua/a.lua",
            "#!lua\n-- KEYS  1 a\n-- ARGV  1 b\nlocal a = KEYS[1]",
            "its head does not list its replies",
        ),
        (
            "lua/a.lua",
            "#!lua\n-- KEYS  1 a\n-- ARGV  1 b\n-- Reply  c\nreturn KEYS[2], ARGV[i]",
            "its head does not list KEYS[2]",
        ),
        (
            "lua/a.lua",
            "#!lua\n-- KEYS  1 a\n-- ARGV  1 b  2 c\n-- Reply  c\nreturn KEYS[1] -- ARGV[2]",
            "its head lists ARGV[2], which it",
        ),
        (
            "lua/b.lua",
            "#!lua\n-- KEYS  1 a\n-- ARGV  1 b\n-- Reply  c\n",
            "src/store/redis/script.rs does not include it",
        ),
        (
            "lua/include/c.lua",
            "local function f() end\n",
            "it does not begin with what it is for",
        ),
    ] {
        let found = verdict(path, text);
        assert!(
            found
                .iter()
                .any(|found| found.contains(complaint) && found.starts_with(path)),
            "{path}: {complaint}\nfound: {found:#?}"
        );
    }
}

#[test]
fn what_the_style_allows_passes() {
    let tests = "#[cfg(test)]\nuse crate::{\n    role::A,\n};\nstruct B<'a>(&'a u8);\n#[cfg(test)]\nmod tests {\n    use crate::sim;\n}\n";
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
        ("src/clock/tests.rs", "use crate::timer;\n"),
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
