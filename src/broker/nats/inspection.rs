//! The [`Inspector`] port on NATS: judges the streams and subjects that routes name.

use super::{NatsCatalog, StreamInfo};
use crate::broker::Error;
use crate::broker::inspection::{Finding, Inspector, TopicRole, TopicUse};
use crate::limit::CLOCK_SKEW_MAX;
use crate::model::readable::length;
use crate::model::{Timestamp, filters_overlap, is_template, split_source_topic};
use async_trait::async_trait;

#[async_trait(?Send)]
impl Inspector for NatsCatalog {
    async fn inspect(&mut self, uses: &[TopicUse]) -> Result<Vec<Finding>, Error> {
        let reachable = "JetStream answers; the login is accepted";
        let mut findings = vec![Finding::ok("reachable", reachable)];
        let mut errors = Vec::new();
        for used in uses {
            match self.inspect_use(used, uses).await {
                Ok(found) => findings.extend(found),
                Err(error) => {
                    let found = format!("{} cannot be described: {error}", used.text());
                    let fix = "check the leader of the stream, and the permissions of this client";
                    findings.push(Finding::fail(&used.topic, found, fix));
                    errors.push(error);
                }
            }
        }
        let asked = uses.iter().filter(|used| !depends_on_message(used)).count();
        // If no request was answered, the cluster is at fault, and not a stream.
        if errors.len() == asked
            && let Some(error) = errors.pop()
        {
            return Err(error);
        }
        if uses.iter().any(is_source) {
            let access = self.bucket.check_access().await;
            findings.push(judge_bucket(self.bucket.name.clone(), access));
        }
        Ok(findings)
    }

    fn remedy(&self, error: &Error) -> String {
        let (text, area) = (
            error.to_string(),
            format!("nats.{}", self.connection.cluster.name),
        );
        let words = ["certificate", "Certificate", "TLS", "fatal alert"];
        match error {
            _ if words.iter().any(|word| text.contains(word)) => format!(
                "check {area}.ca, {area}.certificate and its key, and whether the server speaks TLS"
            ),
            Error::Unavailable(_) => format!(
                "check {area}.url, the network between, and that the server has JetStream (-js)"
            ),
            _ => {
                format!("check the login and the ca of {area}, and the permissions of this client")
            }
        }
    }

    async fn duplicate_windows(&mut self, target: &str) -> Result<Vec<(String, Timestamp)>, Error> {
        let mut windows = Vec::new();
        for stream in self.streams_for_subject(&covering_filter(target)).await? {
            let until = stream
                .last_message_at
                .plus(stream.config.duplicate_window + CLOCK_SKEW_MAX);
            // Subjects that start with `$` belong to the server, so such a stream is no target.
            if !stream
                .config
                .subjects
                .iter()
                .all(|subject| subject.starts_with('$'))
            {
                windows.push((stream.config.name, until));
            }
        }
        Ok(windows)
    }
}

impl NatsCatalog {
    async fn inspect_use(&self, used: &TopicUse, uses: &[TopicUse]) -> Result<Vec<Finding>, Error> {
        let name = &used.topic;
        if depends_on_message(used) {
            let found = "depends on the subject of each message, so it is not checked";
            let found = format!("{}: {found}", used.text());
            return Ok(vec![Finding::ok(name, found)]);
        }
        let Some((stream, filter)) = split_source_topic(name).filter(|_| is_source(used)) else {
            let found = self.streams_for_subject(name).await?;
            return Ok(vec![judge_target(used, found.first())]);
        };
        let found = self.stream(stream).await?;
        let mut findings = judge_source(used, filter, found.as_ref());
        if let Some(found) = &found {
            let is_of_stream =
                |used: &&TopicUse| split_source_topic(&used.topic).is_some_and(|it| it.0 == stream);
            let readers = uses
                .iter()
                .filter(|used| is_source(used))
                .filter(is_of_stream);
            let readers = readers.map(|used| used.routes.len()).sum();
            findings.extend(judge_schedules(used, found));
            findings.extend(judge_consumers(used, readers, found));
        }
        Ok(findings)
    }
}

fn is_source(used: &TopicUse) -> bool {
    used.role == TopicRole::Source
}

/// Returns whether each message names the subject of the target.
fn depends_on_message(used: &TopicUse) -> bool {
    !is_source(used) && is_template(&used.topic)
}

/// The filter that covers every subject that a target template can expand to.
fn covering_filter(target: &str) -> String {
    let fixed = target
        .split('.')
        .take_while(|token| !token.starts_with('$'));
    let fixed: Vec<_> = fixed.collect();
    if fixed.len() == target.split('.').count() {
        target.to_owned()
    } else {
        [fixed, vec![">"]].concat().join(".")
    }
}

/// Judges the access to the bucket with committed positions and partition owners. `Ok(false)`:
/// the bucket does not exist yet.
fn judge_bucket(bucket: String, access: Result<bool, Error>) -> Finding {
    let what = "the bucket for commits";
    match access {
        Ok(true) => Finding::ok(bucket, format!("{what} can be read and written")),
        Ok(false) => Finding::ok(bucket, format!("the first start creates {what}")),
        Err(error) => {
            let found = format!("commits cannot be stored there: {error}");
            let fix = format!(
                "allow this client the JetStream API for the stream KV_{bucket}, and to publish to $KV.{bucket}.>"
            );
            Finding::fail(bucket, found, fix)
        }
    }
}

