//! Finds the headers of a list of names on a record. Does not interpret their values.

use crate::model::parsing::dead_letter_reason::Reason;
use crate::model::parsing::rejection::{Quoted, Rejection};

/// The longest list of names.
const NAMES_MAX: usize = 8;

/// The headers of a record that are in a list of names.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct HeaderLookup<'a> {
    names: &'static [&'static str],
    found: [Found<'a>; NAMES_MAX],
}

#[derive(Clone, Copy, Debug)]
enum Found<'a> {
    Absent,
    Once(Option<&'a [u8]>),
    Repeated,
}

impl<'a> HeaderLookup<'a> {
    pub(in crate::model) fn new(names: &'static [&'static str]) -> Self {
        assert!(
            names.len() <= NAMES_MAX,
            "a list has at most NAMES_MAX names"
        );
        Self {
            names,
            found: [Found::Absent; NAMES_MAX],
        }
    }

    /// Notes that the record has the header with this index in the list.
    pub(in crate::model) fn record(&mut self, index: usize, value: Option<&'a [u8]>) {
        let found = &mut self.found[index];
        *found = if matches!(found, Found::Absent) {
            Found::Once(value)
        } else {
            Found::Repeated
        };
    }

    pub(in crate::model) fn is_empty(&self) -> bool {
        self.found
            .iter()
            .all(|found| matches!(found, Found::Absent))
    }

    pub(in crate::model) fn name(&self, index: usize) -> &'static str {
        self.names[index]
    }

    /// The header's value, which may be null. The outer `None` means that the record does not have
    /// the header.
    pub(in crate::model) fn bytes(
        &self,
        index: usize,
    ) -> Result<Option<Option<&'a [u8]>>, Rejection> {
        match self.found[index] {
            Found::Absent => Ok(None),
            Found::Once(value) => Ok(Some(value)),
            Found::Repeated => Err(Rejection::new(
                Reason::DuplicateHeader,
                format!("the record has {} more than once", self.name(index)),
            )),
        }
    }

    /// The header's value as text that is not empty. `None` if the record does not have the header.
    pub(in crate::model) fn text(&self, index: usize) -> Result<Option<&'a str>, Rejection> {
        let Some(value) = self.bytes(index)? else {
            return Ok(None);
        };
        let (name, value) = (self.name(index), value.unwrap_or_default());
        if value.is_empty() {
            return Err(Rejection::new(
                Reason::EmptyValue,
                format!("{name} has no value"),
            ));
        }
        let foreign = |_| {
            Rejection::new(
                Reason::NotUtf8,
                format!("{name} is {}, which is not UTF-8", Quoted(value)),
            )
        };
        std::str::from_utf8(value).map(Some).map_err(foreign)
    }
}
