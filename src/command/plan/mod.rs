//! The plan of `postdate check --fix` and `postdate init`: changes of the clusters that repair
//! findings, and the rights that the service needs.

mod rights;

use super::page::{Page, Tone};
use crate::broker::inspection::{Change, NewTopic};
use crate::config::Config;
use crate::model::filter_covers;
use crate::model::readable::{length, several};
use serde::Serialize;

/// In the JSON of `postdate check`, fields are only added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Plan {
    /// All clusters could be inspected.
    pub(super) complete: bool,
    pub(super) steps: Vec<Step>,
    pub(super) rights: Vec<Rights>,
}

/// One change of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    /// `kafka.<name>` or `nats.<name>`.
    pub(super) area: String,
    pub(super) change: String,
    /// A shell command that makes the change.
    pub(super) command: String,
    pub(super) applied: bool,
    pub(super) error: Option<String>,
}

/// The rights of the service on one cluster or store, as its administrator grants them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Rights {
    pub(super) area: String,
    pub(super) lines: Vec<String>,
}

impl Plan {
    pub(super) fn new(config: &Config, complete: bool, steps: Vec<Step>) -> Self {
        Self {
            complete,
            steps,
            rights: rights::of(config),
        }
    }

    /// Formats the plan. Commands are whole lines, so that they can be copied.
    pub(super) fn text(&self, page: &Page) -> String {
        let mut text = format!("\n{}\n", page.paint(Tone::Strong, "plan"));
        for step in &self.steps {
            let (word, tone) = match (step.applied, &step.error) {
                (_, Some(_)) => ("fail", Tone::Bad),
                (true, None) => ("done", Tone::Good),
                (false, None) => ("todo", Tone::Warning),
            };
            let word = page.paint(tone, word);
            text += &format!("  {word}  {}  {}\n", step.area, step.change);
            text += &match &step.error {
                Some(error) => format!("        {error}\n        {}\n", step.command),
                None if step.applied => String::new(),
                None => format!("        {}\n", step.command),
            };
        }
        text += if !self.complete {
            "  not complete: repeat the command when all servers answer\n"
        } else if self.steps.is_empty() {
            "  nothing to change\n"
        } else if self.steps.iter().all(|step| !step.applied) {
            "  nothing was changed: repeat with --apply, or run the commands yourself\n"
        } else {
            ""
        };
        text += &format!("\n{}\n", page.paint(Tone::Strong, "rights"));
        text += "  what the user `postdate` of the service needs; not needed on a server without access control\n";
        for Rights { area, lines } in &self.rights {
            text += &format!("  {area}\n");
            text.extend(lines.iter().map(|line| format!("        {line}\n")));
        }
        text
    }
}

/// Joins changes of one topic or stream. Leaves out streams whose subjects an earlier one takes.
pub(super) fn merged(changes: impl IntoIterator<Item = Change>) -> Vec<Change> {
    let mut merged: Vec<Change> = Vec::new();
    for change in changes {
        if let Some(known) = merged.iter_mut().find(|known| name(known) == name(&change)) {
            absorb(known, change);
        } else if !merged.iter().any(|known| takes_subjects_of(known, &change)) {
            merged.push(change);
        }
    }
    merged
}

fn name(change: &Change) -> &str {
    match change {
        Change::Create(NewTopic { name, .. }) | Change::SetRetention { name, .. } => name,
    }
}

fn absorb(known: &mut Change, change: Change) {
    match (known, change) {
        (Change::Create(known), Change::Create(topic)) => {
            for subject in topic.subjects {
                if !covers(&known.subjects, &subject) {
                    known
                        .subjects
                        .retain(|known| !filter_covers(&subject, known));
                    known.subjects.push(subject);
                }
            }
            known.partitions = known.partitions.max(topic.partitions);
            known.retention = known.retention.max(topic.retention);
        }
        (
            Change::SetRetention { retention, .. },
            Change::SetRetention {
                retention: other, ..
            },
        ) => {
            *retention = (*retention).max(other);
        }
        // A topic is either missing or not.
        _ => {}
    }
}

fn covers(filters: &[String], subject: &str) -> bool {
    filters.iter().any(|filter| filter_covers(filter, subject))
}

fn takes_subjects_of(known: &Change, change: &Change) -> bool {
    let (Change::Create(known), Change::Create(topic)) = (known, change) else {
        return false;
    };
    let mut subjects = topic.subjects.iter();
    !topic.subjects.is_empty() && subjects.all(|subject| covers(&known.subjects, subject))
}

