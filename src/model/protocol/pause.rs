//! The pause of a shard: whether its delivery is paused, by the last control record of its partition.

use crate::model::headers::control::Control;
use crate::model::shard::{Offset, Watermark};
use crate::model::time::Timestamp;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// The state after a control record. Cheap to clone. As text without spaces: 16 hex digits of `after`, `p` if the shard is
/// paused or else `r`, and `<since>:<at>:<note in base64>`. `lua/include/shard.lua` reads its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pause(Arc<PauseState>);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PauseState {
    /// The offset behind the control record. The state with the greatest one is the newest.
    pub(crate) after: Watermark,
    pub(crate) is_paused: bool,
    /// When the last pause was asked for.
    pub(crate) since: Timestamp,
    /// The time of the control record. The end of the last pause, if the shard is not paused.
    pub(crate) at: Timestamp,
    /// Who has asked for it, and why.
    pub(crate) note: Arc<str>,
}

impl From<PauseState> for Pause {
    fn from(state: PauseState) -> Self {
        Self(Arc::new(state))
    }
}

impl Deref for Pause {
    type Target = PauseState;

    fn deref(&self) -> &PauseState {
        &self.0
    }
}

impl Pause {
    /// The newest of two states. `None`: the shard was never paused.
    pub(crate) fn newest(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (&a, &b) {
            (Some(known), Some(other)) if known.after < other.after => b,
            (None, _) => b,
            _ => a,
        }
    }

    /// The state after the control record at this offset. `None`: the record changes nothing. It was
    /// applied before, or a later one was. Or it is a copy of an older record, which anybody who reads the
    /// partition can write.
    pub(crate) fn followed_by(
        before: Option<&Self>,
        offset: Offset,
        control: &Control<'_>,
    ) -> Option<Self> {
        let is_old = |it: &Self| it.after.covers(offset) || control.at <= it.at;
        if before.is_some_and(is_old) {
            return None;
        }
        let paused = before.filter(|it| it.is_paused);
        if !control.pauses && paused.is_none() {
            return None;
        }
        let state = PauseState {
            after: Watermark(offset.next().0),
            is_paused: control.pauses,
            since: paused.map_or(control.at, |it| it.since),
            at: control.at,
            note: control.note.clone(),
        };
        Some(state.into())
    }

    /// The part of the last pause between the two times. A paused shard is paused at all later times.
    pub(crate) fn within(&self, from: Timestamp, to: Timestamp) -> Duration {
        let end = if self.is_paused { to } else { self.at.min(to) };
        end.since(self.since.max(from))
    }

    /// `None`: no version wrote the text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (after, rest) = text.split_at_checked(16)?;
        let (letter, rest) = rest.split_at_checked(1)?;
        let mut parts = rest.split(':');
        let mut time = || parts.next()?.parse().ok().map(Timestamp::from_millis);
        let (since, at) = (time()?, time()?);
        let note = STANDARD_NO_PAD.decode(parts.next()?).ok()?;
        let state = PauseState {
            after: Watermark(u64::from_str_radix(after, 16).ok()?),
            is_paused: letter == "p",
            since,
            at,
            note: String::from_utf8(note).ok()?.into(),
        };
        let pause = Self::from(state);
        (pause.to_string() == text).then_some(pause)
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = if self.is_paused { 'p' } else { 'r' };
        let (since, at) = (self.since.as_millis(), self.at.as_millis());
        let note = STANDARD_NO_PAD.encode(&*self.note);
        write!(f, "{:016x}{letter}{since}:{at}:{note}", self.after.0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A state after the record at this offset.
    pub(crate) fn pause(offset: u64, is_paused: bool) -> Pause {
        let state = PauseState {
            after: Watermark(offset + 1),
            is_paused,
            since: Timestamp::from_millis(1_000),
            at: Timestamp::from_millis(if is_paused { 1_000 } else { 5_000 }),
            note: "incident 4711 (operator)".into(),
        };
        state.into()
    }

    fn control(pauses: bool, at: i64) -> Control<'static> {
        Control {
            pauses,
            origin: "d/r/in/0/0",
            at: Timestamp::from_millis(at),
            note: "n".into(),
        }
    }

    #[test]
    fn the_text_never_changes() {
        let text = "0000000000000012p1000:1000:aW5jaWRlbnQgNDcxMSAob3BlcmF0b3Ip";
        assert_eq!(pause(17, true).to_string(), text);
        assert_eq!(Pause::parse(text), Some(pause(17, true)));
        let resumed = pause(17, false).to_string();
        assert!(
            resumed.starts_with("0000000000000012r1000:5000:"),
            "{resumed}"
        );
        for other in [
            "",
            "-",
            "0000000000000012",
            "0000000000000012x1:1:",
            "12p1:1:",
        ] {
            assert_eq!(Pause::parse(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_text_reads_back_and_foreign_text_never_panics(after: u64, is_paused: bool, since: i64, at: i64, note: String, text: String) {
            let state = PauseState { after: Watermark(after), is_paused, since: Timestamp::from_millis(since), at: Timestamp::from_millis(at), note: note.into() };
            let pause = Pause::from(state);
            prop_assert_eq!(Pause::parse(&pause.to_string()), Some(pause));
            prop_assert!(Pause::parse(&text).is_none_or(|pause| pause.to_string() == text));
        }
    }

    #[test]
    fn records_change_the_state_once_and_in_their_order() {
        let next = |before: &Option<Pause>, offset, control: &Control<'_>| {
            Pause::followed_by(before.as_ref(), Offset(offset), control)
        };
        assert_eq!(
            next(&None, 1, &control(false, 5)),
            None,
            "nothing to resume"
        );
        let paused = next(&None, 3, &control(true, 1_000));
        let state = paused.as_ref().unwrap();
        assert!(state.is_paused && state.after == Watermark(4));
        assert_eq!(next(&paused, 3, &control(true, 1_001)), None, "read again");
        assert_eq!(next(&paused, 9, &control(true, 1_000)), None, "a copy");
        let again = next(&paused, 5, &control(true, 2_000)).unwrap();
        assert_eq!(again.since, Timestamp::from_millis(1_000), "one pause");
        let resumed = next(&paused, 5, &control(false, 4_000));
        let state = resumed.as_ref().unwrap();
        assert!(!state.is_paused);
        assert_eq!(next(&resumed, 7, &control(false, 5_000)), None, "a repeat");
        assert_eq!(next(&resumed, 8, &control(true, 1_000)), None, "a copy");
        assert_eq!(Pause::newest(paused.clone(), resumed.clone()), resumed);
        assert_eq!(Pause::newest(resumed.clone(), paused.clone()), resumed);
        assert_eq!(Pause::newest(None, paused.clone()), paused);
        assert_eq!(Pause::newest(paused.clone(), None), paused);
    }

    #[test]
    fn only_the_paused_part_of_a_wait_counts() {
        let within = |is_paused, from, to| {
            let span = pause(1, is_paused);
            let time = Timestamp::from_millis;
            span.within(time(from), time(to)).as_millis()
        };
        // From 1,000 to 5,000.
        for (from, to, expected) in [
            (0, 500, 0),
            (0, 3_000, 2_000),
            (2_000, 3_000, 1_000),
            (0, 9_000, 4_000),
            (4_000, 9_000, 1_000),
            (6_000, 9_000, 0),
        ] {
            assert_eq!(within(false, from, to), expected, "{from} to {to}");
        }
        assert_eq!(within(true, 6_000, 9_000), 3_000, "it is paused still");
    }
}
