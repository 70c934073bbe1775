//! Typed reading of the laid-over values: each call answers the value or puts a problem on the list and answers nothing, so that one start
//! shows all that is wrong.

use super::field::Field;
use super::file::Layers;
use super::key::{Kind, Path};
use super::problem::{Place, Problem};
use super::secret::Secret;
use super::unit::Quantity;
use figment::value::{Dict, Value};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// What an option is if nobody says, and the range that it must lie in.
pub(super) struct Range<T> {
    pub(super) default: T,
    pub(super) least: T,
    pub(super) greatest: T,
}

/// Reads one configuration and keeps the list of what is wrong with it.
pub(super) struct Reader {
    layers: Layers,
    problems: RefCell<Vec<Problem>>,
    /// Tables with a fault that explains whatever else would be missing in them.
    broken: RefCell<BTreeSet<Path>>,
}

impl Reader {
    pub(super) fn new(layers: Layers) -> Self {
        Self {
            layers,
            problems: RefCell::default(),
            broken: RefCell::default(),
        }
    }

    pub(super) fn root(&self) -> Table<'_> {
        Table {
            reader: self,
            path: Path::default(),
            dict: Some(self.layers.root()),
        }
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }

    /// The value at `keys`, for checks that come after the reading.
    pub(super) fn find(&self, keys: &[&str]) -> Option<Field<'_>> {
        let (last, tables) = keys.split_last()?;
        tables
            .iter()
            .try_fold(self.root(), |table, key| {
                table.dict.map(|_| table.table(key))
            })?
            .field(last)
    }

    /// Whether `path` was not marked before.
    pub(super) fn mark_broken(&self, path: &Path) -> bool {
        self.broken.borrow_mut().insert(path.clone())
    }

    pub(super) fn layers(&self) -> &Layers {
        &self.layers
    }

    pub(super) fn add(
        &self,
        place: Place,
        path: &Path,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let key = (!path.segments().is_empty()).then(|| path.to_string());
        self.problems.borrow_mut().push(Problem {
            place,
            key,
            what: what.into(),
            fix: fix.into(),
        });
    }
}

/// One table of the configuration, there or not.
#[derive(Clone)]
pub(super) struct Table<'a> {
    reader: &'a Reader,
    path: Path,
    dict: Option<&'a Dict>,
}

impl<'a> Table<'a> {
    pub(super) fn reader(&self) -> &'a Reader {
        self.reader
    }

    pub(super) fn is_there(&self) -> bool {
        self.dict.is_some()
    }

    pub(super) fn field(&self, key: &str) -> Option<Field<'a>> {
        let value = self.dict?.get(key)?;
        let path = self.path.join(key);
        debug_assert!(
            path.kind() != Kind::Unknown,
            "{path} is not among the known keys"
        );
        Some(Field::new(self.reader, path, value))
    }

    /// All that stands in this table, known or not.
    pub(super) fn fields(&self) -> Vec<Field<'a>> {
        self.dict
            .into_iter()
            .flatten()
            .map(|(key, value)| Field::new(self.reader, self.path.join(key), value))
            .collect()
    }

    pub(super) fn table(&self, key: &str) -> Table<'a> {
        let dict = self
            .dict
            .and_then(|dict| dict.get(key))
            .and_then(Value::as_dict);
        Table {
            reader: self.reader,
            path: self.path.join(key),
            dict,
        }
    }

    /// The tables below this one, by the names that the user gave them.
    pub(super) fn tables(&self) -> Vec<(&'a str, Table<'a>)> {
        let names = self
            .dict
            .map(|dict| dict.keys().map(String::as_str))
            .into_iter()
            .flatten();
        names.map(|name| (name, self.table(name))).collect()
    }

    /// All values below this table, with their keys joined by dots.
    pub(super) fn leaves(&self) -> Vec<(String, Field<'a>)> {
        let mut leaves = Vec::new();
        for (key, value) in self.dict.into_iter().flatten() {
            if let Value::Dict(..) = value {
                leaves.extend(
                    self.table(key)
                        .leaves()
                        .into_iter()
                        .map(|(below, field)| (format!("{key}.{below}"), field)),
                );
            } else {
                leaves.extend(self.field(key).map(|field| (key.clone(), field)));
            }
        }
        leaves
    }

    /// A value that has no default. `fix` says how to give it.
    pub(super) fn required(&self, key: &str, fix: &str) -> Option<Field<'a>> {
        let field = self.field(key);
        if field.is_none() {
            self.missing(key, fix);
        }
        field
    }

    pub(super) fn missing(&self, key: &str, fix: &str) {
        let broken = self.reader.broken.borrow();
        let path = self.path.join(key);
        if !broken.contains(&self.path) && !broken.contains(&path) {
            self.reader.add(
                self.reader.layers.place_in_file(&path),
                &path,
                "missing",
                fix,
            );
        }
    }

    pub(super) fn quantity<T: Quantity>(&self, key: &str, range: &Range<T>) -> T {
        self.field(key)
            .and_then(|field| field.quantity(range))
            .unwrap_or(range.default)
    }

    /// One of a closed list of words; the first is the default.
    pub(super) fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> T {
        self.field(key)
            .and_then(|field| field.choice(choices))
            .unwrap_or(choices[0].1)
    }

    /// A secret, given as it is or, under `<key>_file`, by the file that holds it. What stands in the environment goes before what stands
    /// in the file; both in one place are a mistake.
    pub(super) fn secret(&self, key: &str) -> Option<(Field<'a>, Secret)> {
        let by_file = format!("{key}_file");
        let field = match (self.field(key), self.field(&by_file)) {
            (Some(plain), Some(file)) => preferred(plain, file)?,
            (plain, file) => plain.or(file)?,
        };
        let text = if field.path().name() == by_file {
            field.file_content()?
        } else {
            field.text()?.to_owned()
        };
        if text.is_empty() {
            field.refuse("the text is empty", "give it, or remove the key");
        }
        Some((field, Secret::new(text)))
    }

    /// Values below this table by their keys joined by dots, with `_file` taken off those that are read from a file.
    pub(super) fn properties(&self) -> BTreeMap<String, (Field<'a>, bool)> {
        let mut properties: BTreeMap<String, (Field<'a>, bool)> = BTreeMap::new();
        for (name, field) in self.leaves() {
            let (name, by_file) = name
                .strip_suffix("_file")
                .map_or((name.clone(), false), |name| (name.to_owned(), true));
            let kept = match properties.remove(&name) {
                None => Some((field, by_file)),
                Some((other, other_by_file)) if other.is_above(&field) => {
                    Some((other, other_by_file))
                }
                Some((other, _)) if field.is_above(&other) => Some((field, by_file)),
                Some((other, _)) => {
                    field.given_twice(&other);
                    None
                }
            };
            properties.extend(kept.map(|kept| (name, kept)));
        }
        properties
    }
}

fn preferred<'a>(a: Field<'a>, b: Field<'a>) -> Option<Field<'a>> {
    if a.is_above(&b) {
        Some(a)
    } else if b.is_above(&a) {
        Some(b)
    } else {
        b.given_twice(&a);
        None
    }
}
