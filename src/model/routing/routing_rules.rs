//! The rules of a route that decide what becomes of a record. Shared by ingress, which asks on reading, and by the timer, which asks again
//! at delivery: between the two the configuration may have changed. Which cluster a target lies on is not known here, only by which names it goes.

use crate::model::dialect::Dialects;
use crate::model::headers::header::Headers;
use crate::model::headers::header_name::SUBJECT;
use crate::model::parsing::dead_letter_reason::Reason;
use crate::model::parsing::rejection::{Quoted, Rejection};
use crate::model::routing::subject;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Kafka's own bound on topic names.
const TOPIC_BYTES_MAX: usize = 249;

/// Patterns that a refusal lists before it says how many more there are.
const PATTERNS_SHOWN_MAX: usize = 8;

/// What a route takes, and where it may deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoutingRules {
    /// By which names the target's cluster goes.
    pub(crate) target_naming: Naming,
    /// Where a message goes that names no target. Of subjects it may be a template: see `subject`.
    pub(crate) default_target: Option<DefaultTarget>,
    /// What `postdate-to` may name besides the default target.
    pub(crate) allowed_targets: AllowList,
    /// Topics, or filter subjects, of the target's cluster that are sources of this deployment: a delivery to one would come back, and a header of the message
    /// could keep it going round for ever.
    pub(crate) sources: BTreeSet<String>,
    /// The longest delay, measured from the record's own timestamp.
    pub(crate) max_delay: Duration,
    /// The longest wait for another attempt, which may be longer than any delay.
    pub(crate) max_retry_wait: Duration,
    pub(crate) without_delay: WithoutDelay,
    /// The other systems whose headers are understood besides the control headers.
    pub(crate) dialects: Dialects,
}

/// A default target. Most messages go there: whether they may is looked at once, not for each of them.
#[derive(Debug)]
pub(crate) struct DefaultTarget {
    name: Arc<str>,
    is_fit: OnceLock<bool>,
}

impl DefaultTarget {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl From<&str> for DefaultTarget {
    fn from(name: &str) -> Self {
        Self {
            name: name.into(),
            is_fit: OnceLock::new(),
        }
    }
}

/// What was found holds for the rules that it was found by: those made of a copy may name other sources.
impl Clone for DefaultTarget {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            is_fit: OnceLock::new(),
        }
    }
}

impl PartialEq for DefaultTarget {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for DefaultTarget {}

/// What a target's name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// A Kafka topic; in an allow-list `*` stands for any characters.
    Topic,
    /// A NATS subject; in an allow-list `*` stands for one token and `>` for the rest.
    Subject,
}

impl Naming {
    fn is_valid(self, name: &str) -> bool {
        match self {
            Self::Topic => is_topic(name),
            Self::Subject => subject::is_subject(name),
        }
    }

    fn allows(self, pattern: &str, name: &str) -> bool {
        match self {
            Self::Topic => glob_matches(pattern, name),
            Self::Subject => subject::filter_matches(pattern, name),
        }
    }
}

/// Where a message came by: what a template is filled from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TemplateInput<'a> {
    pub(crate) topic: &'a str,
    pub(crate) headers: Headers<'a>,
}

impl TemplateInput<'_> {
    /// `None`: the message did not come by a subject that the source's filter lets through.
    fn fill(&self, template: &str) -> Option<String> {
        let (_, filter) = subject::split_source_topic(self.topic)?;
        let (_, by) = self
            .headers
            .iter()
            .find(|(name, _)| *name == SUBJECT.as_bytes())?;
        subject::fill_template(template, filter, std::str::from_utf8(by?).ok()?)
    }
}

/// What becomes of a record that carries no delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithoutDelay {
    /// Delivered at once.
    Relay,
    /// Refused.
    DeadLetter,
}

