//! The pause of a shard: its state after the last control record of its partition.

use crate::model::headers::control::Control;
use crate::model::shard::{Offset, Watermark};
use crate::model::time::Timestamp;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// The state after a control record: paused, or resumed. Cheap to clone. As text without spaces: 16 hex digits of `after`,
/// `p` if the shard is paused or else `r`, and `<since>:<until>:<earlier>:<at>:<note in base64>`, with times and
/// `earlier` in milliseconds. `lua/include/shard.lua` reads its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pause(Arc<PauseState>);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PauseState {
    /// The offset behind the control record. The state with the greatest one is the newest.
    pub(crate) after: Watermark,
    pub(crate) is_paused: bool,
    /// When the last pause began. The time of the first record, if that resumes the shard.
    pub(crate) since: Timestamp,
    /// When the last pause ended, if the shard is not paused.
    pub(crate) until: Timestamp,
    /// Length of the pauses before the last one.
    pub(crate) earlier: Duration,
    /// The time of the control record.
    pub(crate) at: Timestamp,
    /// The sender of the record, and the reason.
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
    /// The newest of two states. `None`: there was no control record.
    pub(crate) fn newest(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (&a, &b) {
            (Some(known), Some(other)) if known.after < other.after => b,
            (None, _) => b,
            _ => a,
        }
    }

    /// The state after the control record at this offset. `None`: the record changes nothing, because it was
    /// applied before, or is not later than the last one. Anybody who reads the partition can write such a
    /// copy.
    pub(crate) fn followed_by(
        before: Option<&Self>,
        offset: Offset,
        control: &Control<'_>,
    ) -> Option<Self> {
        let is_applied = |it: &Self| it.after.covers(offset) || control.at <= it.at;
        if before.is_some_and(is_applied) {
            return None;
        }
        let at = control.at;
        let (since, until, earlier) = match before {
            None => (at, at, Duration::ZERO),
            Some(it) if it.is_paused == control.pauses => (it.since, it.until, it.earlier),
            Some(it) if it.is_paused => (it.since, at, it.earlier),
            Some(it) => (at, at, it.earlier.saturating_add(it.until.since(it.since))),
        };
        let state = PauseState {
            after: Watermark(offset.next().0),
            is_paused: control.pauses,
            since,
            until,
            earlier,
            at,
            note: control.note.clone(),
        };
        Some(state.into())
    }

    /// The time that the shard was paused between the two times. A paused shard is paused at all later times. The
    /// times of earlier pauses are not known, so a wait from before the last pause may count too much of them.
    pub(crate) fn within(&self, from: Timestamp, to: Timestamp) -> Duration {
        let end = if self.is_paused {
            to
        } else {
            self.until.min(to)
        };
        let last = end.since(self.since.max(from));
        let before = self.since.min(to).since(from);
        last + self.earlier.min(before)
    }

    /// `None`: no version wrote the text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (after, rest) = text.split_at_checked(16)?;
        let (letter, rest) = rest.split_at_checked(1)?;
        let mut parts = rest.split(':');
        let mut time = || parts.next()?.parse().ok().map(Timestamp::from_millis);
        let (since, until) = (time()?, time()?);
        let earlier = Duration::from_millis(parts.next()?.parse().ok()?);
        let at = Timestamp::from_millis(parts.next()?.parse().ok()?);
        let note = STANDARD_NO_PAD.decode(parts.next()?).ok()?;
        let state = PauseState {
            after: Watermark(u64::from_str_radix(after, 16).ok()?),
            is_paused: letter == "p",
            since,
            until,
            earlier,
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
        let (since, until) = (self.since.as_millis(), self.until.as_millis());
        let (earlier, at) = (self.earlier.as_millis(), self.at.as_millis());
        let note = STANDARD_NO_PAD.encode(&*self.note);
        write!(
            f,
            "{:016x}{letter}{since}:{until}:{earlier}:{at}:{note}",
            self.after.0
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A state after the record at this offset.
    pub(crate) fn pause(offset: u64, is_paused: bool) -> Pause {
        let end = Timestamp::from_millis(if is_paused { 1_000 } else { 5_000 });
        let state = PauseState {
            after: Watermark(offset + 1),
            is_paused,
            since: Timestamp::from_millis(1_000),
            until: end,
            earlier: Duration::from_millis(50),
            at: end,
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
        let text = "0000000000000012p1000:1000:50:1000:aW5jaWRlbnQgNDcxMSAob3BlcmF0b3Ip";
        assert_eq!(pause(17, true).to_string(), text);
        assert_eq!(Pause::parse(text), Some(pause(17, true)));
        let resumed = pause(17, false).to_string();
        assert!(
            resumed.starts_with("0000000000000012r1000:5000:50:5000:"),
            "{resumed}"
        );
        for other in [
            "",
            "-",
            "0000000000000012",
            "0000000000000012p1:1:",
            "0000000000000012x1:1:1:1:",
            "0000000000000012p1:1:-1:1:",
            "0000000000000012p1:1:1:1::",
            "12p1:1:1:1:",
        ] {
            assert_eq!(Pause::parse(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_text_reads_back_and_foreign_text_never_panics(after: u64, is_paused: bool, times: [i64; 3], earlier: u64, note: String, text: String) {
            let [since, until, at] = times.map(Timestamp::from_millis);
            let state = PauseState { after: Watermark(after), is_paused, since, until, earlier: Duration::from_millis(earlier), at, note: note.into() };
            let pause = Pause::from(state);
            prop_assert_eq!(Pause::parse(&pause.to_string()), Some(pause));
            prop_assert!(Pause::parse(&text).is_none_or(|pause| pause.to_string() == text));
        }
    }

    fn next(before: Option<&Pause>, offset: u64, control: &Control<'_>) -> Option<Pause> {
        Pause::followed_by(before, Offset(offset), control)
    }

    #[test]
    fn records_change_the_state_once_and_in_their_order() {
        let paused = next(None, 3, &control(true, 1_000));
        let state = paused.as_ref().unwrap();
        assert!(state.is_paused && state.after == Watermark(4));
        let before = paused.as_ref();
        assert_eq!(next(before, 3, &control(true, 1_001)), None, "read again");
        assert_eq!(next(before, 9, &control(true, 1_000)), None, "a copy");
        let again = next(before, 5, &control(true, 2_000)).unwrap();
        assert_eq!(again.since, Timestamp::from_millis(1_000), "one pause");
        let resumed = next(before, 5, &control(false, 4_000));
        assert!(!resumed.as_ref().unwrap().is_paused);
        let before = resumed.as_ref();
        assert_eq!(next(before, 8, &control(true, 1_000)), None, "a copy");
        assert_eq!(Pause::newest(paused.clone(), resumed.clone()), resumed);
        assert_eq!(Pause::newest(resumed.clone(), paused.clone()), resumed);
        assert_eq!(Pause::newest(None, paused.clone()), paused);
        assert_eq!(Pause::newest(paused.clone(), None), paused);
    }

    #[test]
    fn each_later_record_is_remembered_so_that_its_copies_change_nothing() {
        let first = next(None, 1, &control(false, 5_000)).unwrap();
        assert!(!first.is_paused && first.at == Timestamp::from_millis(5_000));
        let paused = next(Some(&first), 2, &control(true, 6_000)).unwrap();
        let resumed = next(Some(&paused), 3, &control(false, 7_000)).unwrap();
        let again = next(Some(&resumed), 4, &control(false, 9_000)).unwrap();
        assert_eq!((again.since, again.until), (resumed.since, resumed.until));
        assert_eq!(next(Some(&again), 5, &control(false, 9_000)), None);
    }

    #[test]
    fn only_the_paused_part_of_a_wait_counts() {
        let within = |is_paused, from, to| {
            let state = PauseState {
                earlier: Duration::ZERO,
                note: "".into(),
                ..*pause(1, is_paused).0
            };
            let time = Timestamp::from_millis;
            Pause::from(state).within(time(from), time(to)).as_millis()
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

    #[test]
    fn a_message_that_waits_in_two_pauses_is_late_by_neither() {
        let mut state = None;
        for (offset, pauses, at) in [(1, true, 1_000), (2, false, 4_000), (3, true, 4_500)] {
            state = next(state.as_ref(), offset, &control(pauses, at));
        }
        let state = next(state.as_ref(), 4, &control(false, 5_000)).unwrap();
        assert_eq!(state.earlier, Duration::from_secs(3));
        let paused = |due| {
            let (due, now) = (Timestamp::from_millis(due), Timestamp::from_millis(6_000));
            state.within(due, now).as_millis()
        };
        assert_eq!(paused(1_000), 3_500);
        assert_eq!(paused(4_400), 600, "at most the time before the last pause");
        assert_eq!(paused(4_600), 400, "due in the last pause");
        assert_eq!(paused(5_500), 0);
    }
}
