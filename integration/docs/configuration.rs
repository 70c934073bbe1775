//! Renders `docs/configuration.md` from the comments of `config/default.toml`.

const HEAD: &str = "# Configuration

<!-- Made from config/default.toml: `UPDATE_DOCS=1 cargo test --test tidy configuration` -->

All options, with defaults and units. `--config FILE` names the file of a process.
[default.toml](../config/default.toml) has the same text as a file to copy. The smallest files are
[kafka.toml](../config/kafka.toml), [nats.toml](../config/nats.toml) and, between both brokers,
[bridge.toml](../config/bridge.toml). `postdate check` tests a file against its servers.

";

/// A key with its value. A key that is commented out in the file has no default.
struct Key<'t> {
    name: &'t str,
    value: &'t str,
    is_set: bool,
}

/// The keys below one comment: variants of one option.
struct Row<'t> {
    keys: Vec<Key<'t>>,
    comment: String,
}

/// The page, from the text of the file.
pub(super) fn page(toml: &str) -> String {
    let (head, options) = toml.split_once("\n\n").expect("a comment at the top");
    let mut page = HEAD.to_owned() + &introduction(head);
    let (mut rows, mut comment): (Vec<Row<'_>>, Vec<&str>) = (Vec::new(), Vec::new());
    page += "\n## Top level\n\n";
    for line in options.lines() {
        let option = line.strip_prefix('#').unwrap_or(line);
        if let Some(text) = option.strip_prefix(' ').filter(|_| line.starts_with('#')) {
            comment.push(text);
        } else if option.starts_with('[') {
            page += &table(&std::mem::take(&mut rows));
            let about = prose(&std::mem::take(&mut comment));
            let gap = if about.is_empty() { "" } else { "\n\n" };
            page += &format!("\n## `{option}`\n\n{about}{gap}");
        } else if let Some((name, value)) = option.split_once(" = ") {
            let key = Key {
                name,
                value,
                is_set: option == line,
            };
            if comment.is_empty() && !rows.is_empty() {
                rows.last_mut().expect("a row").keys.push(key);
            } else {
                let comment = std::mem::take(&mut comment).join("\n");
                rows.push(Row {
                    keys: vec![key],
                    comment,
                });
            }
        }
    }
    page + &table(&rows)
}

/// The paragraphs and lists at the top of the file, without the two paragraphs about the file itself.
fn introduction(head: &str) -> String {
    let lines: Vec<_> = head.lines().map(|line| line[1..].trim_start()).collect();
    let paragraphs = lines.split(|line| line.is_empty()).skip(2).map(|lines| {
        let items = lines.iter().position(|line| line.starts_with("- "));
        let (text, items) = lines.split_at(items.unwrap_or(lines.len()));
        let items = items.iter().map(|item| format!("\n{}", prose(&[item])));
        let list: String = items.collect();
        prose(text) + if list.is_empty() { "" } else { "\n" } + &list + "\n"
    });
    paragraphs.collect::<Vec<_>>().join("\n")
}

fn table(rows: &[Row<'_>]) -> String {
    let mut table = "| option | default | meaning |\n|---|---|---|\n".to_owned();
    let mut seen = Vec::new();
    for row in rows {
        let mut names: Vec<_> = row
            .keys
            .iter()
            .map(|key| format!("`{}`", key.name))
            .collect();
        names.dedup();
        let is_variant = seen.contains(&row.keys[0].name);
        seen.push(row.keys[0].name);
        let (default, meaning) = default_and_meaning(row, is_variant);
        table += &format!("| {} | {default} | {meaning} |\n", names.join(", "));
    }
    if rows.is_empty() {
        String::new()
    } else {
        table
    }
}

/// Moves the sentence about the default from the comment to a cell of its own.
fn default_and_meaning(row: &Row<'_>, is_variant: bool) -> (String, String) {
    let lines: Vec<_> = row.comment.lines().collect();
    let text = lines.join("\n");
    let (default, rest) = match text.split_once("Default: ") {
        Some((before, after)) => {
            let after = after.to_owned() + "\n";
            let end = after.find(".\n").into_iter().chain(after.find(". ")).min();
            let end = end.expect("the sentence about the default ends");
            (
                prose(&[&after[..end].replace('\n', " ")]),
                before.to_owned() + after[end + 1..].trim(),
            )
        }
        None if text.contains("Required.") => {
            ("required".to_owned(), text.replace("Required.", ""))
        }
        None if text.contains("Required: ") => {
            ("required".to_owned(), text.replace("Required: ", ""))
        }
        None if is_variant => (String::new(), text),
        None if row.keys[0].is_set => (format!("`{}`", row.keys[0].value), text),
        None => ("none".to_owned(), text),
    };
    let first = &row.keys[0];
    let samples: Vec<_> = row
        .keys
        .iter()
        .filter(|key| key.name == first.name && !key.value.contains("..."))
        .map(|key| format!("`{}`", key.value))
        .collect();
    let is_default = first.is_set && default != "required";
    let default = match default.as_str() {
        _ if is_default || samples.is_empty() => default,
        "" => format!("example: {}", samples.join(" or ")),
        _ => format!("{default}; example: {}", samples.join(" or ")),
    };
    (default, prose(&rest.lines().collect::<Vec<_>>()))
}

/// Markdown of the comment. An indented line is code.
fn prose(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        match line.strip_prefix("    ") {
            Some(code) => text += &format!("`{code}`. "),
            None => text += &format!("{line} "),
        }
    }
    let marked = text
        .split('`')
        .enumerate()
        .map(|(index, part)| match index % 2 {
            0 => part.split(' ').map(mark).collect::<Vec<_>>().join(" "),
            _ => format!("`{part}`"),
        });
    let words = marked.collect::<String>();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Marks a word as code if it is a name, a value or an address, and as a link if it is a page.
fn mark(word: &str) -> String {
    let core = word
        .trim_start_matches('(')
        .trim_end_matches(['.', ',', ':', ';', ')']);
    let is_inside = |char| {
        let mut parts = core.split(char);
        parts.clone().count() > 1 && parts.all(|part| part.starts_with(char::is_alphabetic))
    };
    let is_code = core.starts_with(['"', '[', '/', '*', '>', '$'])
        || core.len() > 1 && core.contains(['_', '<'])
        || core.contains("://")
        || is_inside('.');
    if core.is_empty() || !is_code && !core.starts_with("docs/") {
        return word.to_owned();
    }
    let marked = match core.strip_prefix("docs/") {
        Some(page) if page.ends_with('/') => {
            format!("[{}]({page}README.md)", &page[..page.len() - 1])
        }
        Some(page) => format!("[{}]({page})", page.trim_end_matches(".md")),
        None => format!("`{core}`"),
    };
    word.replacen(core, &marked, 1)
}
