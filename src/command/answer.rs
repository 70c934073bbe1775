//! Waits for the answer to a record that a command sends, and prints it.

use super::{Outcome, Refused};
use crate::broker::Error;
use crate::broker::cluster::NewRecords;
use crate::config::Config;
use crate::limit::COMMAND_ANSWER_TIMEOUT;
use crate::model::header_name::ControlHeader;
use anyhow::Result;
use serde_json::Value;
use tokio::time::Instant;

/// Reads the reply target from the moment at which it was opened.
pub(super) struct AnswerReader {
    reply_to: String,
    request_id: String,
    records: Box<dyn NewRecords>,
}

impl AnswerReader {
    /// `reply_to` is a topic or a subject. Empty: the first name in `allow_replies` that is no
    /// pattern, or an inbox on NATS. The route must exist.
    pub(super) async fn open(config: &Config, route: &str, reply_to: &str) -> Result<Self> {
        let route = &config.routes[route];
        let mut allowed = route.allow_replies.iter().flatten();
        let reply_to = match reply_to {
            "" => allowed.find(|entry| !entry.contains(['*', '>'])).cloned(),
            named => Some(named.to_owned()),
        };
        let cluster = config.cluster(route.target_cluster());
        let Some((reply_to, records)) = cluster.new_records(reply_to).await? else {
            let text = "say where the answer goes, with --reply=TOPIC: allow_replies of the route must contain the topic";
            return Err(Refused(text.to_owned()).into());
        };
        Ok(Self {
            reply_to,
            request_id: format!("send-{:016x}", rand::random::<u64>()),
            records,
        })
    }

    /// The headers of the request, as the command line writes headers.
    pub(super) fn headers(&self) -> [String; 2] {
        [
            format!("{}={}", ControlHeader::ReplyTo.name(), self.reply_to),
            format!("{}={}", ControlHeader::RequestId.name(), self.request_id),
        ]
    }

    /// Waits for the answer. An error is a note for the user.
    pub(super) async fn answer(&mut self) -> Result<Value, String> {
        let why = match self.read(Instant::now() + COMMAND_ANSWER_TIMEOUT).await {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => format!("none within {} s", COMMAND_ANSWER_TIMEOUT.as_secs()),
            Err(error) => error.to_string(),
        };
        let reply_to = &self.reply_to;
        Err(format!(
            "no answer on {reply_to} ({why}): the record is sent, and its outcome is unknown"
        ))
    }

    async fn read(&mut self, end: Instant) -> Result<Option<Value>, Error> {
        loop {
            let Some(payload) = self.records.next(end).await? else {
                return Ok(None);
            };
            let answer: Value = serde_json::from_slice(&payload).unwrap_or_default();
            if answer["request_id"] == *self.request_id {
                return Ok(Some(answer));
            }
        }
    }
}

/// The outcome of an answer, in one line.
pub(super) fn text(answer: &Value) -> String {
    let field = |name: &str| answer[name].as_str().unwrap_or("-");
    match field("outcome") {
        "scheduled" if answer["late_for"].is_string() => {
            format!("scheduled, too late to replace {}", field("late_for"))
        }
        "replaced" => format!("replaced {}", field("replaced_origin")),
        "cancelled" => format!("cancelled {}", field("origin")),
        "rescheduled" => format!("rescheduled {}", field("origin")),
        "too_late" => format!("too late for {}", field("origin")),
        "not_found" => format!("not found on partition {}", answer["partition"]),
        "refused" => format!("refused: {}", field("code")),
        other => other.to_owned(),
    }
}

/// Decides the exit status of the command.
pub(super) fn outcome(answer: &Value) -> Outcome {
    match answer["outcome"].as_str() {
        Some("scheduled" | "replaced" | "cancelled" | "rescheduled") => Outcome::Done,
        Some("not_found") => Outcome::Nothing,
        Some("too_late") => Outcome::TooLate,
        _ => Outcome::Failing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_outcome_has_a_text_and_an_exit_status() {
        let answer = |outcome: &str| {
            json!({"outcome": outcome, "origin": "d/r/t/0/1", "replaced_origin": "d/r/t/0/0",
                   "partition": 3, "code": "invalid_at", "late_for": null})
        };
        for (name, expected, status) in [
            ("scheduled", "scheduled", Outcome::Done),
            ("replaced", "replaced d/r/t/0/0", Outcome::Done),
            ("cancelled", "cancelled d/r/t/0/1", Outcome::Done),
            ("rescheduled", "rescheduled d/r/t/0/1", Outcome::Done),
            ("too_late", "too late for d/r/t/0/1", Outcome::TooLate),
            ("not_found", "not found on partition 3", Outcome::Nothing),
            ("refused", "refused: invalid_at", Outcome::Failing),
            ("of a later version", "of a later version", Outcome::Failing),
        ] {
            let answer = answer(name);
            assert_eq!(
                (text(&answer).as_str(), outcome(&answer)),
                (expected, status)
            );
        }
        let mut late = answer("scheduled");
        late["late_for"] = json!("d/r/t/0/7");
        assert_eq!(text(&late), "scheduled, too late to replace d/r/t/0/7");
    }
}
