//! Decodes the values with serde, and explains the first value that does not decode.

mod include;
pub(super) mod quantity;
pub(super) mod secret;
pub(super) mod source;

use super::error::Problem;
use figment::error::Kind;
use figment::value::Value;
use serde::de::value::StrDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use source::{PREFIX, Sources, find, is_secret};
use std::fmt::Display;

/// Shows how each option is written.
const REFERENCE: &str = include_str!("../../../config/default.toml");

/// The text of a serde error with our own cause and fix.
pub(super) fn invalid(what: impl Display, fix: impl Display) -> String {
    format!("{what}\n{fix}")
}

/// Decodes an enum from the word of a variant. Figment would decode it from a number, too.
pub(super) fn choice<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let word = String::deserialize(deserializer)?;
    T::deserialize(StrDeserializer::new(&word))
}

/// Decodes a list of such words.
pub(super) fn choices<'de, D, T, C>(deserializer: D) -> Result<C, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
    C: FromIterator<T>,
{
    let words = Vec::<String>::deserialize(deserializer)?;
    let choice = |word: &String| T::deserialize(StrDeserializer::new(word));
    words.iter().map(choice).collect()
}

impl Sources {
    pub(super) fn decode<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        T::deserialize(&self.values).map_err(|error| self.explain(error))
    }

    fn explain(&self, error: figment::Error) -> Problem {
        let mut path = error.path;
        // Double brackets make a list of tables, and serde would blame its first table.
        if let [section, name, _] = &path[..]
            && let Some(Value::Array(_, items)) = find(&self.values, &path[..2])
            && items.iter().all(|item| item.as_dict().is_some())
        {
            let fix = format!("write [{section}.{name}] in single brackets");
            return self.problem(&path, "expected a table, found a list of tables", fix);
        }
        let (what, fix) = match error.kind {
            Kind::MissingField(key) => {
                path.push(key.into_owned());
                let mut fix = format!("add {}", self.example(&path));
                if is_secret(&path.iter().map(String::as_str).collect::<Vec<_>>()) {
                    fix +=
                        ", or the key with _file appended and the path of a file that contains it";
                }
                ("missing".to_owned(), fix)
            }
            Kind::UnknownField(key, known) => {
                let fix = match nearest(&key, known.iter().copied()) {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None if self.variable(&path).is_some() => "unset it, or write two underscores \
                         for each dot, as in POSTDATE_ROUTE__ORDERS__MAX_DELAY"
                        .to_owned(),
                    None => format!(
                        "remove it, or move it to its table; keys without a table stand above the first table. The keys here are: {}",
                        known.join(", ")
                    ),
                };
                ("unknown key".to_owned(), fix)
            }
            Kind::UnknownVariant(word, words) => unknown_word(&word, words),
            Kind::InvalidType(_, expected) | Kind::InvalidValue(_, expected) => {
                let what = format!("expected {}", expected_type(&expected));
                (what, format!("write {}", self.example(&path)))
            }
            Kind::Message(text) => match text.split_once('\n') {
                Some((what, fix)) => (what.to_owned(), fix.to_owned()),
                None => (text, format!("write {}", self.example(&path))),
            },
            _ => (
                "the value cannot be used".to_owned(),
                format!("write {}", self.example(&path)),
            ),
        };
        self.problem(&path, what, fix)
    }

    /// Shows how the reference file writes the value, in the place where the value was written.
    fn example(&self, path: &[String]) -> String {
        let (section, key) = (path.first(), path.last());
        let begin = format!("{} = ", key.map_or("", String::as_str));
        let section = section.and_then(|section| REFERENCE.find(&format!("[{section}")));
        let mut lines = REFERENCE[section.unwrap_or_default()..].lines();
        let shown = |line: &&str| line.trim_start_matches('#').starts_with(&begin);
        let Some(line) = lines.find(shown) else {
            return "it as config/default.toml does".to_owned();
        };
        let line = line.trim_start_matches('#');
        let variable = format!("{PREFIX}{}", path.join("__").to_uppercase());
        if self.variable(path) == Some(&variable) {
            format!("{variable}='{}'", &line[begin.len()..])
        } else {
            line.to_owned()
        }
    }
}

fn expected_type(expected: &str) -> &str {
    match expected {
        "a string" | "path string" => "text in quotes",
        "a sequence" => "a list",
        "a map" => "a table",
        "u32" => "a whole number",
        other => other,
    }
}

fn unknown_word(word: &str, words: &[&str]) -> (String, String) {
    let all: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let all = all.join(" or ");
    let fix = match nearest(word, words.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"? The choice is {all}"),
        None => format!("choose {all}"),
    };
    (format!("{word:?} is unknown"), fix)
}

/// The candidate that `text` was probably meant to be.
pub(super) fn nearest<'a>(
    text: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let text = text.to_lowercase().replace('-', "_");
    let distance =
        |candidate: &str| strsim::damerau_levenshtein(&text, &candidate.replace('-', "_"));
    let near = candidates
        .into_iter()
        .map(|candidate| (distance(candidate), candidate))
        .min()?;
    (near.0 <= near.1.len().div_ceil(3)).then_some(near.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_key_is_suggested() {
        for name in ["max_dealy", "max-delay"] {
            assert_eq!(nearest(name, ["max_delay", "retry"]), Some("max_delay"));
        }
        assert_eq!(nearest("colour", ["max_delay", "retry"]), None);
    }
}
