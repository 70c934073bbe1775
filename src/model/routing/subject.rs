//! NATS subjects, filters of subjects, and templates that are filled from a source subject.
//!
//! A subject is a list of tokens, separated by dots. In a filter `*` matches one token, and `>` at
//! the end one or more.

/// Stricter than the bounds of NATS, because subjects are part of Redis keys and metrics.
const SUBJECT_BYTES_MAX: usize = 249;

/// First token of the subjects at which requesters wait for replies.
const INBOX: &str = "_INBOX";

/// Separates stream and filter in the topic of a partition. Neither can contain it.
const BETWEEN: char = ':';

/// The topic of a stream and a filter subject: each such pair is a partition.
pub(crate) fn source_topic(stream: &str, filter: &str) -> String {
    format!("{stream}{BETWEEN}{filter}")
}

/// Stream and filter subject of a partition's topic. `None` if the topic is not of NATS.
pub(crate) fn split_source_topic(topic: &str) -> Option<(&str, &str)> {
    topic
        .split_once(BETWEEN)
        .filter(|(stream, filter)| !stream.is_empty() && is_filter(filter))
}

/// Checks a subject to send to: 1-249 bytes of printable ASCII, no wildcards, no empty token, and
/// not reserved by the server (`$`) or the clients (`_INBOX`).
pub(crate) fn is_subject(subject: &str) -> bool {
    is_plain_subject(subject) && subject.split('.').next() != Some(INBOX)
}

/// Checks the inbox of a requester.
pub(crate) fn is_inbox(subject: &str) -> bool {
    is_plain_subject(subject) && subject.split('.').next() == Some(INBOX)
}

fn is_plain_subject(subject: &str) -> bool {
    (1..=SUBJECT_BYTES_MAX).contains(&subject.len())
        && subject
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'*' | b'>'))
        && subject.split('.').all(|token| !token.is_empty())
        && !subject.starts_with('$')
}

