//! The rules of a route, by which its records are parsed and delivered.

use super::target_rules::{TargetRules, TemplateInput};
use crate::model::dialect::Dialects;
use crate::model::parsing::rejection::Rejection;
use std::borrow::Cow;
use std::time::Duration;

/// Which records a route accepts, and where it delivers them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoutingRules {
    pub(crate) targets: TargetRules,
    /// The longest delay, measured from the record's own timestamp.
    pub(crate) max_delay: Duration,
    /// The longest wait before a retry. It may be longer than `max_delay`.
    pub(crate) max_retry_wait: Duration,
    pub(crate) without_delay: WithoutDelay,
    /// The other systems whose delay headers the route understands.
    pub(crate) dialects: Dialects,
}

/// The handling of a record that carries no delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithoutDelay {
    /// Delivered at once.
    Relay,
    /// Rejected.
    DeadLetter,
}

impl RoutingRules {
    /// The target of a message that names `named`: see [`TargetRules::resolve`].
    pub(crate) fn resolve_target<'a>(
        &'a self,
        named: Option<&'a str>,
        input: TemplateInput<'_>,
    ) -> Result<Cow<'a, str>, Rejection> {
        self.targets.resolve(named, input)
    }
}
