//! Checks the documentation: links, anchors, the summary, commands, and the generated page.

mod configuration;
mod formats;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::CommandFactory;

use super::regex;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below the folder whose name ends with `end`, except for packages of npm.
fn files(folder: &str, end: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the entry can be read").path();
            if path.is_dir() {
                folders.extend(Some(path).filter(|path| !path.ends_with("node_modules")));
            } else if path.to_str().is_some_and(|path| path.ends_with(end)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The pages that readers see.
fn pages() -> Vec<PathBuf> {
    let top = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name));
    [
        files("docs", ".md"),
        files("deploy", "README.md"),
        top.to_vec(),
    ]
    .concat()
}

/// A page as prose and as code: the lines outside code blocks, and those inside.
fn split(page: &str) -> (String, Vec<&str>) {
    let (mut prose, mut code, mut is_fenced) = (String::new(), Vec::new(), false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with("    ") {
            code.push(line.trim());
        } else {
            prose += line;
            prose += "\n";
        }
    }
    (prose, code)
}

/// The anchors of a page, as code hosts and mdBook make them from headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let kept = |char: &char| char.is_alphanumeric() || " -_".contains(*char);
    let prose = split(page).0.to_lowercase();
    prose
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim())
        .map(|heading| heading.chars().filter(kept).collect::<String>())
        .map(|heading| heading.replace(' ', "-"))
        .collect()
}

/// The targets of a page's links and images, without those to other sites.
fn links(page: &str) -> Vec<String> {
    let prose = regex("`[^`\n]*`")
        .replace_all(&split(page).0, "")
        .into_owned();
    regex(r"\]\(([^)\s]+)\)")
        .captures_iter(&prose)
        .map(|found| found[1].to_owned())
        .filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        .collect()
}

/// The fault of a link on the page at `path`.
fn fault(path: &Path, page: &str, link: &str) -> Option<&'static str> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = path.parent().expect("a folder").join(file);
    let text = match file {
        "" => page.to_owned(),
        _ if !target.exists() => return Some("no such file"),
        _ if target.is_dir() => String::new(),
        _ => read(&target),
    };
    (!anchor.is_empty() && !anchors(&text).contains(anchor)).then_some("no such heading")
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut faults = Vec::new();
    for path in pages() {
        let page = read(&path);
        let found = links(&page).into_iter().filter_map(|link| {
            fault(&path, &page, &link).map(|fault| format!("{}: {link}: {fault}", path.display()))
        });
        faults.extend(found);
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn the_summary_lists_every_page_once() {
    let summary = root().join("docs/SUMMARY.md");
    let mut listed: Vec<_> = links(&read(&summary))
        .into_iter()
        .map(|link| root().join("docs").join(link))
        .collect();
    listed.sort();
    let mut pages = files("docs", ".md");
    pages.retain(|page| *page != summary);
    assert_eq!(listed, pages, "docs/SUMMARY.md and the files in docs/");
}

#[test]
fn the_configuration_page_follows_the_configuration_file() {
    let path = root().join("docs/configuration.md");
    let page = configuration::page(&read(&root().join("config/default.toml")));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    assert!(
        read(&path) == page,
        "config/default.toml has changed: run `UPDATE_DOCS=1 cargo test --test tidy configuration`"
    );
}

/// The commands of a line of code: the words of each, with its comment and its pipes cut off.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = line.strip_prefix("$ ").unwrap_or(line);
    let line = line.split(" # ").next().unwrap_or_default();
    // Brackets mean options, so a bar inside of them is no pipe.
    let mut depth = 0;
    line.split_inclusive(|char| {
        depth += i32::from(char == '[') - i32::from(char == ']');
        depth == 0 && "|;&".contains(char)
    })
    .map(|command| {
        let words = command.trim_end_matches(['|', ';', '&']).split_whitespace();
        words
            .map(|word| word.trim_matches(['[', ']', '(', ')']).to_owned())
            .skip_while(|word| word.contains('=') && word.starts_with(char::is_uppercase))
            .collect()
    })
    .collect()
}

