//! The conditions of a search for waiting messages.

use crate::model::Timestamp;
use std::fmt;

/// The conditions that a message must meet. An absent one holds for every message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageFilter {
    pub(crate) route: String,
    pub(crate) topic: Option<String>,
    pub(crate) partition: Option<i32>,
    pub(crate) offset: Option<u64>,
    /// The earliest due time.
    pub(crate) due_from: Option<Timestamp>,
    /// The latest due time.
    pub(crate) due_to: Option<Timestamp>,
    pub(crate) id: Option<String>,
    pub(crate) key: Option<String>,
    /// Name and value.
    pub(crate) header: Option<(String, String)>,
}

impl MessageFilter {
    /// The due time of a rescheduled message is its new one.
    pub(super) fn takes_due(&self, due: Timestamp) -> bool {
        self.due_from.is_none_or(|from| from <= due) && self.due_to.is_none_or(|to| due <= to)
    }
}

/// The conditions, for people. Empty if there are none.
impl fmt::Display for MessageFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |time: Option<Timestamp>| time.map(Timestamp::to_rfc3339);
        let header = self.header.as_ref();
        let parts = [
            ("topic", self.topic.clone()),
            (
                "partition",
                self.partition.map(|partition| partition.to_string()),
            ),
            ("offset", self.offset.map(|offset| offset.to_string())),
            ("due_from", time(self.due_from)),
            ("due_to", time(self.due_to)),
            ("id", self.id.clone()),
            ("key", self.key.clone()),
            (
                "header",
                header.map(|(name, value)| format!("{name}:{value}")),
            ),
        ];
        f.write_str(&joined(parts))
    }
}

/// Names and values of the conditions that are there. A value that could be read as a further condition is quoted.
pub(crate) fn joined<const N: usize>(parts: [(&str, Option<String>); N]) -> String {
    let is_ambiguous = |value: &str| value.contains([' ', '"', '=']);
    let parts = parts.into_iter();
    let parts = parts.filter_map(|(name, value)| match value? {
        value if is_ambiguous(&value) => Some(format!("{name}={value:?}")),
        value => Some(format!("{name}={value}")),
    });
    parts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_written_as_its_conditions() {
        let filter = MessageFilter {
            route: "orders".to_owned(),
            due_to: Some(Timestamp::from_millis(1_795_302_005_000)),
            header: Some(("campaign".to_owned(), "black friday".to_owned())),
            ..MessageFilter::default()
        };
        let text = "due_to=2026-11-21T23:00:05Z header=\"campaign:black friday\"";
        assert_eq!(filter.to_string(), text);
        let hostile = MessageFilter {
            id: Some("a key=b".to_owned()),
            ..MessageFilter::default()
        };
        assert_eq!(hostile.to_string(), "id=\"a key=b\"");
    }
}
