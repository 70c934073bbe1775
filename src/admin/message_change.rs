//! The actions on a waiting message, and the record for each of them.
//!
//! A cancel, and a later due time, are the requests of a producer. For an earlier due time, and for delivery
//! now, a copy of the message takes its place. `docs/internals/protocol.md` explains copies.

use super::changes::{Change, ChangeKind};
use crate::limit::COPY_MARGIN;
use crate::model::Timestamp;
use crate::model::header_name::SUBJECT;
use crate::store::query::{AskedChange, MessageHeader, WaitingMessage};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Cancel,
    /// Gives the message this due time.
    Reschedule(Timestamp),
    /// Delivers the message now.
    Fire,
}

/// The effect of an action on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Cancel,
    Reschedule(Timestamp),
    /// A copy with this due time takes its place.
    Copy(Timestamp),
}

/// Why a message stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Obstacle {
    /// The message is being sent.
    InFlight,
    /// No record can name it: it has no id and its route has no `change_by_origin`, or another message
    /// has its id.
    WithoutId,
    /// It is due within seconds, or was so before it was rescheduled. Then it is about to be moved.
    DueSoon,
    /// It has the due time already.
    Unchanged,
}

impl Obstacle {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::InFlight => "the message is being sent: it is too late",
            Self::WithoutId => {
                "no record can name the message: it has no id and its route has no change_by_origin, or another message has its id"
            }
            Self::DueSoon => {
                "the message is due within seconds, or is about to be moved: it is too late"
            }
            Self::Unchanged => "the message has this due time already",
        }
    }
}

impl Action {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Reschedule(_) => "reschedule",
            Self::Fire => "fire",
        }
    }

    /// The action may send a copy of a message, so a search must return it.
    pub(crate) fn needs_copies(self) -> bool {
        self != Self::Cancel
    }

    /// The record for one message, which a search has found with its headers.
    pub(crate) fn change(
        self,
        route: &str,
        message: &WaitingMessage,
        now: Timestamp,
    ) -> Result<Change, Obstacle> {
        let kind = match self.plan(message, now)? {
            Plan::Cancel => ChangeKind::Cancel,
            Plan::Reschedule(due) => ChangeKind::Reschedule { due },
            Plan::Copy(due) => ChangeKind::Copy {
                due,
                of: message.offset,
                copy: message.copy.clone().ok_or(Obstacle::WithoutId)?,
            },
        };
        Ok(Change {
            route: route.to_owned(),
            topic: Some(message.topic.clone()),
            subject: header(message, SUBJECT),
            partition: Some(message.partition),
            offset: Some(message.offset),
            id: message.id.clone(),
            of: (message.id.is_none()).then(|| message.origin.clone()),
            kind,
            ..Change::default()
        })
    }

    /// Decides without the copy of the message, which a search may leave out.
    pub(crate) fn plan(self, message: &WaitingMessage, now: Timestamp) -> Result<Plan, Obstacle> {
        if message.in_flight {
            return Err(Obstacle::InFlight);
        }
        if !message.can_change {
            return Err(Obstacle::WithoutId);
        }
        let due = match self {
            Self::Cancel => return Ok(Plan::Cancel),
            Self::Reschedule(due) => due,
            Self::Fire => now,
        };
        // A message without a due time is delivered at once.
        let place = message.due_ms.map(Timestamp::from_millis);
        let place = place.ok_or(Obstacle::DueSoon)?;
        let moved = message.rescheduled_ms.map(Timestamp::from_millis);
        // A copy must be due before its message. So a moved message gets its first due time back a
        // millisecond later, by a request.
        let due = match moved {
            Some(_) if due == place => place.plus(Duration::from_millis(1)),
            _ => due,
        };
        if due == moved.unwrap_or(place) {
            return Err(Obstacle::Unchanged);
        }
        if due > place {
            return Ok(Plan::Reschedule(due));
        }
        if place <= now.plus(COPY_MARGIN) {
            return Err(Obstacle::DueSoon);
        }
        Ok(Plan::Copy(due))
    }
}

