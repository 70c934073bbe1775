//! Where the messages of a route may go.
//!
//! The ingress checks the target of each record. The timer checks it again at delivery, because the
//! configuration may have changed in between.

use super::subject;
use crate::model::dialect::Dialects;
use crate::model::headers::header::Headers;
use crate::model::headers::header_name::SUBJECT;
use crate::model::headers::retry_keys::RetryKeys;
use crate::model::parsing::dead_letter_reason::DeadLetterReason;
use crate::model::parsing::rejection::{Quoted, Rejection};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

/// Kafka's own bound on topic names.
const TOPIC_BYTES_MAX: usize = 249;

/// A rejection lists this many allowed patterns, then says how many more there are.
const PATTERNS_SHOWN_MAX: usize = 8;

/// Which records a route accepts, and where it delivers them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoutingRules {
    pub(crate) targets: TargetRules,
    /// Where answers and outcome records go. `None`: the route has none. They never decide a position.
    pub(crate) replies: Option<ReplyRules>,
    /// The longest delay, measured from the record's own timestamp.
    pub(crate) max_delay: Duration,
    /// The longest wait of a message that goes back through its source. It may be longer than
    /// `max_delay`.
    pub(crate) max_retry_wait: Duration,
    pub(crate) without_delay: WithoutDelay,
    /// Records define schedules.
    pub(crate) is_recurring: bool,
    /// They decide no position, but which messages are cancelled.
    pub(crate) on_duplicate: OnDuplicate,
    /// Messages without an id are named by their origins.
    pub(crate) change_by_origin: bool,
    /// The other systems whose delay headers the route understands.
    pub(crate) dialects: Dialects,
    /// Keys that sign `postdate-retry`. They decide no position, so they may change at any time.
    pub(crate) retry_keys: RetryKeys,
}

impl RoutingRules {
    /// The rules of a route `orders` with an hour as the longest delay.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        let targets = TargetRules::new(
            Naming::Topic,
            Some("orders"),
            ["billing.*"],
            ["orders.delayed"],
        );
        Self {
            targets,
            replies: None,
            max_delay: Duration::from_hours(1),
            max_retry_wait: Duration::from_mins(1),
            without_delay: WithoutDelay::Relay,
            on_duplicate: OnDuplicate::Replace,
            change_by_origin: false,
            dialects: Dialects::default(),
            is_recurring: false,
            retry_keys: RetryKeys::default(),
        }
    }

    /// Where outcome records go. `None`: there are none.
    pub(crate) fn outcomes(&self) -> Option<&str> {
        self.replies.as_ref()?.outcomes.as_deref()
    }

    /// These rules without a limit for delays and without a check of targets. They give the due
    /// time of every record that can be read.
    pub(crate) fn without_limits(&self) -> Self {
        let mut rules = self.clone();
        rules.max_delay = Duration::MAX;
        rules.targets.unchecked = true;
        rules
    }
}

/// The answers and outcome records of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplyRules {
    /// Where answers may go.
    pub(crate) targets: TargetRules,
    /// Where outcome records go. `None`: there are none.
    pub(crate) outcomes: Option<String>,
    /// The transactions of the timer decide the outcomes.
    pub(crate) is_exactly_once: bool,
}

/// The handling of a record that carries no delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithoutDelay {
    /// Delivered at once.
    Relay,
    /// Rejected.
    DeadLetter,
}

/// The handling of a schedule whose id waits already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OnDuplicate {
    /// The message that waits is cancelled.
    #[default]
    #[serde(rename = "r")]
    Replace,
    /// The schedule is dropped. A message waits until its due time by the timestamp of the schedule.
    #[serde(rename = "k")]
    KeepFirst,
}

impl OnDuplicate {
    pub(super) fn replaces(&self) -> bool {
        *self == Self::Replace
    }
}

