//! The [`Inspector`] port on NATS: judges the streams and subjects that routes name.

use super::{NatsCatalog, change};
use crate::broker::Error;
use crate::broker::inspection::{Change, Finding, Inspector, TopicRole, TopicUse};
use crate::broker::nats::StreamInfo;
use crate::limit::CLOCK_SKEW_MAX;
use crate::model::readable::length;
use crate::model::{Timestamp, covering_filter, filters_overlap, is_template, split_source_topic};
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
        // If no request was answered, the cluster is at fault, and not a stream.
        if errors.len() == uses.len()
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

    async fn apply(&mut self, change: &Change) -> Result<(), Error> {
        self.change(change).await
    }

    fn command(&self, change: &Change) -> String {
        change::command(&self.connection.cluster.urls.join(","), change)
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
        let replicas = self.default_replicas().await?;
        let Some((stream, filter)) = split_source_topic(name).filter(|_| is_source(used)) else {
            let found = self.streams_for_subject(&covering_filter(name)).await?;
            return Ok(vec![judge_target(used, found.first(), replicas)]);
        };
        let found = self.stream(stream).await?;
        let mut findings = match &found {
            Some(found) => judge_source(used, filter, found),
            None => vec![judge_missing_source(used, stream, filter, replicas)],
        };
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

/// The subject of a template depends on each message, so only the lack of any stream is certain.
fn judge_target(used: &TopicUse, stream: Option<&StreamInfo>, replicas: u8) -> Finding {
    let (subject, of) = (&used.topic, used.text());
    let Some(stream) = stream else {
        let fix = "create one: `postdate check --fix` shows how";
        let finding = Finding::fail(subject, format!("{of}: no stream takes this subject"), fix);
        let filter = covering_filter(subject);
        let name = change::stream_name(&filter);
        // A stream for all subjects would also take those of the server.
        if name.is_empty() {
            return finding;
        }
        return finding.repaired_by(used.creation(&name, vec![filter], replicas));
    };
    if is_template(subject) {
        let found = "depends on the subject of each message, so it is not checked";
        return Finding::ok(subject, format!("{of}: {found}"));
    }
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

fn judge_missing_source(used: &TopicUse, stream: &str, filter: &str, replicas: u8) -> Finding {
    let found = format!("{}: there is no such stream", used.text());
    let fix = "create it: `postdate check --fix` shows how";
    let creation = used.creation(stream, vec![filter.to_owned()], replicas);
    Finding::fail(&used.topic, found, fix).repaired_by(creation)
}

fn judge_source(used: &TopicUse, filter: &str, stream: &StreamInfo) -> Vec<Finding> {
    let of = used.text();
    let fail = |found, fix: String| vec![Finding::fail(&used.topic, found, fix)];
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
    let warn = |found: String, fix| Finding::warn(&used.topic, found, fix);
    let max_age = stream.config.max_age;
    if !max_age.is_zero() && max_age < used.max_delay {
        let (kept, wait) = (length(max_age), length(used.max_delay));
        let found = format!(
            "messages are kept for {kept}, and may wait for {wait}: if the store were lost, those that wait longer could not be read again"
        );
        let fix = "raise max_age above the route's max_delay, or lower that";
        return Some(warn(found, fix).repaired_by(Change::SetRetention {
            name: stream.config.name.clone(),
            retention: used.retention(),
        }));
    }
    if !stream.has_size_limit() {
        return None;
    }
    let found = "the stream also drops messages by their number or size, even unread ones";
    let fix = "bound it by max_age only, or raise the limit above the messages that can wait";
    Some(warn(found.to_owned(), fix))
}
