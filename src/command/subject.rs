//! Chooses the subject to which a command sends a message for a route that reads NATS.

use super::Refused;
use crate::cli;
use crate::config::{BrokerKind, Source};
use crate::model::{filter_covers, is_subject, split_source_topic};

/// Returns the source topic and the subject, or `None` if the route reads Kafka.
pub(super) fn of(
    source: &Source,
    send: &cli::SendArgs,
) -> Result<Option<(String, String)>, Refused> {
    if source.kind == BrokerKind::Kafka {
        let fault = || {
            Err(Refused(
                "--subject is for a route that reads NATS; this one reads topics".to_owned(),
            ))
        };
        return send.subject.as_ref().map_or(Ok(None), |_| fault());
    }
    let filters: Vec<&str> = source
        .topics
        .iter()
        .filter_map(|topic| Some(split_source_topic(topic)?.1))
        .collect();
    let known = filters.join(", ");
    let subject = match (&send.subject, filters.as_slice()) {
        (Some(subject), _) => subject.as_str(),
        (None, [only]) if is_subject(only) => *only,
        (None, _) => {
            return Err(Refused(format!(
                "say to which subject, with --subject; the route reads {known}"
            )));
        }
    };
    let lets = |topic: &&String| {
        split_source_topic(topic)
            .is_some_and(|(_, filter)| is_subject(subject) && filter_covers(filter, subject))
    };
    let topic = source.topics.iter().find(lets);
    let unread = || {
        Refused(format!(
            "the route does not read the subject {subject:?}; it reads {known}"
        ))
    };
    topic
        .map(|topic| Some((topic.clone(), subject.to_owned())))
        .ok_or_else(unread)
}