/// The targets of a route, all on one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetRules {
    naming: Naming,
    /// The target of messages that name none. It may be a NATS subject that is filled from the
    /// subject of each message: see [`subject`].
    default: Option<String>,
    /// The check of a default that is no template. It is made once, because most messages go there.
    fixed_default: Option<Result<(), Rejection>>,
    /// Names, and patterns of names, that a message may name.
    allowed: Vec<String>,
    /// Topics, or filter subjects, of the target's cluster that this deployment reads. A message
    /// that is delivered to one would come back, and could circulate forever.
    sources: BTreeSet<String>,
    /// Takes every target. See [`RoutingRules::without_limits`].
    unchecked: bool,
    /// NATS inboxes are targets too.
    takes_inboxes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// A Kafka topic. In an allow-list `*` matches any characters.
    Topic,
    /// A NATS subject. In an allow-list `*` matches one token and `>` the rest.
    Subject,
}

impl TargetRules {
    pub(crate) fn new(
        naming: Naming,
        default: Option<&str>,
        allowed: impl IntoIterator<Item = impl Into<String>>,
        sources: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let mut rules = Self {
            naming,
            default: default.map(Into::into),
            fixed_default: None,
            allowed: allowed.into_iter().map(Into::into).collect(),
            sources: sources.into_iter().map(Into::into).collect(),
            unchecked: false,
            takes_inboxes: false,
        };
        let is_fixed = |name: &&str| naming == Naming::Topic || !subject::is_template(name);
        rules.fixed_default = default.filter(is_fixed).map(|name| rules.check(name));
        rules
    }

    /// The targets of answers: patterns of names.
    pub(crate) fn replies(
        naming: Naming,
        allowed: impl IntoIterator<Item = impl Into<String>>,
        sources: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            takes_inboxes: true,
            ..Self::new(naming, None, allowed, sources)
        }
    }

    pub(super) fn naming(&self) -> Naming {
        self.naming
    }

    pub(super) fn allowed(&self) -> &[String] {
        &self.allowed
    }

    /// The sources that the default or an entry of the allow-list may match. A template may match
    /// any of them.
    pub(super) fn reachable_sources(&self) -> impl Iterator<Item = &str> {
        let is_template = self.default.is_some() && self.fixed_default.is_none();
        let names = self.default.iter().chain(&self.allowed);
        let names: Vec<&str> = names.map(String::as_str).collect();
        let is_reachable = move |source: &&str| match self.naming {
            Naming::Topic => names.iter().any(|name| glob_matches(name, source)),
            Naming::Subject => names
                .iter()
                .any(|name| is_template || subject::filters_overlap(source, name)),
        };
        self.sources.iter().map(String::as_str).filter(is_reachable)
    }

    /// The default target as configured. It may be a template.
    pub(crate) fn default_name(&self) -> Option<&str> {
        self.default.as_deref()
    }

    /// The target of a message that names `named`. Its source topic and its headers fill a default
    /// that is a template. If several things are wrong, the first one in this order is the reason:
    ///
    /// 1. `no_target`: the message names no target, and the route has no default.
    /// 2. `invalid_target`: not a name that [`Naming`] takes, even if it is on the allow-list.
    /// 3. `target_is_source`: a source of this deployment, even if it is the default.
    /// 4. `target_not_allowed`: not on the allow-list. The default is always allowed.
    pub(crate) fn resolve<'a>(
        &'a self,
        named: Option<&'a str>,
        topic: &str,
        headers: Headers<'_>,
    ) -> Result<Cow<'a, str>, Rejection> {
        if self.unchecked {
            return Ok(Cow::Borrowed(named.unwrap_or_default()));
        }
        let Some(target) = named else {
            return self.resolve_default(topic, headers);
        };
        self.check(target)?;
        if self.is_default(target, topic, headers) || self.is_allowed(target) {
            Ok(Cow::Borrowed(target))
        } else {
            Err(self.not_allowed(target))
        }
    }

    fn resolve_default(
        &self,
        topic: &str,
        headers: Headers<'_>,
    ) -> Result<Cow<'_, str>, Rejection> {
        let Some(default) = &self.default else {
            let detail = "the record names no target and the route has no default target";
            return Err(Rejection::new(DeadLetterReason::NoTarget, detail));
        };
        if let Some(checked) = &self.fixed_default {
            return checked.clone().map(|()| default.into());
        }
        let target = fill(default, topic, headers).ok_or_else(|| {
            let detail = format!(
                "the route's target {default} cannot be filled from the message's source subject"
            );
            Rejection::new(DeadLetterReason::InvalidTarget, detail)
        })?;
        self.check(&target)?;
        Ok(Cow::Owned(target))
    }

    fn is_default(&self, target: &str, topic: &str, headers: Headers<'_>) -> bool {
        match &self.default {
            Some(template) if self.fixed_default.is_none() => {
                fill(template, topic, headers).is_some_and(|filled| filled == target)
            }
            default => default.as_deref() == Some(target),
        }
    }

    fn is_allowed(&self, target: &str) -> bool {
        let matches = match self.naming {
            Naming::Topic => glob_matches,
            Naming::Subject => subject::filter_covers,
        };
        self.allowed.iter().any(|pattern| matches(pattern, target))
    }

    /// Rejects names that no allow-list can permit.
    fn check(&self, target: &str) -> Result<(), Rejection> {
        let (is_valid, rule) = match self.naming {
            Naming::Topic => (
                is_topic_name(target) && !target.starts_with("__"),
                "is not a topic: 1-249 of A-Z a-z 0-9 . _ -, neither . nor .., and not reserved (__*)",
            ),
            Naming::Subject => (
                subject::is_subject(target) || self.takes_inboxes && subject::is_inbox(target),
                "is not a subject to send to: 1-249 of printable ASCII, tokens with dots between them, \
                 no * or >, and not reserved ($*, _INBOX.*)",
            ),
        };
        let quoted = Quoted(target.as_bytes());
        if !is_valid {
            let detail = format!("the target {quoted} {rule}");
            return Err(Rejection::new(DeadLetterReason::InvalidTarget, detail));
        }
        if self.is_source(target) {
            let detail = format!("the target {quoted} is a source of this deployment");
            return Err(Rejection::new(DeadLetterReason::TargetIsSource, detail));
        }
        Ok(())
    }

    fn is_source(&self, target: &str) -> bool {
        match self.naming {
            Naming::Topic => self.sources.contains(target),
            Naming::Subject => {
                let mut filters = self.sources.iter();
                filters.any(|filter| subject::filter_covers(filter, target))
            }
        }
    }

    fn not_allowed(&self, target: &str) -> Rejection {
        let default = self.default_name();
        let others = self.allowed.iter().map(String::as_str);
        let others = others.filter(|pattern| Some(*pattern) != default);
        let allowed: Vec<&str> = default.into_iter().chain(others).collect();
        let shown = &allowed[..allowed.len().min(PATTERNS_SHOWN_MAX)];
        let list = if shown.is_empty() {
            "nothing".to_owned()
        } else {
            shown.join(", ")
        };
        let target = Quoted(target.as_bytes());
        let mut detail = format!("the target {target} is not allowed; allowed: {list}");
        let more = allowed.len() - shown.len();
        if more > 0 {
            write!(detail, " and {more} more").expect("writing into a String cannot fail");
        }
        Rejection::new(DeadLetterReason::TargetNotAllowed, detail)
    }
}

