//! The conditions of a search for waiting messages.

use crate::model::Timestamp;

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
