//! Parses where the answer to a request goes: the headers `postdate-reply-to` and
//! `postdate-request-id`.
//!
//! An unusable reply target never changes the meaning of a record: it is processed, and gets no
//! answer. So neither the position of a record nor a cancel depends on it.

use super::dead_letter_reason::DeadLetterReason;
use super::rejection::{Quoted, Rejection};
use crate::model::headers::header_lookup::HeaderLookup;
use crate::model::headers::header_name::ControlHeader;
use crate::model::{Headers, RoutingRules};

const REQUEST_ID_BYTES_MAX: usize = 256;

/// Where the answer goes, and the requester's name for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply<'a> {
    pub(crate) target: &'a str,
    pub(crate) request_id: Option<&'a str>,
}

/// `None`: the record asks for no answer, or is a retry, whose record was answered before. An error
/// tells why it gets none.
pub(crate) fn parse_reply<'a>(
    headers: Headers<'a>,
    rules: &RoutingRules,
) -> Result<Option<Reply<'a>>, Rejection> {
    let mut found = HeaderLookup::default();
    for (name, value) in headers.iter() {
        if let Some(control) = ControlHeader::from_name(name) {
            found.record(control as usize, value);
        }
    }
    let text = |control: ControlHeader| found.text(control as usize, control.name());
    let retry = ControlHeader::Retry;
    let is_retry = !matches!(found.bytes(retry as usize, retry.name()), Ok(None));
    let Some(target) = text(ControlHeader::ReplyTo)?.filter(|_| !is_retry) else {
        return Ok(None);
    };
    let Some(replies) = &rules.replies else {
        let detail = "the route has no allow_replies";
        return Err(Rejection::new(DeadLetterReason::TargetNotAllowed, detail));
    };
    replies.targets.resolve(Some(target), "", headers)?;
    let request_id = text(ControlHeader::RequestId)?;
    if let Some(id) = request_id.filter(|id| id.len() > REQUEST_ID_BYTES_MAX) {
        let (reason, header) = (DeadLetterReason::InvalidId, ControlHeader::RequestId.name());
        let quoted = Quoted(id.as_bytes());
        let detail = format!("{header} is {quoted}; expected at most {REQUEST_ID_BYTES_MAX} bytes");
        return Err(Rejection::new(reason, detail));
    }
    Ok(Some(Reply { target, request_id }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::header::push_header;
    use crate::model::{Dialects, Naming, ReplyRules, RetryKeys, TargetRules, WithoutDelay};
    use std::time::Duration;

    fn parsed(
        naming: Naming,
        headers: &[(&str, &str)],
    ) -> Result<Option<(String, Option<String>)>, DeadLetterReason> {
        let mut block = Vec::new();
        for (name, value) in headers {
            push_header(&mut block, name.as_bytes(), Some(value.as_bytes()));
        }
        let (allowed, sources) = match naming {
            Naming::Topic => ("replies.*", "replies.source"),
            Naming::Subject => ("_INBOX.>", "source.>"),
        };
        let rules = RoutingRules {
            targets: TargetRules::new(naming, Some("orders"), [""; 0], [sources]),
            replies: Some(ReplyRules {
                targets: TargetRules::replies(naming, [allowed], [sources]),
                outcomes: None,
                is_exactly_once: false,
            }),
            max_delay: Duration::from_secs(1),
            max_retry_wait: Duration::from_secs(1),
            without_delay: WithoutDelay::Relay,
            on_duplicate: crate::model::OnDuplicate::Replace,
            change_by_origin: false,
            dialects: Dialects::default(),
            is_recurring: false,
            retry_keys: RetryKeys::default(),
        };
        let reply = parse_reply(Headers::from_block(&block), &rules);
        reply
            .map(|reply| reply.map(|it| (it.target.to_owned(), it.request_id.map(str::to_owned))))
            .map_err(|rejection| rejection.reason)
    }

    #[test]
    fn a_reply_target_is_checked_like_a_target() {
        let topic = |headers: &[(&str, &str)]| parsed(Naming::Topic, headers);
        let to = |target| ("postdate-reply-to", target);
        assert_eq!(topic(&[("postdate-request-id", "7")]), Ok(None));
        assert_eq!(
            topic(&[to("replies.a"), ("postdate-request-id", "7")]),
            Ok(Some(("replies.a".into(), Some("7".into()))))
        );
        for (target, reason) in [
            ("orders", DeadLetterReason::TargetNotAllowed),
            ("replies.source", DeadLetterReason::TargetIsSource),
            ("__consumer_offsets", DeadLetterReason::InvalidTarget),
            ("", DeadLetterReason::EmptyValue),
        ] {
            assert_eq!(topic(&[to(target)]), Err(reason), "{target}");
        }
        let twice = [to("replies.a"), to("replies.a")];
        assert_eq!(topic(&twice), Err(DeadLetterReason::DuplicateHeader));
        let long = "x".repeat(257);
        let long = [to("replies.a"), ("postdate-request-id", long.as_str())];
        assert_eq!(topic(&long), Err(DeadLetterReason::InvalidId));
    }

    #[test]
    fn the_retry_of_a_record_is_not_answered_again() {
        let headers = [("postdate-reply-to", "replies.a"), ("postdate-retry", "v2")];
        assert_eq!(parsed(Naming::Topic, &headers), Ok(None));
    }

    #[test]
    fn an_inbox_is_a_reply_target_and_never_a_target() {
        let headers = [("postdate-reply-to", "_INBOX.abc.1")];
        let reply = Some(("_INBOX.abc.1".to_owned(), None));
        assert_eq!(parsed(Naming::Subject, &headers), Ok(reply));
        let targets = TargetRules::new(Naming::Subject, None, ["_INBOX.>"], [""; 0]);
        assert!(
            targets
                .resolve(Some("_INBOX.abc.1"), "", Headers::from_block(&[]))
                .is_err()
        );
    }
}
