//! Which occurrences are delivered after an outage.

use std::time::Duration;

/// The treatment of missed occurrences. They are later than a tolerance when they are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MissedPolicy {
    /// The latest one is delivered, unless a later occurrence is due as well.
    #[default]
    Latest,
    Skip,
    All,
}

impl MissedPolicy {
    const ALL: [Self; 3] = [Self::Latest, Self::Skip, Self::All];

    /// The value of `postdate-missed`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Latest => "latest",
            Self::Skip => "skip",
            Self::All => "all",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == text)
    }
}

/// How a schedule treats missed occurrences.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Missed {
    pub(crate) policy: MissedPolicy,
    /// Missed occurrences that are later than this are never delivered.
    pub(crate) within: Option<Duration>,
}
