//! Decodes the configuration with serde, and collects all problems with their places.
//!
//! [`Report::decode`] handles structure and types. The sections then check what the values mean,
//! and report problems at an [`At`], the position of a value.

mod at;
mod known_keys;
mod path;
mod quantity;
mod source;

pub(super) use at::{At, scalar, whole};
pub(super) use known_keys::nearest;
pub(super) use quantity::{Size, Span};
pub(super) use source::{Sources, read_file};
#[cfg(test)]
pub(super) use {known_keys::tables, path::Path as KeyPath};

use super::error::Problem;
use figment::value::Value;
use path::{Path, Segment};
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;

/// Default and range of an option.
pub(super) struct Range<T> {
    pub(super) default: T,
    pub(super) least: T,
    pub(super) greatest: T,
}

impl<T> Range<T> {
    /// The order is: default, least, greatest.
    pub(super) const fn new(default: T, least: T, greatest: T) -> Self {
        Self {
            default,
            least,
            greatest,
        }
    }
}

/// The values of a configuration and the problems found in them.
pub(super) struct Report {
    sources: Sources,
    problems: RefCell<Vec<Problem>>,
}

impl Report {
    pub(super) fn new(sources: Sources) -> Self {
        Self {
            sources,
            problems: RefCell::default(),
        }
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }

    pub(super) fn root(&self) -> At<'_> {
        At::new(self, Path::default())
    }

    pub(super) fn at(&self, keys: &[&str]) -> At<'_> {
        keys.iter().fold(self.root(), |at, key| at.key(key))
    }

    /// Decodes all values. A value that does not decode is reported and dropped, and decoding
    /// starts again without it, so that one start shows all problems.
    pub(super) fn decode<T: DeserializeOwned + Default>(&self) -> T {
        let mut values = self.sources.root().clone();
        for at in self.root().texts_that_no_key_accepts() {
            drop_value(&mut values, &at);
        }
        loop {
            let error = match T::deserialize(&values) {
                Ok(decoded) => return decoded,
                Err(error) => error,
            };
            let at = self.locate(&error.path);
            let (what, fix) = at.explain(&error.kind);
            at.refuse(what, fix);
            if !drop_value(&mut values, &at) {
                return T::default();
            }
        }
    }

    /// The position that figment names by keys and indices.
    fn locate(&self, names: &[String]) -> At<'_> {
        names.iter().fold(self.root(), |at, name| {
            let is_list = at.value().is_some_and(|value| value.as_array().is_some());
            match name.parse() {
                Ok(index) if is_list => at.index(index),
                _ => at.key(name),
            }
        })
    }
}

/// Removes a value, or empties an entry of a list. Returns whether there was anything to drop.
fn drop_value(values: &mut Value, at: &At<'_>) -> bool {
    let Some((last, parents)) = at.path().segments().split_last() else {
        return false;
    };
    let parent = parents
        .iter()
        .try_fold(values, |value, segment| match (value, segment) {
            (Value::Dict(_, dict), Segment::Key(key)) => dict.get_mut(key),
            (Value::Array(_, list), Segment::Index(index)) => list.get_mut(*index),
            _ => None,
        });
    match (parent, last) {
        (Some(Value::Dict(_, dict)), Segment::Key(key)) => dict.remove(key).is_some(),
        (Some(Value::Array(_, list)), Segment::Index(index)) => list
            .get_mut(*index)
            .is_some_and(|entry| std::mem::replace(entry, Value::from("")) != Value::from("")),
        _ => false,
    }
}

/// A table. A plain struct would decode from a list, too.
#[derive(Default)]
pub(super) struct Table<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TableVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for TableVisitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer
            .deserialize_map(TableVisitor(PhantomData))
            .map(Self)
    }
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