impl ChangeKind {
    /// The question to the store about the outcome. `None` for a record that changes no message.
    pub(super) fn asked(&self) -> Option<AskedChange> {
        match self {
            Self::Publish { .. } | Self::Control { .. } | Self::Definition { .. } => None,
            Self::Cancel => Some(AskedChange::Cancel),
            Self::Reschedule { due } => Some(AskedChange::Reschedule(*due)),
            Self::Copy { due, .. } => Some(AskedChange::Copy(*due)),
        }
    }
}

fn header(message: &WaitingMessage, name: &str) -> Option<String> {
    let is_named = |header: &&MessageHeader| header.name == name;
    let mut headers = message.headers.iter().flatten();
    headers.find(is_named)?.value.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::query::MessageCopy;

    const NOW: i64 = 1_795_302_005_000;
    const HOUR: i64 = 3_600_000;

    fn message() -> WaitingMessage {
        WaitingMessage {
            topic: "orders.delayed".to_owned(),
            partition: 3,
            offset: 7,
            due_ms: Some(NOW + HOUR),
            id: Some("a".to_owned()),
            can_change: true,
            copy: Some(Box::default()),
            ..WaitingMessage::default()
        }
    }

    fn kind(action: Action, message: &WaitingMessage) -> Result<ChangeKind, Obstacle> {
        let change = action.change("orders", message, Timestamp::from_millis(NOW));
        change.map(|change| change.kind)
    }

    fn to(offset: i64) -> Action {
        Action::Reschedule(Timestamp::from_millis(NOW + offset))
    }

    #[test]
    fn a_later_due_time_is_a_request_and_an_earlier_one_a_copy() {
        let due = Timestamp::from_millis(NOW + 2 * HOUR);
        let later = kind(to(2 * HOUR), &message());
        assert_eq!(later, Ok(ChangeKind::Reschedule { due }));
        let copy = |due| ChangeKind::Copy {
            due: Timestamp::from_millis(due),
            of: 7,
            copy: Box::<MessageCopy>::default(),
        };
        assert_eq!(kind(Action::Fire, &message()), Ok(copy(NOW)));
        assert_eq!(kind(to(HOUR / 2), &message()), Ok(copy(NOW + HOUR / 2)));
        assert_eq!(kind(Action::Cancel, &message()), Ok(ChangeKind::Cancel));
    }

    #[test]
    fn a_rescheduled_message_gets_its_first_due_time_back() {
        let message = WaitingMessage {
            rescheduled_ms: Some(NOW + 2 * HOUR),
            ..message()
        };
        assert_eq!(kind(to(2 * HOUR), &message), Err(Obstacle::Unchanged));
        // A copy with the due time of its message would come after the place of the message.
        let due = Timestamp::from_millis(NOW + HOUR + 1);
        let given_back = Ok(ChangeKind::Reschedule { due });
        assert_eq!(kind(to(HOUR), &message), given_back);
        let earlier = kind(to(HOUR - 1), &message);
        assert!(matches!(earlier, Ok(ChangeKind::Copy { .. })));
        let message = WaitingMessage {
            rescheduled_ms: Some(NOW + HOUR + 1),
            ..message
        };
        assert_eq!(kind(to(HOUR), &message), Err(Obstacle::Unchanged));
    }

    #[test]
    fn a_message_without_id_is_named_by_its_origin_if_the_route_allows_it() {
        let mut message = WaitingMessage {
            id: None,
            origin: "prod/orders/orders.delayed/3/7".to_owned(),
            ..message()
        };
        let now = Timestamp::from_millis(NOW);
        let change = Action::Cancel.change("orders", &message, now).unwrap();
        assert_eq!((change.id, change.of), (None, Some(message.origin.clone())));
        message.can_change = false;
        assert_eq!(kind(Action::Cancel, &message), Err(Obstacle::WithoutId));
    }

    #[test]
    fn a_message_that_is_delivered_anyway_is_not_copied() {
        let soon = WaitingMessage {
            due_ms: Some(NOW + 1_000),
            ..message()
        };
        assert_eq!(kind(Action::Fire, &soon), Err(Obstacle::DueSoon));
        let at_once = WaitingMessage {
            due_ms: None,
            ..message()
        };
        assert_eq!(kind(to(HOUR), &at_once), Err(Obstacle::DueSoon));
        let in_flight = WaitingMessage {
            in_flight: true,
            ..message()
        };
        assert_eq!(kind(Action::Fire, &in_flight), Err(Obstacle::InFlight));
    }
}