/// `None` if the message has no source subject that the source's filter matches.
fn fill(template: &str, topic: &str, headers: Headers<'_>) -> Option<String> {
    let (_, filter) = subject::split_source_topic(topic)?;
    subject::fill_template(template, filter, headers.text(SUBJECT)?)
}

/// Checks the name of a Kafka topic: 1-249 of `[a-zA-Z0-9._-]`, neither `.` nor `..`.
///
/// Another name must not reach librdkafka. It ends a name at a zero byte, treats a leading `^` as a
/// pattern, and asks the brokers for any other invalid name with every refresh.
pub(crate) fn is_topic_name(name: &str) -> bool {
    let is_valid_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=TOPIC_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_valid_byte)
        && name != "."
        && name != ".."
}

/// Matches each piece between two stars at its first position, which leaves the longest rest. So
/// there is no backtracking, and the cost of a hostile name is linear.
fn glob_matches(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = pieces.next_back() else {
        return rest.is_empty();
    };
    for piece in pieces {
        let Some((_, after)) = rest.split_once(piece) else {
            return false;
        };
        rest = after;
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::parsing::rejection::DETAIL_BYTES_MAX;
    use proptest::prelude::*;

    const TOPIC: &str = "orders.delayed";
    const HEADERS: Headers<'static> = Headers::from_block(&[]);

    fn rules(default: Option<&str>, allowed: &[&str]) -> TargetRules {
        TargetRules::new(
            Naming::Topic,
            default,
            allowed.iter().copied(),
            ["orders.delayed"],
        )
    }

    #[test]
    fn invalid_topic_names_are_recognised() {
        for name in ["a", "A-z_0.9", "...", "__x", &"x".repeat(249)] {
            assert!(is_topic_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "^a",
            "a b",
            "a\0b",
            "a/b",
            "ümlaut",
            "a*",
            &"x".repeat(250),
        ] {
            assert!(!is_topic_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_target_is_the_default_or_on_the_allow_list() {
        use DeadLetterReason::{InvalidTarget, NoTarget, TargetIsSource, TargetNotAllowed};
        let long = "x".repeat(249);
        let too_long = "x".repeat(250);
        let all = rules(Some("orders"), &["*"]);
        let some = rules(Some("orders"), &["billing.*", "audit"]);
        let default_only = rules(Some("orders"), &[]);
        let nothing = rules(None, &[]);
        let loops = rules(Some("orders.delayed"), &["*"]);
        let reserved = rules(Some("__orders"), &["*"]);
        let table: &[(&TargetRules, Option<&str>, Result<&str, DeadLetterReason>)] = &[
            (&all, None, Ok("orders")),
            (&all, Some("orders"), Ok("orders")),
            (&all, Some("a"), Ok("a")),
            (&all, Some("A-z_0.9"), Ok("A-z_0.9")),
            (&all, Some("_x"), Ok("_x")),
            (&all, Some("a..b"), Ok("a..b")),
            (&all, Some("..."), Ok("...")),
            (&all, Some(&long), Ok(&long)),
            (&all, Some(&too_long), Err(InvalidTarget)),
            (&all, Some(""), Err(InvalidTarget)),
            (&all, Some("."), Err(InvalidTarget)),
            (&all, Some(".."), Err(InvalidTarget)),
            (&all, Some("__consumer_offsets"), Err(InvalidTarget)),
            (&all, Some("__"), Err(InvalidTarget)),
            (&all, Some("orders.*"), Err(InvalidTarget)),
            (&all, Some("*"), Err(InvalidTarget)),
            (&all, Some("orders.>"), Err(InvalidTarget)),
            (&all, Some("or ders"), Err(InvalidTarget)),
            (&all, Some("orders\0"), Err(InvalidTarget)),
            (&all, Some("orders\n"), Err(InvalidTarget)),
            (&all, Some("orders/a"), Err(InvalidTarget)),
            (&all, Some("$JS.API.STREAM.DELETE.X"), Err(InvalidTarget)),
            (&all, Some("$SYS.ACCOUNT"), Err(InvalidTarget)),
            (&all, Some("örders"), Err(InvalidTarget)),
            (&all, Some("orders.delayed"), Err(TargetIsSource)),
            (&some, None, Ok("orders")),
            (&some, Some("orders"), Ok("orders")),
            (&some, Some("billing."), Ok("billing.")),
            (&some, Some("billing.eu"), Ok("billing.eu")),
            (&some, Some("audit"), Ok("audit")),
            (&some, Some("Audit"), Err(TargetNotAllowed)),
            (&some, Some("audits"), Err(TargetNotAllowed)),
            (&some, Some("billing"), Err(TargetNotAllowed)),
            (&some, Some("xbilling.eu"), Err(TargetNotAllowed)),
            (&some, Some("orders.delayed"), Err(TargetIsSource)),
            (&default_only, None, Ok("orders")),
            (&default_only, Some("orders"), Ok("orders")),
            (&default_only, Some("other"), Err(TargetNotAllowed)),
            (&nothing, None, Err(NoTarget)),
            (&nothing, Some("orders"), Err(TargetNotAllowed)),
            (&loops, None, Err(TargetIsSource)),
            (&reserved, None, Err(InvalidTarget)),
        ];
        for (rules, named, expected) in table {
            assert_eq!(
                rules
                    .resolve(*named, TOPIC, HEADERS)
                    .map_err(|rejection| rejection.reason),
                expected.map(Cow::Borrowed),
                "{named:?} of {rules:?}"
            );
        }
    }

    #[test]
    fn a_target_subject_is_filled_from_the_source_subject_or_on_the_allow_list() {
        let rules = TargetRules::new(
            Naming::Subject,
            Some("orders.$1"),
            ["billing.*", "audit.>"],
            ["delayed.>"],
        );
        let mut block = Vec::new();
        crate::model::headers::header::push_header(
            &mut block,
            SUBJECT.as_bytes(),
            Some(b"delayed.eu"),
        );
        let headers = Headers::from_block(&block);
        let target = |named| {
            rules
                .resolve(named, "S:delayed.*", headers)
                .map(Cow::into_owned)
                .map_err(|rejection| rejection.reason)
        };
        assert_eq!(target(None), Ok("orders.eu".to_owned()));
        assert_eq!(
            rules.resolve(None, TOPIC, HEADERS).unwrap_err().reason,
            DeadLetterReason::InvalidTarget
        );
        assert_eq!(
            target(Some("orders.eu")),
            Ok("orders.eu".to_owned()),
            "the default is always allowed"
        );
        assert_eq!(target(Some("billing.eu")), Ok("billing.eu".to_owned()));
        assert_eq!(target(Some("audit.a.b")), Ok("audit.a.b".to_owned()));
        assert_eq!(
            target(Some("billing.eu.x")),
            Err(DeadLetterReason::TargetNotAllowed)
        );
        assert_eq!(
            target(Some("delayed.x.y")),
            Err(DeadLetterReason::TargetIsSource)
        );
        assert_eq!(
            target(Some("billing.*")),
            Err(DeadLetterReason::InvalidTarget)
        );
        assert_eq!(
            target(Some("$JS.API.x")),
            Err(DeadLetterReason::InvalidTarget)
        );
    }

    #[test]
    fn a_rejection_names_the_target_and_the_allowed_ones() {
        let detail = |rules: &TargetRules, named| {
            rules
                .resolve(Some(named), TOPIC, HEADERS)
                .unwrap_err()
                .detail
        };
        let some = rules(Some("orders"), &["orders", "billing.*"]);
        assert_eq!(
            detail(&some, "other"),
            r#"the target "other" is not allowed; allowed: orders, billing.*"#
        );
        assert_eq!(
            detail(&rules(None, &[]), "other"),
            r#"the target "other" is not allowed; allowed: nothing"#
        );
        assert!(
            detail(&some, "a\u{202e}\nb")
                .starts_with(r#"the target "a\xe2\x80\xae\nb" is not a topic: "#)
        );

        let many = rules(
            Some("orders"),
            &["a", "b", "c", "d", "e", "f", "g", "h", "i"],
        );
        assert_eq!(
            detail(&many, "z"),
            r#"the target "z" is not allowed; allowed: orders, a, b, c, d, e, f, g and 2 more"#
        );
        let eight = rules(None, &["a", "b", "c", "d", "e", "f", "g", "h"]);
        assert!(detail(&eight, "z").ends_with(" a, b, c, d, e, f, g, h"));

        let wide = rules(None, &["x".repeat(249).as_str(); 9]);
        assert_eq!(detail(&wide, "z").len(), DETAIL_BYTES_MAX);
    }

    /// The definition of a pattern, at exponential cost.
    fn matches_by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => {
                (0..=name.len()).any(|skipped| matches_by_definition(rest, &name[skipped..]))
            }
            Some((first, rest)) => {
                name.first() == Some(first) && matches_by_definition(rest, &name[1..])
            }
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_by_its_definition(pattern in "[ab*]{0,7}", name in "[ab]{0,9}") {
            prop_assert_eq!(glob_matches(&pattern, &name), matches_by_definition(pattern.as_bytes(), name.as_bytes()));
        }

        #[test]
        fn an_accepted_target_is_a_topic_and_never_a_source(named: Option<String>, all: bool) {
            let rules = rules(Some("orders"), if all { &["*"] } else { &["orders.*"] });
            if let Ok(target) = rules.resolve(named.as_deref(), TOPIC, HEADERS) {
                prop_assert!(is_topic_name(&target) && !rules.sources.contains(&*target));
            }
        }
    }
}