impl RoutingRules {
    /// The target of a message that named `named`. The first thing wrong is the reason, in this order:
    ///
    /// 1. [`Reason::NoTarget`]: nothing named, and the route has no default.
    /// 2. [`Reason::InvalidTarget`]: not a name that [`Naming`] takes, though it were on the allow-list.
    /// 3. [`Reason::TargetIsSource`]: a source of this deployment, though it were on the allow-list or the default.
    /// 4. [`Reason::TargetNotAllowed`]: neither the default target, which is always allowed, nor on the allow-list.
    pub(crate) fn resolve_target<'a>(
        &'a self,
        named: Option<&'a str>,
        came_by: TemplateInput<'_>,
    ) -> Result<Cow<'a, str>, Rejection> {
        if named.is_none()
            && let Some(default) = self.checked_default()
        {
            return Ok(Cow::Borrowed(default));
        }
        let default = match self.default_for(came_by) {
            Err(_) if named.is_some() => None,
            default => default?,
        };
        let Some(target) = named.or(default.as_deref()) else {
            return Err(Rejection::new(
                Reason::NoTarget,
                "the record names no target and the route has no default target",
            ));
        };
        self.check_target(target)?;
        if Some(target) != default.as_deref()
            && !self.allowed_targets.allows(self.target_naming, target)
        {
            return Err(Rejection::new(
                Reason::TargetNotAllowed,
                self.not_allowed_detail(target),
            ));
        }
        match named {
            Some(named) => Ok(Cow::Borrowed(named)),
            None => Ok(default.unwrap_or_default()),
        }
    }

    /// The default target, if it is the same for all messages and nothing speaks against it.
    fn checked_default(&self) -> Option<&str> {
        let default = self.default_target.as_ref()?;
        let is_fit =
            || !self.is_template(&default.name) && self.check_target(&default.name).is_ok();
        default.is_fit.get_or_init(is_fit).then_some(&default.name)
    }

    /// What no list can allow.
    fn check_target(&self, target: &str) -> Result<(), Rejection> {
        if !self.target_naming.is_valid(target) {
            return Err(self.invalid_target(target));
        }
        if self.is_source(target) {
            let detail = format!(
                "the target {} is a source of this deployment",
                Quoted(target.as_bytes())
            );
            return Err(Rejection::new(Reason::TargetIsSource, detail));
        }
        Ok(())
    }

    fn is_template(&self, default: &str) -> bool {
        self.target_naming == Naming::Subject && subject::is_template(default)
    }

    /// The default target of a message that came by there.
    fn default_for(&self, came_by: TemplateInput<'_>) -> Result<Option<Cow<'_, str>>, Rejection> {
        let Some(default) = self.default_target.as_ref().map(DefaultTarget::name) else {
            return Ok(None);
        };
        if !self.is_template(default) {
            return Ok(Some(Cow::Borrowed(default)));
        }
        let unfilled = || {
            let detail = format!(
                "the route's target {default} cannot be made of the subject that the message came by"
            );
            Rejection::new(Reason::InvalidTarget, detail)
        };
        came_by
            .fill(default)
            .map(|target| Some(Cow::Owned(target)))
            .ok_or_else(unfilled)
    }

    fn is_source(&self, target: &str) -> bool {
        match self.target_naming {
            Naming::Topic => self.sources.contains(target),
            Naming::Subject => self
                .sources
                .iter()
                .any(|filter| subject::filter_matches(filter, target)),
        }
    }

    fn invalid_target(&self, target: &str) -> Rejection {
        let what = match self.target_naming {
            Naming::Topic => {
                "is not a topic: 1-249 of A-Z a-z 0-9 . _ -, neither . nor .., and not reserved (__*)"
            }
            Naming::Subject => {
                "is not a subject to send to: 1-249 of printable ASCII, tokens with dots between them, no * or >, and not reserved ($*, _INBOX.*)"
            }
        };
        Rejection::new(
            Reason::InvalidTarget,
            format!("the target {} {what}", Quoted(target.as_bytes())),
        )
    }

    fn not_allowed_detail(&self, target: &str) -> String {
        let AllowList(patterns) = &self.allowed_targets;
        let mut detail = format!(
            "the target {} is not allowed; allowed:",
            Quoted(target.as_bytes())
        );
        let default = self.default_target.as_ref().map(DefaultTarget::name);
        let others = patterns
            .iter()
            .map(String::as_str)
            .filter(|pattern| Some(*pattern) != default);
        let allowed: Vec<&str> = default.into_iter().chain(others).collect();
        let count = allowed.len();
        for (index, pattern) in allowed.into_iter().take(PATTERNS_SHOWN_MAX).enumerate() {
            write!(detail, "{}{pattern}", if index == 0 { " " } else { ", " })
                .expect("writing into a String cannot fail");
        }
        match count.checked_sub(PATTERNS_SHOWN_MAX) {
            _ if count == 0 => detail.push_str(" nothing"),
            Some(more @ 1..) => {
                write!(detail, " and {more} more").expect("writing into a String cannot fail")
            }
            _ => {}
        }
        detail
    }
}

