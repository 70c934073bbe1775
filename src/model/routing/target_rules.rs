//! The targets of a route: which one a message goes to, and whether it may go there.
//!
//! The ingress checks the target of each record. The timer checks it again at delivery, because the
//! configuration may have changed in between.

use super::subject;
use crate::model::headers::header::Headers;
use crate::model::headers::header_name::SUBJECT;
use crate::model::parsing::dead_letter_reason::Reason;
use crate::model::parsing::rejection::{Quoted, Rejection};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

/// Kafka's own bound on topic names.
const TOPIC_BYTES_MAX: usize = 249;

/// A rejection lists this many allowed patterns, then says how many more there are.
const PATTERNS_SHOWN_MAX: usize = 8;

/// The targets of a route, all on one cluster. The default target is checked once, when the rules
/// are made, because most messages go there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetRules {
    naming: Naming,
    default: Option<DefaultTarget>,
    /// Names, and patterns of names, that a message may name.
    allowed: Vec<String>,
    /// Topics, or filter subjects, of the target's cluster that this deployment reads. A message
    /// that is delivered to one would come back, and could circulate forever.
    sources: BTreeSet<String>,
}

/// The target of messages that name none.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DefaultTarget {
    /// Valid for every message.
    Fixed(Arc<str>),
    /// A NATS subject that is filled from the subject of each message: see [`subject`].
    Template(Arc<str>),
    /// Not usable: the messages are rejected.
    Invalid(Arc<str>, Rejection),
}

impl DefaultTarget {
    fn name(&self) -> &str {
        match self {
            Self::Fixed(name) | Self::Template(name) | Self::Invalid(name, _) => name,
        }
    }
}

/// How targets are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// A Kafka topic. In an allow-list `*` matches any characters.
    Topic,
    /// A NATS subject. In an allow-list `*` matches one token and `>` the rest.
    Subject,
}

impl Naming {
    fn is_valid(self, name: &str) -> bool {
        match self {
            Self::Topic => is_topic(name),
            Self::Subject => subject::is_subject(name),
        }
    }

    fn matches(self, pattern: &str, name: &str) -> bool {
        match self {
            Self::Topic => glob_matches(pattern, name),
            Self::Subject => subject::filter_matches(pattern, name),
        }
    }
}

/// The source topic and headers of a message, from which a template is filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TemplateInput<'a> {
    pub(crate) topic: &'a str,
    pub(crate) headers: Headers<'a>,
}

