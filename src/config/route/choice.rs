//! The options of a route that choose one of a few rules.

use serde::Deserialize;

/// The delivery guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Delivery {
    #[default]
    AtLeastOnce,
    /// Delivers in transactions, for consumers that read committed messages.
    ExactlyOnce,
}

/// The rule for records without a delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WithoutDelay {
    #[default]
    Relay,
    DeadLetter,
}

/// The rule for schedules whose id waits already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnDuplicate {
    #[default]
    Replace,
    KeepFirst,
}

/// The rule for messages that the source deleted before they were stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnSourceGap {
    #[default]
    Continue,
    Stop,
}

/// The rule for overdue messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Overdue {
    #[default]
    Deliver,
    DeadLetter,
}

/// The rule for messages whose `postdate-until` has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Expired {
    #[default]
    DeadLetter,
    Drop,
}

/// The rule for new messages while the quota is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OverQuota {
    /// The route stops reading.
    #[default]
    Wait,
    DeadLetter,
}