/// Checks a filter of a source or an allow-list: tokens of `A-Z a-z 0-9 - _`, `*`, and `>` at the
/// end.
pub(crate) fn is_filter(filter: &str) -> bool {
    let count = filter.split('.').count();
    let is_token = |token: &str| {
        !token.is_empty()
            && token
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let fits = |(place, token): (usize, &str)| {
        is_token(token) || token == "*" || (token == ">" && place + 1 == count)
    };
    filter.len() <= SUBJECT_BYTES_MAX && filter.split('.').enumerate().all(fits)
}

/// Returns `true` if the filter matches all subjects of `other`, which may be a single subject.
pub(crate) fn filter_covers(filter: &str, other: &str) -> bool {
    let (mut filter, mut other) = (filter.split('.'), other.split('.'));
    loop {
        match (filter.next(), other.next()) {
            (None, None) | (Some(">"), Some(_)) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

/// Returns `true` if some subject matches both filters.
pub(crate) fn filters_overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

/// A subject that the filter matches, for a record that Postdate itself sends.
pub(crate) fn subject_within(filter: &str) -> String {
    filter.replace(['*', '>'], "postdate")
}

/// The parts of a subject that the wildcards of a filter match, in their order. `None` if the
/// filter does not match.
fn wildcard_values<'s>(filter: &str, subject: &'s str) -> Option<Vec<&'s str>> {
    if !filter_covers(filter, subject) {
        return None;
    }
    // The last part is the rest of the subject, as `>` matches it.
    let parts = subject.splitn(filter.split('.').count(), '.');
    let tokens = filter.split('.').zip(parts);
    let wild = tokens.filter(|(token, _)| is_wildcard(token));
    Some(wild.map(|(_, part)| part).collect())
}

fn is_wildcard(token: &str) -> bool {
    matches!(token, "*" | ">")
}

/// Why the template cannot be filled from subjects that the filter matches.
pub(crate) fn template_error(template: &str, filter: &str) -> Option<String> {
    let count = filter.split('.').filter(|token| is_wildcard(token)).count();
    let mut places = template
        .split('.')
        .filter_map(|token| token.strip_prefix('$'));
    places.find_map(|place| match place.parse::<usize>() {
        Ok(place) if (1..=count).contains(&place) => None,
        Ok(_) => Some(format!(
            "${place} is no wildcard of {filter}, which has {count}"
        )),
        Err(_) => Some(format!(
            "${place} is not the number of a wildcard, as in orders.$1"
        )),
    })
}

pub(crate) fn is_template(target: &str) -> bool {
    target.split('.').any(|token| token.starts_with('$'))
}

/// The filter that covers every subject that a target template can expand to.
pub(crate) fn covering_filter(target: &str) -> String {
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

/// Replaces each `$n` of a template by the part of the subject that the n-th wildcard of the filter
/// matches. `None` if the filter does not match the subject.
pub(super) fn fill_template(template: &str, filter: &str, subject: &str) -> Option<String> {
    let found = wildcard_values(filter, subject)?;
    let tokens = template
        .split('.')
        .map(|token| match token.strip_prefix('$') {
            None => Some(token),
            Some(number) => {
                let index = number.parse::<usize>().ok()?.checked_sub(1)?;
                found.get(index).copied()
            }
        });
    Some(tokens.collect::<Option<Vec<_>>>()?.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_to_send_to_has_no_wildcard_space_or_reserved_start() {
        for subject in [
            "orders",
            "a.b.c",
            "A-z_0/9",
            "a$b",
            "x.$1",
            &"x".repeat(249),
        ] {
            assert!(is_subject(subject), "{subject}");
        }
        for subject in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a.*",
            "a.>",
            "a b",
            "a\0",
            "a\n",
            "ü",
            "$JS.API.x",
            "$SYS.x",
            "_INBOX.x",
            &"x".repeat(250),
        ] {
            assert!(!is_subject(subject), "{subject:?}");
        }
    }

    #[test]
    fn a_filter_matches_as_nats_documents() {
        for (filter, subject, lets) in [
            ("a.b", "a.b", true),
            ("a.b", "a.c", false),
            ("a.b", "a", false),
            ("a", "a.b", false),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("a.*", "a", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
            ("*.b.*", "x.b.y", true),
        ] {
            assert_eq!(filter_covers(filter, subject), lets, "{filter} {subject}");
        }
        for filter in ["a.b", "a.*.c", "a.>", ">", "*"] {
            assert!(is_filter(filter), "{filter}");
        }
        for filter in ["", "a.", "a.>.b", "a b", "a*", "a/b", "a:b", "ü"] {
            assert!(!is_filter(filter), "{filter}");
        }
        assert_eq!(
            split_source_topic(&source_topic("S", "a.>")),
            Some(("S", "a.>"))
        );
        assert_eq!(
            (
                split_source_topic("orders.delayed"),
                split_source_topic("S:a b")
            ),
            (None, None)
        );
    }

    #[test]
    fn a_filter_covers_another_if_it_matches_all_of_its_subjects() {
        for (filter, other, is) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a.*", true),
            ("a.b", "a.*", false),
            ("a.*", "a.>", false),
            ("a.>", "a.>", true),
            ("a.>", "a.*.c", true),
            (">", "a", true),
            ("a.>", "a", false),
            ("a", "a.b", false),
            ("*", ">", false),
        ] {
            assert_eq!(filter_covers(filter, other), is, "{filter} {other}");
        }
    }

    #[test]
    fn filters_overlap_if_one_subject_matches_both() {
        for (one, other, is) in [
            ("a.b", "a.b", true),
            ("a.*", "*.b", true),
            ("a.>", "a.b.c", true),
            ("a.*", "a.b.c", false),
            ("a", "b", false),
            ("a.>", "a", false),
        ] {
            assert_eq!(
                (filters_overlap(one, other), filters_overlap(other, one)),
                (is, is),
                "{one} {other}"
            );
        }
    }

    #[test]
    fn a_template_is_filled_from_the_wildcards() {
        assert_eq!(
            fill_template("orders.$1", "delayed.orders.*", "delayed.orders.eu").as_deref(),
            Some("orders.eu")
        );
        assert_eq!(
            fill_template("$2.x.$1", "*.d.>", "a.d.b.c").as_deref(),
            Some("b.c.x.a")
        );
        assert_eq!(fill_template("orders.$1", "delayed.*", "other.eu"), None);
        assert_eq!(template_error("orders.$1", "delayed.*"), None);
        assert!(template_error("orders.$2", "delayed.*").is_some());
        assert!(template_error("orders.$x", "delayed.*").is_some());
        assert!(is_template("a.$1") && !is_template("a.b$1"));
    }

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