impl TemplateInput<'_> {
    /// `None` if the message has no source subject that the source's filter matches.
    fn fill(&self, template: &str) -> Option<String> {
        let (_, filter) = subject::split_source_topic(self.topic)?;
        let mut headers = self.headers.iter();
        let (_, subject) = headers.find(|(name, _)| *name == SUBJECT.as_bytes())?;
        subject::fill_template(template, filter, std::str::from_utf8(subject?).ok()?)
    }
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
            default: None,
            allowed: allowed.into_iter().map(Into::into).collect(),
            sources: sources.into_iter().map(Into::into).collect(),
        };
        rules.default = default.map(|name| {
            if naming == Naming::Subject && subject::is_template(name) {
                return DefaultTarget::Template(name.into());
            }
            match rules.check(name) {
                Ok(()) => DefaultTarget::Fixed(name.into()),
                Err(rejection) => DefaultTarget::Invalid(name.into(), rejection),
            }
        });
        rules
    }

    /// The default target as configured. It may be a template.
    pub(crate) fn default_name(&self) -> Option<&str> {
        self.default.as_ref().map(DefaultTarget::name)
    }

    /// The target of a message that names `named`. If several things are wrong, the first one in
    /// this order is the reason:
    ///
    /// 1. [`Reason::NoTarget`]: the message names no target, and the route has no default.
    /// 2. [`Reason::InvalidTarget`]: not a name that [`Naming`] takes, even if it is on the
    ///    allow-list.
    /// 3. [`Reason::TargetIsSource`]: a source of this deployment, even if it is the default.
    /// 4. [`Reason::TargetNotAllowed`]: not on the allow-list. The default is always allowed.
    pub(crate) fn resolve<'a>(
        &'a self,
        named: Option<&'a str>,
        input: TemplateInput<'_>,
    ) -> Result<Cow<'a, str>, Rejection> {
        let Some(target) = named else {
            return self.resolve_default(input);
        };
        self.check(target)?;
        if self.is_default(target, input) || self.is_allowed(target) {
            Ok(Cow::Borrowed(target))
        } else {
            let detail = self.not_allowed_detail(target);
            Err(Rejection::new(Reason::TargetNotAllowed, detail))
        }
    }

    fn resolve_default(&self, input: TemplateInput<'_>) -> Result<Cow<'_, str>, Rejection> {
        match &self.default {
            None => Err(Rejection::new(
                Reason::NoTarget,
                "the record names no target and the route has no default target",
            )),
            Some(DefaultTarget::Fixed(name)) => Ok(Cow::Borrowed(name)),
            Some(DefaultTarget::Invalid(_, rejection)) => Err(rejection.clone()),
            Some(DefaultTarget::Template(template)) => {
                let target = input.fill(template).ok_or_else(|| {
                    let detail = format!(
                        "the route's target {template} cannot be filled from the message's source subject"
                    );
                    Rejection::new(Reason::InvalidTarget, detail)
                })?;
                self.check(&target)?;
                Ok(Cow::Owned(target))
            }
        }
    }

    fn is_default(&self, target: &str, input: TemplateInput<'_>) -> bool {
        match &self.default {
            None => false,
            Some(DefaultTarget::Template(template)) => {
                input.fill(template).is_some_and(|filled| filled == target)
            }
            Some(default) => default.name() == target,
        }
    }

    fn is_allowed(&self, target: &str) -> bool {
        self.allowed
            .iter()
            .any(|pattern| self.naming.matches(pattern, target))
    }

    /// Rejects names that no allow-list can permit.
    fn check(&self, target: &str) -> Result<(), Rejection> {
        if !self.naming.is_valid(target) {
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

    fn is_source(&self, target: &str) -> bool {
        match self.naming {
            Naming::Topic => self.sources.contains(target),
            Naming::Subject => self
                .sources
                .iter()
                .any(|filter| subject::filter_matches(filter, target)),
        }
    }

    fn invalid_target(&self, target: &str) -> Rejection {
        let rule = match self.naming {
            Naming::Topic => {
                "is not a topic: 1-249 of A-Z a-z 0-9 . _ -, neither . nor .., and not reserved (__*)"
            }
            Naming::Subject => {
                "is not a subject to send to: 1-249 of printable ASCII, tokens with dots between them, \
                 no * or >, and not reserved ($*, _INBOX.*)"
            }
        };
        Rejection::new(
            Reason::InvalidTarget,
            format!("the target {} {rule}", Quoted(target.as_bytes())),
        )
    }

    fn not_allowed_detail(&self, target: &str) -> String {
        let default = self.default_name();
        let others = self
            .allowed
            .iter()
            .map(String::as_str)
            .filter(|pattern| Some(*pattern) != default);
        let allowed: Vec<&str> = default.into_iter().chain(others).collect();
        let shown = &allowed[..allowed.len().min(PATTERNS_SHOWN_MAX)];
        let list = if shown.is_empty() {
            "nothing".to_owned()
        } else {
            shown.join(", ")
        };
        let mut detail = format!(
            "the target {} is not allowed; allowed: {list}",
            Quoted(target.as_bytes())
        );
        let more = allowed.len() - shown.len();
        if more > 0 {
            write!(detail, " and {more} more").expect("writing into a String cannot fail");
        }
        detail
    }
}

/// Checks the name of a Kafka topic: 1-249 of `[a-zA-Z0-9._-]`, neither `.` nor `..`. Names that
/// start with `__` are reserved by Kafka and its tools.
fn is_topic(name: &str) -> bool {
    let is_valid_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=TOPIC_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_valid_byte)
        && name != "."
        && name != ".."
        && !name.starts_with("__")
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

    const INPUT: TemplateInput<'static> = TemplateInput {
        topic: "orders.delayed",
        headers: Headers::from_block(&[]),
    };

    fn rules(default: Option<&str>, allowed: &[&str]) -> TargetRules {
        TargetRules::new(
            Naming::Topic,
            default,
            allowed.iter().copied(),
            ["orders.delayed"],
        )
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
        let table: &[(&TargetRules, Option<&str>, Result<&str, Reason>)] = &[
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
                    .resolve(*named, INPUT)
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
        let input = TemplateInput {
            topic: "S:delayed.*",
            headers: Headers::from_block(&block),
        };
        let target = |named| {
            rules
                .resolve(named, input)
                .map(Cow::into_owned)
                .map_err(|rejection| rejection.reason)
        };
        assert_eq!(target(None), Ok("orders.eu".to_owned()));
        assert_eq!(
            rules.resolve(None, INPUT).unwrap_err().reason,
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
    fn a_rejection_names_the_target_and_the_allowed_ones() {
        let detail =
            |rules: &TargetRules, named| rules.resolve(Some(named), INPUT).unwrap_err().detail;
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
            if let Ok(target) = rules.resolve(named.as_deref(), INPUT) {
                prop_assert!(is_topic(&target) && !rules.sources.contains(&*target));
            }
        }
    }
}