/// Judges a stream with `allow_msg_schedules`. Its schedules are delivered twice if the route reads
/// them, too. Otherwise the route sees messages without a delay.
fn judge_schedules(used: &TopicUse, stream: &StreamInfo) -> Option<Finding> {
    let conflict = stream.schedule_conflict()?;
    if used.reads_schedules {
        let fix = "let either the stream or the route deliver them, not both";
        return Some(Finding::fail(&used.topic, conflict, fix));
    }
    let found = format!(
        "the stream {} delivers messages with Nats-Schedule by itself, and this route sees no delay on them",
        stream.config.name
    );
    let fix = "send them to another stream, or to a subject that no route reads";
    Some(Finding::warn(&used.topic, found, fix))
}

fn judge_target(used: &TopicUse, stream: Option<&StreamInfo>) -> Finding {
    let (subject, of) = (&used.topic, used.text());
    let Some(stream) = stream else {
        let fix = format!("create one: nats stream add --subjects {subject}");
        return Finding::fail(subject, format!("{of}: no stream takes this subject"), fix);
    };
    let name = &stream.config.name;
    if stream.config.no_ack {
        let found = format!(
            "{of}: the stream {name} sends no acknowledgements (no_ack), so each message would be sent again and again"
        );
        Finding::fail(subject, found, "set no_ack of the stream to false")
    } else if stream.config.sealed {
        let found = format!("{of}: the stream {name} is sealed and takes no messages");
        Finding::fail(
            subject,
            found,
            "use another subject, or create another stream",
        )
    } else {
        Finding::ok(subject, format!("{of}: kept by the stream {name}"))
    }
}

fn judge_source(used: &TopicUse, filter: &str, stream: Option<&StreamInfo>) -> Vec<Finding> {
    let of = used.text();
    let fail = |found, fix: String| vec![Finding::fail(&used.topic, found, fix)];
    let Some(stream) = stream else {
        let fix = format!("create it: nats stream add --subjects {filter} --retention limits");
        return fail(format!("{of}: there is no such stream"), fix);
    };
    if let Some(reason) = stream.unusable_reason() {
        return fail(
            reason,
            "create a stream with limits retention for it".to_owned(),
        );
    }
    let mut subjects = stream.config.subjects.iter();
    if !subjects.any(|subject| filters_overlap(subject, filter)) {
        let fix = format!(
            "use a filter that matches some of the stream's subjects ({}), or add subjects to it",
            stream.config.subjects.join(", ")
        );
        return fail(
            format!("{of}: no subject of the stream matches the filter {filter}"),
            fix,
        );
    }
    if stream.config.no_ack {
        let found = format!(
            "{of}: the stream sends no acknowledgements (no_ack), so no message can go back to it for a retry"
        );
        return fail(found, "set no_ack of the stream to false".to_owned());
    }
    let mut findings = vec![Finding::ok(&used.topic, format!("{of}: limits retention"))];
    findings.extend(judge_limits(used, stream));
    if stream.is_in_memory() {
        let found = "the stream is kept in memory: if its server and the store were lost, waiting messages could not be read again";
        let fix = "use file storage, or several replicas";
        findings.push(Finding::warn(&used.topic, found, fix));
    }
    findings
}

/// Judges the consumer limit of a stream. Each reader needs one consumer. During a handover the
/// previous owner's consumer still exists for a while.
fn judge_consumers(used: &TopicUse, readers: usize, stream: &StreamInfo) -> Option<Finding> {
    let max = usize::try_from(stream.config.max_consumers).ok()?;
    let needed = 2 * readers;
    let found = format!(
        "the stream has at most {max} consumers; {readers} are needed, and {needed} during a handover"
    );
    let fix = format!("raise max_consumers to {needed} or more");
    if max < readers {
        return Some(Finding::fail(&used.topic, found, fix));
    }
    (max < needed).then(|| Finding::warn(&used.topic, found, fix))
}

/// Warns of limits that remove messages which may have to be read again.
fn judge_limits(used: &TopicUse, stream: &StreamInfo) -> Option<Finding> {
    let warn = |found: String, fix| Some(Finding::warn(&used.topic, found, fix));
    let max_age = stream.config.max_age;
    if !max_age.is_zero() && max_age < used.max_delay {
        let (kept, wait) = (length(max_age), length(used.max_delay));
        let found = format!(
            "messages are kept for {kept}, and may wait for {wait}: if the store were lost, those that wait longer could not be read again"
        );
        return warn(
            found,
            "raise max_age above the route's max_delay, or lower that",
        );
    }
    if !stream.has_size_limit() {
        return None;
    }
    let found = "the stream also drops messages by their number or size, even unread ones";
    let fix = "bound it by max_age only, or raise the limit above the messages that can wait";
    warn(found.to_owned(), fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_of_a_template_covers_all_its_subjects() {
        for (target, filter) in [
            ("orders", "orders"),
            ("orders.$1", "orders.>"),
            ("a.$2.b.$1", "a.>"),
            ("$1", ">"),
            ("a.b$1", "a.b$1"),
        ] {
            assert_eq!(covering_filter(target), filter);
        }
    }
}
