//! One value of the configuration: what it is read as, and what is said of it if it cannot be.

use super::file::Layers;
use super::key::{Path, nearest};
use super::problem::Place;
use super::read::{Range, Reader};
use super::unit::Quantity;
use figment::value::{Dict, Value};
use std::collections::BTreeSet;
use std::io::Read as _;

/// A file beyond this size holds no secret. A bundle of certificates has a quarter of it.
const SECRET_FILE_BYTES_MAX: u64 = 1024 * 1024;

/// One value, and where it stands.
#[derive(Clone)]
pub(super) struct Field<'a> {
    reader: &'a Reader,
    path: Path,
    value: &'a Value,
}

impl<'a> Field<'a> {
    pub(super) fn new(reader: &'a Reader, path: Path, value: &'a Value) -> Self {
        Self {
            reader,
            path,
            value,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn refuse(&self, what: impl Into<String>, fix: impl Into<String>) {
        self.reader.add(
            self.layers().place(&self.path, self.value),
            &self.path,
            what,
            fix,
        );
    }

    fn layers(&self) -> &'a Layers {
        self.reader.layers()
    }

    /// Whether this value stands in the environment and the other in the file.
    pub(super) fn is_above(&self, other: &Self) -> bool {
        self.layers().raw(self.value).is_some() && other.layers().raw(other.value).is_none()
    }

    pub(super) fn given_twice(&self, other: &Self) {
        self.refuse(
            format!("given a second time: {} sets the same", other.path),
            "keep one of the two",
        );
    }

    pub(super) fn as_dict(&self) -> Option<&'a Dict> {
        self.value.as_dict()
    }

    /// The variable that holds this value and nothing else: of a longer one, the rest may be secret.
    fn own_variable(&self) -> Option<String> {
        let name = self.path.variable();
        let is_own = self.layers().place(&self.path, self.value) == Place::Variable(name.clone());
        (is_own && !self.path.is_entry()).then_some(name)
    }