/// Describes a change for people.
pub(super) fn describe(change: &Change) -> String {
    match change {
        Change::Create(topic) => {
            let what = if topic.subjects.is_empty() {
                let partitions = several(topic.partitions.into(), "partition");
                format!("create the topic {}: {partitions}", topic.name)
            } else {
                let subjects = topic.subjects.join(", ");
                format!("create the stream {}: subjects {subjects}", topic.name)
            };
            let replicas = several(topic.replicas.into(), "replica");
            let retention = topic.retention.map_or_else(
                || "default retention".to_owned(),
                |retention| format!("kept for {}", length(retention)),
            );
            format!("{what}, {replicas}, {retention}")
        }
        Change::SetRetention { name, retention } => {
            format!("keep the messages of {name} for {}", length(*retention))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const DAY: Duration = Duration::from_secs(24 * 3_600);

    fn stream(name: &str, subjects: &[&str], days: u32) -> Change {
        Change::Create(NewTopic {
            name: name.into(),
            subjects: subjects.iter().map(|it| (*it).to_owned()).collect(),
            partitions: 6,
            replicas: 1,
            retention: (days > 0).then_some(days * DAY),
            is_compacted: false,
        })
    }

    fn longer(name: &str, days: u32) -> Change {
        Change::SetRetention {
            name: name.into(),
            retention: days * DAY,
        }
    }

    #[test]
    fn changes_of_one_topic_become_one() {
        let changes = [
            stream("DELAYED", &["d.a"], 2),
            stream("DELAYED", &["d.*"], 9),
            stream("DELAYED", &["e"], 3),
            stream("DELAYED", &["e"], 0),
            longer("KEPT", 3),
            longer("KEPT", 2),
        ];
        assert_eq!(
            merged(changes),
            [stream("DELAYED", &["d.*", "e"], 9), longer("KEPT", 3)]
        );
    }

    #[test]
    fn a_stream_whose_subjects_another_takes_is_left_out() {
        let changes = [
            stream("ORDERS", &["orders.>"], 0),
            stream("ORDERS_EU", &["orders.eu"], 0),
            stream("MAIL", &["mail"], 0),
        ];
        assert_eq!(
            merged(changes.clone()),
            [changes[0].clone(), changes[2].clone()]
        );
        let topics = [stream("a", &[], 1), stream("b", &[], 1)];
        assert_eq!(merged(topics.clone()), topics, "a topic has no subjects");
    }

    #[test]
    fn a_plan_shows_what_is_to_do_and_what_was_done() {
        let step = |change: Change, applied, error: Option<&str>| Step {
            area: "kafka.main".into(),
            change: describe(&change),
            command: "kafka-topics.sh --create".into(),
            applied,
            error: error.map(str::to_owned),
        };
        let mut plan = Plan {
            complete: true,
            steps: vec![
                step(stream("orders.delayed", &[], 31), false, None),
                step(longer("mail.delayed", 31), false, None),
            ],
            rights: vec![Rights {
                area: "kafka.main".into(),
                lines: vec!["kafka-acls.sh --add".into()],
            }],
        };
        insta::assert_snapshot!(plan.text(&Page::PLAIN), @r"

        plan
          todo  kafka.main  create the topic orders.delayed: 6 partitions, 1 replica, kept for 31d
                kafka-topics.sh --create
          todo  kafka.main  keep the messages of mail.delayed for 31d
                kafka-topics.sh --create
          nothing was changed: repeat with --apply, or run the commands yourself

        rights
          what the user `postdate` of the service needs; not needed on a server without access control
          kafka.main
                kafka-acls.sh --add
        ");
        plan.steps = vec![
            step(stream("DELAYED", &["d.>"], 0), true, None),
            step(longer("mail.delayed", 31), true, Some("denied")),
        ];
        let text = plan.text(&Page::PLAIN);
        let (steps, _) = text.split_once("\nrights").unwrap();
        insta::assert_snapshot!(steps, @r"

        plan
          done  kafka.main  create the stream DELAYED: subjects d.>, 1 replica, default retention
          fail  kafka.main  keep the messages of mail.delayed for 31d
                denied
                kafka-topics.sh --create
        ");
        plan.steps.clear();
        assert!(plan.text(&Page::PLAIN).contains("nothing to change\n"));
        plan.complete = false;
        assert!(plan.text(&Page::PLAIN).contains("not complete"));
    }
}