/// Whether Kafka could have a topic of this name and we would deliver there: 1-249 of `[a-zA-Z0-9._-]`, neither `.` nor `..`, and not
/// starting with `__`, which Kafka and its tools keep for themselves. Wildcards, spaces, NUL, `$JS` and `$SYS` are not of that alphabet.
pub(crate) fn is_topic(name: &str) -> bool {
    (1..=TOPIC_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
        && name != "."
        && name != ".."
        && !name.starts_with("__")
}

/// Names and patterns of names; `*` stands for any characters, none included. Empty: only the default target is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllowList(Vec<String>);

impl AllowList {
    pub(crate) fn new(patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(patterns.into_iter().map(Into::into).collect())
    }

    fn allows(&self, naming: Naming, name: &str) -> bool {
        self.0.iter().any(|pattern| naming.allows(pattern, name))
    }
}

/// Takes each piece between two stars at its first place, which leaves the most for the rest: no need to go back, so a hostile name
/// costs no more than its length allows.
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
        let Some(at) = rest.find(piece) else {
            return false;
        };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::parsing::rejection::DETAIL_BYTES_MAX;
    use proptest::prelude::*;

    const NOWHERE: TemplateInput<'static> = TemplateInput {
        topic: "orders.delayed",
        headers: Headers::from_block(&[]),
    };

    fn rules(default_target: Option<&str>, allow: &[&str]) -> RoutingRules {
        RoutingRules {
            target_naming: Naming::Topic,
            default_target: default_target.map(Into::into),
            allowed_targets: AllowList::new(allow.iter().copied()),
            sources: BTreeSet::from(["orders.delayed".to_owned()]),
            max_delay: Duration::from_secs(60),
            max_retry_wait: Duration::from_secs(1),
            without_delay: WithoutDelay::Relay,
            dialects: Dialects::default(),
        }
    }

    #[test]
    fn a_target_is_the_default_or_on_the_allow_list() {
        use Reason::{InvalidTarget, NoTarget, TargetIsSource, TargetNotAllowed};
        let long = "x".repeat(249);
        let too_long = "x".repeat(250);
        let all = rules(Some("orders"), &["*"]);
        let some = rules(Some("orders"), &["billing.*", "audit"]);
        let default_only = rules(Some("orders"), &[]);
        let nothing = rules(None, &[]);
        let loops = rules(Some("orders.delayed"), &["*"]);
        let reserved = rules(Some("__orders"), &["*"]);
        let table: &[(&RoutingRules, Option<&str>, Result<&str, Reason>)] = &[
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
        // Asked again, a default is not looked at again.
        for (rules, named, expected) in table.iter().chain(table) {
            assert_eq!(
                rules
                    .resolve_target(*named, NOWHERE)
                    .map_err(|refusal| refusal.reason),
                expected.map(Cow::Borrowed),
                "{named:?} of {rules:?}"
            );
        }
    }

    #[test]
    fn what_was_found_of_a_default_target_does_not_go_into_other_rules() {
        let asked = rules(Some("orders"), &[]);
        assert_eq!(
            asked.resolve_target(None, NOWHERE),
            Ok(Cow::Borrowed("orders"))
        );
        let others = RoutingRules {
            sources: BTreeSet::from(["orders".to_owned()]),
            ..asked.clone()
        };
        assert_eq!(
            others.resolve_target(None, NOWHERE).unwrap_err().reason,
            Reason::TargetIsSource
        );
        assert_eq!(
            asked.resolve_target(None, NOWHERE),
            Ok(Cow::Borrowed("orders")),
            "nor the other way"
        );
    }

    #[test]
    fn a_subject_is_made_of_the_one_the_message_came_by_or_on_the_allow_list_of_filters() {
        let rules = RoutingRules {
            target_naming: Naming::Subject,
            default_target: Some("orders.$1".into()),
            allowed_targets: AllowList::new(["billing.*", "audit.>"]),
            sources: BTreeSet::from(["delayed.>".to_owned()]),
            ..rules(None, &[])
        };
        let mut block = Vec::new();
        crate::model::headers::header::push_header(
            &mut block,
            SUBJECT.as_bytes(),
            Some(b"delayed.eu"),
        );
        let came_by = TemplateInput {
            topic: "S:delayed.*",
            headers: Headers::from_block(&block),
        };
        let target = |named| {
            rules
                .resolve_target(named, came_by)
                .map(Cow::into_owned)
                .map_err(|refusal| refusal.reason)
        };
        assert_eq!(target(None), Ok("orders.eu".to_owned()));
        assert_eq!(
            rules.resolve_target(None, NOWHERE).unwrap_err().reason,
            Reason::InvalidTarget
        );
        assert_eq!(
            target(Some("orders.eu")),
            Ok("orders.eu".to_owned()),
            "the default is always allowed"
        );
        assert_eq!(target(Some("billing.eu")), Ok("billing.eu".to_owned()));
        assert_eq!(target(Some("audit.a.b")), Ok("audit.a.b".to_owned()));
        assert_eq!(target(Some("billing.eu.x")), Err(Reason::TargetNotAllowed));
        assert_eq!(target(Some("delayed.x.y")), Err(Reason::TargetIsSource));
        assert_eq!(target(Some("billing.*")), Err(Reason::InvalidTarget));
        assert_eq!(target(Some("$JS.API.x")), Err(Reason::InvalidTarget));
    }

    #[test]
    fn a_refusal_says_what_was_found_and_what_is_allowed() {
        let detail = |rules: &RoutingRules, named| {
            rules
                .resolve_target(Some(named), NOWHERE)
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

    /// Says what a pattern means, at any cost.
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
        fn a_pattern_matches_what_it_means(pattern in "[ab*]{0,7}", name in "[ab]{0,9}") {
            prop_assert_eq!(glob_matches(&pattern, &name), matches_by_definition(pattern.as_bytes(), name.as_bytes()));
        }

        #[test]
        fn what_is_accepted_is_a_topic_and_never_a_source(named: Option<String>, all: bool) {
            let rules = rules(Some("orders"), if all { &["*"] } else { &["orders.*"] });
            if let Ok(target) = rules.resolve_target(named.as_deref(), NOWHERE) {
                prop_assert!(is_topic(&target) && !rules.sources.contains(&*target));
            }
        }
    }
}