    /// What the value is, in TOML's words.
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            Value::String(..) => "text",
            Value::Char(..) => "a character in single quotes",
            Value::Bool(..) => "true or false",
            Value::Num(..) if whole(self.value).is_none() => "a fraction",
            Value::Num(..) => "a number",
            Value::Empty(..) => "nothing",
            Value::Dict(..) => "a table",
            Value::Array(..) => "a list",
        }
    }

    /// The value as it may be shown: not if it is or may be a secret.
    pub(super) fn shown(&self) -> String {
        if self.path.is_secret() {
            return "...".to_owned();
        }
        let raw = self
            .own_variable()
            .and_then(|_| self.layers().raw(self.value));
        let text = raw
            .map(str::to_owned)
            .or_else(|| scalar(self.value))
            .unwrap_or_default();
        text.trim()
            .trim_matches(['"', '\''])
            .chars()
            .take(60)
            .collect()
    }

    /// How to write `toml` as this value, where it was written.
    pub(super) fn example(&self, toml: &str) -> String {
        match self.own_variable() {
            Some(name) => format!("{name}='{toml}'"),
            None if self.path.is_entry() => toml.to_owned(),
            None => format!("{} = {toml}", Path::of(&[self.path.name()])),
        }
    }

    /// Text; of anything else it is said how to make it text.
    pub(super) fn text(&self) -> Option<&'a str> {
        match self.value {
            Value::String(_, text) if text.contains('\0') => {
                self.refuse("the text holds a NUL character", "take the NUL out")
            }
            Value::String(_, text) => return Some(text),
            Value::Array(..) | Value::Dict(..) => {
                self.refuse(
                    format!("{} stands where text is needed", self.kind()),
                    format!("write {}", self.example("\"...\"")),
                );
            }
            _ => {
                let fix = format!(
                    "put it into quotes: {}",
                    self.example(&format!("\"{}\"", self.shown()))
                );
                self.refuse(format!("{} stands where text is needed", self.kind()), fix);
            }
        }
        None
    }

    /// Text, or what a client's property may be besides: an integer, true or false.
    pub(super) fn text_of_property(&self) -> Option<String> {
        match self.value {
            Value::Bool(..) | Value::Num(..)
                if whole(self.value).is_some() || self.value.to_bool().is_some() => {}
            _ => return self.text().map(str::to_owned),
        }
        let text = scalar(self.value)?;
        // Of `0123` in a variable only the number 123 is left, and a password would have lost its nought.
        let is_cut = |before: &str| before.ends_with(|c: char| c.is_ascii_digit() || c == '+');
        let is_exact = self
            .layers()
            .raw(self.value)
            .is_none_or(|raw| raw.match_indices(&text).any(|(at, _)| !is_cut(&raw[..at])));
        if is_exact {
            Some(text)
        } else {
            self.text().map(str::to_owned)
        }
    }

    /// What the file holds that this value names, without the line's end.
    pub(super) fn file_content(&self) -> Option<String> {
        let name = self.text()?;
        let fix = "give the path of a file that holds the secret and nothing else";
        let mut content = String::new();
        let read = std::fs::File::open(name).and_then(|file| {
            file.take(SECRET_FILE_BYTES_MAX + 1)
                .read_to_string(&mut content)
        });
        if let Err(error) = read {
            self.refuse(format!("the file {name} cannot be read: {error}"), fix);
            return None;
        }
        let text = content.strip_suffix('\n').map_or(content.as_str(), |line| {
            line.strip_suffix('\r').unwrap_or(line)
        });
        if text.is_empty() || text.contains('\0') || text.len() as u64 > SECRET_FILE_BYTES_MAX {
            self.refuse(
                format!("the file {name} is empty, not text, or larger than 1MiB"),
                fix,
            );
            return None;
        }
        Some(text.to_owned())
    }

    pub(super) fn integer(&self, range: &Range<u32>) -> Option<u32> {
        let Some(number) = whole(self.value) else {
            self.refuse(
                format!("{} stands where a whole number is needed", self.kind()),
                format!("write {}", self.example(&range.default.to_string())),
            );
            return None;
        };
        let fits = u32::try_from(number)
            .ok()
            .filter(|number| (range.least..=range.greatest).contains(number));
        if fits.is_none() {
            self.refuse(
                format!("{number} is out of range"),
                format!("give a number from {} to {}", range.least, range.greatest),
            );
        }
        fits
    }

    pub(super) fn quantity<T: Quantity>(&self, range: &Range<T>) -> Option<T> {
        if matches!(self.value, Value::Num(..)) {
            self.refuse("a number without a unit", format!("write {}", T::GRAMMAR));
            return None;
        }
        let text = self.text()?;
        let Some(quantity) = T::parse(text) else {
            self.refuse(
                format!("{:?} is not understood", self.shown()),
                format!("write {}", T::GRAMMAR),
            );
            return None;
        };
        if quantity < range.least || quantity > range.greatest {
            self.refuse(
                format!("{text} is out of range"),
                format!(
                    "choose from {} to {}",
                    range.least.write(),
                    range.greatest.write()
                ),
            );
            return None;
        }
        Some(quantity)
    }

    pub(super) fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = choices
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, choice)| *choice);
        if found.is_none() {
            let words = choices.iter().map(|(word, _)| *word);
            let all = words
                .clone()
                .map(|word| format!("\"{word}\""))
                .collect::<Vec<_>>()
                .join(" or ");
            let fix = nearest(text, words).map_or_else(
                || format!("choose {all}"),
                |word| format!("did you mean \"{word}\"? The choice is {all}"),
            );
            self.refuse(format!("{:?} is not known", self.shown()), fix);
        }
        found
    }

    /// The entries of a list. `example` shows a whole one.
    pub(super) fn list(&self, example: &str) -> Option<Vec<Field<'a>>> {
        let Some(values) = self.value.as_array() else {
            // Most likely the right words without the brackets.
            let words = |text: &str| {
                format!(
                    "[{}]",
                    text.split(',')
                        .map(|word| format!("{:?}", word.trim()))
                        .collect::<Vec<_>>()
                        .join(", ")
                )
            };
            let list = self
                .value
                .as_str()
                .filter(|text| !text.is_empty())
                .map_or_else(|| example.to_owned(), words);
            self.refuse(
                format!("{} stands where a list is needed", self.kind()),
                format!("write {}", self.example(&list)),
            );
            return None;
        };
        let entry = |(index, value)| Field {
            reader: self.reader,
            path: self.path.index(index),
            value,
        };
        Some(values.iter().enumerate().map(entry).collect())
    }

    /// A list of texts, each once and at least one.
    pub(super) fn texts(&self, example: &str) -> Vec<(Field<'a>, &'a str)> {
        let Some(entries) = self.list(example) else {
            return Vec::new();
        };
        if entries.is_empty() {
            self.refuse(
                "the list is empty",
                format!("write {}", self.example(example)),
            );
        }
        let mut seen = BTreeSet::new();
        let texts = entries
            .into_iter()
            .filter_map(|entry| entry.text().map(|text| (entry, text)));
        let mut once = |(entry, text): &(Field<'a>, &'a str)| {
            let is_new = seen.insert(*text);
            if !is_new {
                entry.refuse(
                    format!("{:?} stands in the list twice", entry.shown()),
                    "keep one of the two",
                );
            }
            is_new
        };
        texts.filter(|pair| once(pair)).collect()
    }
}

fn whole(value: &Value) -> Option<i128> {
    let number = value.to_num()?;
    number
        .to_i128()
        .or_else(|| i128::try_from(number.to_u128()?).ok())
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(_, text) => Some(text.clone()),
        Value::Char(_, char) => Some(char.to_string()),
        Value::Bool(_, flag) => Some(flag.to_string()),
        Value::Num(_, number) => whole(value)
            .map(|n| n.to_string())
            .or_else(|| number.to_f64().map(|n| n.to_string())),
        _ => None,
    }
}