/// The arguments, if the words run Postdate.
fn postdate_arguments(words: &[String]) -> Option<&[String]> {
    let is_binary =
        |word: &String| word.ends_with("bin/postdate") || word.ends_with("release/postdate");
    match words {
        [first, rest @ ..] if first == "postdate" => Some(rest),
        _ => Some(&words[words.iter().position(is_binary)? + 1..]),
    }
}

/// The first argument that the command line of Postdate does not know.
fn unknown_argument(arguments: &[String]) -> Option<&str> {
    let cli = postdate::Cli::command();
    let name = arguments.first().filter(|name| !name.starts_with('-'))?;
    let Some(command) = cli.find_subcommand(name) else {
        return Some(name);
    };
    // `postdate messages list` has the flags of `list`.
    let action = arguments
        .get(1)
        .and_then(|name| command.find_subcommand(name));
    let known: Vec<_> = action
        .unwrap_or(command)
        .get_arguments()
        .filter_map(|flag| flag.get_long())
        .collect();
    arguments
        .iter()
        .filter_map(|word| word.strip_prefix("--"))
        .map(|flag| flag.split('=').next().unwrap_or_default())
        .find(|flag| !flag.is_empty() && *flag != "help" && !known.contains(flag))
}

#[test]
fn every_command_exists() {
    let makefile = read(&root().join("Makefile"));
    let targets: BTreeSet<String> = regex("(?m)^([a-z-]+):")
        .captures_iter(&makefile)
        .map(|found| found[1].to_owned())
        .collect();
    let (mut faults, mut count) = (Vec::new(), 0);
    for path in [pages(), files(".github/workflows", ".yml")].concat() {
        let page = read(&path);
        let (prose, code) = split(&page);
        let span = regex("`([^`\n]+)`");
        let spans = span
            .captures_iter(&prose)
            .filter_map(|found| Some(found.get(1)?.as_str()));
        for words in code.iter().copied().chain(spans).flat_map(commands) {
            let unknown = if words.first().is_some_and(|first| first == "make") {
                words[1..]
                    .iter()
                    .find(|word| !word.contains('=') && !targets.contains(*word))
                    .map(String::as_str)
            } else if let Some(arguments) = postdate_arguments(&words) {
                unknown_argument(arguments)
            } else {
                continue;
            };
            count += 1;
            let place = format!("{}: `{}`", path.display(), words.join(" "));
            faults.extend(unknown.map(|word| format!("{place}: there is no {word}")));
        }
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
    assert!(count > 80, "only {count} commands were found");
}

#[test]
fn faults_are_found() {
    let page = "# A `b`, c\n[x](#a-b-c) [`z`](README.md#none)\n```sh\n[no](link)\n```\n";
    assert_eq!(links(page), ["#a-b-c", "README.md#none"]);
    let path = root().join("page.md");
    let fault = |link| fault(&path, page, link);
    assert_eq!(fault("#a-b-c").or(fault("docs")), None);
    assert_eq!(fault("README.md#none"), Some("no such heading"));
    assert_eq!(fault("none.md"), Some("no such file"));
    let unknown = |line: &str| {
        let words = commands(line).swap_remove(0);
        postdate_arguments(&words)
            .and_then(|arguments| unknown_argument(arguments).map(str::to_owned))
    };
    for (line, word) in [
        ("$ postdate pending --config f --json | jq --no", None),
        ("A=1 target/release/postdate run --config f", None),
        ("helm install postdate x", None),
        ("postdate demo [--nats URL | --config FILE [--yes]]", None),
        ("postdate peek", Some("peek")),
        ("postdate run --nope", Some("nope")),
        (
            "kubectl exec x -- /usr/bin/postdate check --jsn",
            Some("jsn"),
        ),
    ] {
        assert_eq!(unknown(line).as_deref(), word, "{line}");
    }
}
