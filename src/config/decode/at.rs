//! The position of a value: reads it, checks it against a range or a list, and reports problems
//! there.

use super::path::Path;
use super::quantity::Quantity;
use super::{Range, Report, known_keys};
use crate::config::error::{Place, Problem};
use crate::config::secret::Secret;
use figment::error::Kind;
use figment::value::Value;
use std::collections::BTreeSet;
use std::io::Read as _;

/// Bytes of a secret's file; a bundle of certificates has a quarter of it.
const SECRET_FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Values that show in an error how a key is written.
const EXAMPLES: &[(&str, &str)] = &[
    ("roles", r#"["ingress", "timer"]"#),
    ("brokers", r#"["127.0.0.1:9092"]"#),
    ("properties", r#"{ "security.protocol" = "SSL" }"#),
    (
        "source",
        r#"{ kafka = "main", topics = ["orders.delayed"] }"#,
    ),
    ("topics", r#"["orders.delayed"]"#),
    ("subjects", r#"["delayed.orders.>"]"#),
    ("target", r#"{ kafka = "main", topic = "orders" }"#),
    ("allow", r#"["orders", "billing.*"]"#),
    (
        "dead_letter",
        r#"{ kafka = "main", topic = "orders.dead" }"#,
    ),
    ("dialects", r#"["rabbitmq"]"#),
    (
        "retry",
        r#"{ max_attempts = 10, backoff = "1s", backoff_max = "5m" }"#,
    ),
];

/// The position of a value, which may be missing.
#[derive(Clone)]
pub(in crate::config) struct At<'a> {
    report: &'a Report,
    path: Path,
}

impl<'a> At<'a> {
    pub(super) fn new(report: &'a Report, path: Path) -> Self {
        Self { report, path }
    }

    fn with(&self, path: Path) -> Self {
        Self::new(self.report, path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::config) fn key(&self, key: &str) -> Self {
        self.with(self.path.key(key))
    }

    pub(in crate::config) fn index(&self, index: usize) -> Self {
        self.with(self.path.index(index))
    }

    /// The name of the last key.
    pub(in crate::config) fn name(&self) -> &str {
        self.path.name()
    }

    /// The value as it was written, even if it did not decode.
    pub(in crate::config) fn value(&self) -> Option<&'a Value> {
        self.report.sources.value(&self.path)
    }

    pub(in crate::config) fn is_set(&self) -> bool {
        self.value().is_some()
    }

    /// The text of the environment variable that set the value.
    pub(in crate::config) fn raw(&self) -> Option<&'a str> {
        self.report.sources.raw(&self.path)
    }

    pub(in crate::config) fn refuse(&self, what: impl Into<String>, fix: impl Into<String>) {
        let key = (!self.path.segments().is_empty()).then(|| self.path.to_string());
        self.report.problems.borrow_mut().push(Problem {
            place: self.report.sources.place(&self.path),
            key,
            what: what.into(),
            fix: fix.into(),
        });
    }

    /// Reports a required key as missing, unless it is set to something that did not decode.
    pub(in crate::config) fn missing(&self, fix: impl Into<String>) {
        if !self.is_set() {
            self.refuse("missing", fix);
        }
    }

    /// Reports that both keys are set.
    pub(in crate::config) fn given_twice(&self, other: &Self) {
        self.refuse(
            format!("{} sets the same option", other.path),
            "keep one of the two",
        );
    }

    /// Returns whether this value comes from the environment and `other` does not.
    pub(in crate::config) fn overrides(&self, other: &Self) -> bool {
        self.raw().is_some() && other.raw().is_none()
    }

    /// Shows how to write `toml` as this value, in the place where the value was written.
    pub(in crate::config) fn example(&self, toml: &str) -> String {
        match self.own_variable() {
            Some(name) => format!("{name}='{toml}'"),
            None if self.path.is_entry() => toml.to_owned(),
            None => format!("{} = {toml}", Path::of(&[self.name()])),
        }
    }

    /// The value as it may be shown if it is no secret.
    pub(in crate::config) fn shown(&self) -> String {
        let raw = self.own_variable().and_then(|_| self.raw());
        let text = match raw {
            Some(raw) => raw.to_owned(),
            None => self.value().and_then(scalar).unwrap_or_default(),
        };
        let text = text.trim().trim_matches(['"', '\'']);
        text.chars().take(60).collect()
    }

    /// The variable that holds this value alone. A longer one may hold secrets as well.
    fn own_variable(&self) -> Option<String> {
        let name = self.path.variable();
        let is_own = self.report.sources.place(&self.path) == Place::Variable(name.clone());
        (is_own && !self.path.is_entry()).then_some(name)
    }

    /// The value's type in TOML's words.
    fn kind(&self) -> &'static str {
        match self.value() {
            Some(Value::String(..)) => "text",
            Some(Value::Char(..)) => "a character in single quotes",
            Some(Value::Bool(..)) => "true or false",
            Some(value @ Value::Num(..)) if whole(value).is_none() => "a fraction",
            Some(Value::Num(..)) => "a number",
            Some(Value::Dict(..)) => "a table",
            Some(Value::Array(..)) => "a list",
            Some(Value::Empty(..)) | None => "nothing",
        }
    }

    /// Reports all texts below that no key accepts, and returns their positions.
    pub(super) fn texts_that_no_key_accepts(&self) -> Vec<Self> {
        let below: Vec<Self> = match self.value() {
            Some(Value::Dict(_, dict)) => dict.keys().map(|key| self.key(key)).collect(),
            Some(Value::Array(_, list)) => (0..list.len()).map(|i| self.index(i)).collect(),
            Some(Value::String(_, text)) if text.contains('\0') => {
                self.refuse("the text contains a NUL character", "remove the NUL");
                return vec![self.clone()];
            }
            Some(Value::Char(..)) => {
                let what = "expected another value, found a character in single quotes";
                self.refuse(what, "write text in double quotes");
                return vec![self.clone()];
            }
            _ => Vec::new(),
        };
        below
            .iter()
            .flat_map(Self::texts_that_no_key_accepts)
            .collect()
    }

    /// Cause and fix of a value that did not decode.
    pub(super) fn explain(&self, kind: &Kind) -> (String, String) {
        match kind {
            Kind::UnknownField(_, known) => (
                "unknown key".to_owned(),
                known_keys::advice(&self.path, known),
            ),
            Kind::UnknownVariant(word, words) => unknown_word(word, words),
            Kind::InvalidValue(_, grammar) => (
                format!("{:?} is not understood", self.shown()),
                format!("write {grammar}"),
            ),
            Kind::InvalidType(_, expected) => self.explain_type(expected),
            _ => (
                "this value cannot be used".to_owned(),
                "see config/default.toml".to_owned(),
            ),
        }
    }

    fn explain_type(&self, expected: &str) -> (String, String) {
        let example = EXAMPLES.iter().find(|(key, _)| *key == self.name());
        let example = example.filter(|_| !self.path.is_entry());
        let example = example.map(|(_, example)| self.example(example));
        let (expected, fix) = match expected {
            "a table" | "a map" => ("a table", example.unwrap_or(format!("[{}]", self.path))),
            "a sequence" => (
                "a list",
                self.list_example().or(example).unwrap_or_default(),
            ),
            "i64" => {
                let text = self.shown();
                let is_whole = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
                let example = self.example(if is_whole { &text } else { "1" });
                (
                    "a whole number",
                    format!("a whole number, such as {example}"),
                )
            }
            "a string" | "path string" => return self.explain_text(true),
            Secret::EXPECTED => return self.explain_text(false),
            grammar if matches!(self.value(), Some(Value::Num(..))) => {
                return ("the unit is missing".to_owned(), format!("write {grammar}"));
            }
            grammar => ("text", grammar.to_owned()),
        };
        (
            format!("expected {expected}, found {}", self.kind()),
            format!("write {fix}"),
        )
    }

    /// A value that must be text. `show` says whether the fix may show it.
    pub(in crate::config) fn explain_text(&self, show: bool) -> (String, String) {
        let what = format!("expected text, found {}", self.kind());
        let fix = match self.value() {
            Some(Value::Array(..) | Value::Dict(..)) => {
                format!("write {}", self.example("\"...\""))
            }
            _ => {
                let text = if show { self.shown() } else { "...".to_owned() };
                format!(
                    "put it into quotes: {}",
                    self.example(&format!("\"{text}\""))
                )
            }
        };
        (what, fix)
    }

    /// The words of a text as a list: most likely only the brackets are missing.
    fn list_example(&self) -> Option<String> {
        let text = self.value()?.as_str().filter(|text| !text.is_empty())?;
        let words: Vec<_> = text
            .split(',')
            .map(|word| format!("{:?}", word.trim()))
            .collect();
        Some(self.example(&format!("[{}]", words.join(", "))))
    }

    /// Checks a quantity against its range; `None` gives the default.
    pub(in crate::config) fn in_range<T: Quantity>(&self, given: Option<T>, range: &Range<T>) -> T {
        let given = given.unwrap_or(range.default);
        if given < range.least || given > range.greatest {
            self.refuse(
                format!("{given} is out of range"),
                format!("choose from {} to {}", range.least, range.greatest),
            );
        }
        given
    }

    /// Checks a number against its range.
    pub(in crate::config) fn number_in_range(
        &self,
        given: Option<i64>,
        range: &Range<u32>,
    ) -> Option<u32> {
        let given = given?;
        let number = u32::try_from(given).ok();
        let number = number.filter(|number| (range.least..=range.greatest).contains(number));
        if number.is_none() {
            self.refuse(
                format!("{given} is out of range"),
                format!("write a number from {} to {}", range.least, range.greatest),
            );
        }
        number
    }

    /// Returns the entries of a list that has each entry once, and at least one.
    pub(in crate::config) fn entries(&self, list: Option<Vec<String>>) -> Vec<(Self, String)> {
        if list.as_ref().is_some_and(Vec::is_empty) {
            let example = EXAMPLES.iter().find(|(key, _)| *key == self.name());
            let example = example.map_or("[\"...\"]", |(_, example)| example);
            self.refuse(
                "the list is empty",
                format!("write {}", self.example(example)),
            );
        }
        let mut seen = BTreeSet::new();
        let mut entries = self.any_entries(list);
        entries.retain(|(at, text)| {
            let is_new = seen.insert(text.clone());
            if !is_new {
                at.refuse(
                    format!("{:?} is in the list twice", at.shown()),
                    "keep one of the two",
                );
            }
            is_new
        });
        entries
    }

    /// Returns the entries of a list that decoded.
    pub(in crate::config) fn any_entries(&self, list: Option<Vec<String>>) -> Vec<(Self, String)> {
        let entries = list.into_iter().flatten().enumerate();
        let entries = entries.map(|(index, text)| (self.index(index), text));
        entries
            .filter(|(at, text)| at.value().and_then(Value::as_str) == Some(text))
            .collect()
    }

    /// Finds the value that `word` names; an unknown word is reported.
    pub(in crate::config) fn choose<T: Copy>(
        &self,
        word: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let found = choices.iter().find(|(name, _)| *name == word);
        if found.is_none() {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            let (what, fix) = unknown_word(word, &names);
            self.refuse(what, fix);
        }
        found.map(|(_, choice)| *choice)
    }

    /// Returns the secret that is given here or, under `<key>_file`, by a file. The environment
    /// overrides the configuration file; two values in one of them are a problem.
    pub(in crate::config) fn secret(
        &self,
        plain: Option<Secret>,
        file: Option<String>,
    ) -> Option<(Self, Secret)> {
        let by_file = self.with(self.path.sibling(&format!("{}_file", self.name())));
        let (at, secret) = match (plain, file) {
            (Some(plain), Some(_)) if self.overrides(&by_file) => (self.clone(), plain),
            (Some(_), Some(file)) if by_file.overrides(self) => {
                let text = by_file.secret_file(&file)?;
                (by_file, Secret::new(text))
            }
            (Some(_), Some(_)) => {
                by_file.given_twice(self);
                return None;
            }
            (Some(plain), None) => (self.clone(), plain),
            (None, file) => {
                let text = by_file.secret_file(&file?)?;
                (by_file, Secret::new(text))
            }
        };
        if secret.expose().is_empty() {
            at.refuse("the text is empty", "write a value, or remove the key");
        }
        Some((at, secret))
    }

    /// Reads a secret from the file `name`, without the end of its last line.
    pub(in crate::config) fn secret_file(&self, name: &str) -> Option<String> {
        let fix = "give the path of a file that contains only the secret";
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
            let what = format!("the file {name} is empty, not text, or larger than 1MiB");
            self.refuse(what, fix);
            return None;
        }
        Some(text.to_owned())
    }
}

fn unknown_word(word: &str, words: &[&str]) -> (String, String) {
    let all: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let all = all.join(" or ");
    let fix = match known_keys::nearest(word, words.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"? The choice is {all}"),
        None => format!("choose {all}"),
    };
    (format!("{word:?} is unknown"), fix)
}

/// A whole number of any size.
pub(in crate::config) fn whole(value: &Value) -> Option<i128> {
    let number = value.to_num()?;
    number
        .to_i128()
        .or_else(|| i128::try_from(number.to_u128()?).ok())
}

/// Text, a number, or true or false, as text.
pub(in crate::config) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(_, text) => Some(text.clone()),
        Value::Bool(_, flag) => Some(flag.to_string()),
        Value::Num(_, number) => match whole(value) {
            Some(number) => Some(number.to_string()),
            None => number.to_f64().map(|number| number.to_string()),
        },
        _ => None,
    }
}
