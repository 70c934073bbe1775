//! Finds the headers of a list of names on a record. Does not interpret their values.

use crate::model::headers::header_name::{ControlHeader, ScheduleHeader};
use crate::model::parsing::dead_letter_reason::DeadLetterReason;
use crate::model::parsing::rejection::{Quoted, Rejection};

/// The length of the longest list of names.
const NAMES_MAX: usize = match ControlHeader::ALL.len() < ScheduleHeader::ALL.len() {
    true => ScheduleHeader::ALL.len(),
    false => ControlHeader::ALL.len(),
};

/// The headers of a record that are in a list of names, by their index in that list.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::model) struct HeaderLookup<'a>([Found<'a>; NAMES_MAX]);

#[derive(Clone, Copy, Debug, Default)]
enum Found<'a> {
    #[default]
    Absent,
    Once(Option<&'a [u8]>),
    Repeated,
}

impl<'a> HeaderLookup<'a> {
    /// Notes that the record has the header with this index in the list.
    pub(in crate::model) fn record(&mut self, index: usize, value: Option<&'a [u8]>) {
        let found = &mut self.0[index];
        *found = match found {
            Found::Absent => Found::Once(value),
            Found::Once(_) | Found::Repeated => Found::Repeated,
        };
    }

    pub(in crate::model) fn has(&self, index: usize) -> bool {
        !matches!(self.0[index], Found::Absent)
    }

    pub(in crate::model) fn is_empty(&self) -> bool {
        self.0.iter().all(|found| matches!(found, Found::Absent))
    }

    /// The header's value, which may be null. The outer `None` means that the record does not have
    /// the header.
    pub(in crate::model) fn bytes(
        &self,
        index: usize,
        name: &str,
    ) -> Result<Option<Option<&'a [u8]>>, Rejection> {
        match self.0[index] {
            Found::Absent => Ok(None),
            Found::Once(value) => Ok(Some(value)),
            Found::Repeated => {
                let detail = format!("the record has {name} more than once");
                Err(Rejection::new(DeadLetterReason::DuplicateHeader, detail))
            }
        }
    }

    /// The header's value as text that is not empty. `None` if the record does not have the header.
    pub(in crate::model) fn text(
        &self,
        index: usize,
        name: &str,
    ) -> Result<Option<&'a str>, Rejection> {
        let Some(value) = self.bytes(index, name)? else {
            return Ok(None);
        };
        let value = value.unwrap_or_default();
        if value.is_empty() {
            let detail = format!("{name} has no value");
            return Err(Rejection::new(DeadLetterReason::EmptyValue, detail));
        }
        str::from_utf8(value).map(Some).map_err(|_| {
            let detail = format!("{name} is {}, which is not UTF-8", Quoted(value));
            Rejection::new(DeadLetterReason::NotUtf8, detail)
        })
    }
}
