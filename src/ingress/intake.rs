//! One gained partition: where its reading stands, the batch under way, and what is known of its shard. Decides, does no I/O.

use super::batch::Batch;
use crate::limit::{
    APPENDS_IN_FLIGHT_MAX, DUE_SOON, INTAKE_BYTES_MAX, LINGER_MAX, LINGER_MIN, LINGER_PART,
};
use crate::metric;
use crate::model::{
    Claim, Cursor, Identity, Offset, Origins, Partition, ShardId, Timestamp, Watermark,
};
use crate::mutant::{self, Mutant};
use crate::run::{Far, Sealer};
use crate::store::{Append, Appended, Balance, Reading, State};
use crate::trace::Links;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// See the module's page.
pub(crate) struct Intake {
    pub(crate) shard: ShardId,
    pub(crate) origins: Origins,
    waiting: metric::Waiting,
    pub(crate) phase: Phase,
    /// Numbers the current reading: what bears another was under way when it began anew.
    pub(crate) epoch: u64,
    pub(crate) batch: Batch,
    /// Where the next append begins: all before it was handed to the writer.
    pub(crate) from: Watermark,
    /// All before it was read, or cannot be.
    read_to: Watermark,
    in_flight: usize,
    /// How long the batch may wait for company.
    linger: Duration,
    /// When the first record of the batch came.
    since: Option<Instant>,
    /// What was delivered when the reading began: a rebuild leaves it out.
    pub(crate) delivered: Claim,
    pub(crate) rebuilt: Option<Rebuilt>,
    pub(crate) identity: Option<Identity>,
    /// The last look found nothing that was not known and committed before.
    pub(crate) quiet: Option<Quiet>,
    /// Of the batch under way.
    pub(crate) links: Links,
}

/// Where a shard stood that was quiet, and when all of its state was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quiet {
    pub(crate) watermark: Watermark,
    pub(crate) delivered: Claim,
    pub(crate) since: Instant,
}

/// Of a shard that is filled again from the log: which of its messages may have been delivered before the store was lost, though nothing
/// that is left tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rebuilt {
    /// The log's end, and the time, at the new birth.
    before: Offset,
    at: Timestamp,
}

impl Rebuilt {
    /// `None`: nothing of the shard was ever delivered, as far as the commits tell.
    pub(crate) fn new(born: &State, end: Offset, now: Timestamp) -> Option<Self> {
        (born.delivered != Claim::START).then_some(Self {
            before: end,
            at: now,
        })
    }

    pub(crate) fn covers(self, place: Cursor) -> bool {
        place.offset < self.before && place.due <= self.at
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its shard is to be opened, not before the instant.
    Opening {
        not_before: Instant,
    },
    Reading,
    /// A person must act; it is looked at again at the instant.
    Stopped {
        reason: String,
        again: Instant,
    },
}

/// What follows from an append's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    GoOn,
    /// The store's watermark is elsewhere: read on from there.
    Seek(Watermark),
    /// The store knows nothing of the shard.
    Reopen,
}

impl Intake {
    pub(crate) fn new(deployment: &str, shard: ShardId, now: Instant) -> Self {
        Self {
            origins: Origins::new(deployment, &shard),
            waiting: metric::Waiting::new(&shard),
            shard,
            phase: Phase::Opening { not_before: now },
            epoch: 0,
            batch: Batch::default(),
            from: Watermark(0),
            read_to: Watermark(0),
            in_flight: 0,
            since: None,
            linger: LINGER_MAX,
            delivered: Claim::START,
            rebuilt: None,
            identity: None,
            quiet: None,
            links: Links::default(),
        }
    }

    /// Reading begins (anew) at `from`; whatever was read and not stored is dropped, for it will be read again.
    pub(crate) fn begin(&mut self, from: Watermark, epoch: u64) {
        self.phase = Phase::Reading;
        self.epoch = epoch;
        self.rest(from);
    }

    pub(crate) fn pause(&mut self, phase: Phase) {
        self.phase = phase;
        self.rest(self.from);
    }

    fn rest(&mut self, from: Watermark) {
        self.batch.clear();
        self.links = Links::default();
        (
            self.from,
            self.read_to,
            self.in_flight,
            self.since,
            self.linger,
        ) = (from, from, 0, None, LINGER_MAX);
    }

    pub(crate) fn is_reading(&self, epoch: u64) -> bool {
        self.phase == Phase::Reading && self.epoch == epoch
    }

    /// The record at `offset` was read. `false`: it was read before, and is to be passed over.
    pub(crate) fn reads(&mut self, offset: Offset, now: Instant) -> bool {
        if self.read_to.covers(offset) && !mutant::active(Mutant::ReadsAgain) {
            return false;
        }
        self.read_to = self.read_to.max(Watermark(offset.next().0));
        self.since.get_or_insert(now);
        true
    }

    /// What was read last is to be stored well before `spare` is over.
    pub(crate) fn hasten(&mut self, spare: Duration) {
        self.linger = self.linger.min((spare / LINGER_PART).max(LINGER_MIN));
    }

    /// The reader stands at the end of the partition, or past a gap: there is nothing to come before `at`.
    pub(crate) fn reaches(&mut self, at: Offset, now: Instant) {
        if at.0 > self.read_to.0 {
            self.read_to = Watermark(at.0);
            self.since.get_or_insert(now);
        }
    }

    /// What the store knows of its shard is shown.
    pub(crate) fn knows(&self, state: &State, now: Timestamp) {
        let balance = Balance::of(state);
        let difference = (!balance.is_unsure).then_some(balance.difference);
        let due_soon = state.forecast.due_by(now.plus(DUE_SOON), now);
        self.waiting.set(
            [state.pending, due_soon, state.quarantined, state.bytes],
            balance.counts(),
            difference,
        );
    }

    /// How far the reading is behind the partition's end is shown, if that is known.
    pub(crate) fn ends(&self, end: Option<Offset>) {
        if let Some(end) = end.filter(|_| self.phase == Phase::Reading) {
            self.waiting.lags(end.0.saturating_sub(self.from.0));
        }
    }

    /// Whether all that was read has been stored.
    pub(crate) fn is_settled(&self) -> bool {
        self.in_flight == 0 && self.read_to == self.from
    }

    /// Whether something was read that no append covers yet.
    pub(crate) fn has_batch(&self) -> bool {
        self.since.is_some()
    }

    /// Whether the writer still owes an outcome.
    pub(crate) fn is_awaited(&self) -> bool {
        self.phase == Phase::Reading && self.in_flight > 0
    }

    /// When the batch under way is to be sealed; `None`: not before an append in flight is settled, or there is nothing to seal.
    ///
    /// A full batch goes at once, and several may be in flight. Else one append is in flight at a time and collects what comes meanwhile,
    /// so that batches grow with the load by themselves.
    pub(crate) fn seal_at(&self) -> Option<Instant> {
        let since = self.since?;
        if self.phase != Phase::Reading || self.in_flight >= APPENDS_IN_FLIGHT_MAX {
            return None;
        }
        if self.batch.is_full() {
            return Some(since);
        }
        (self.in_flight == 0).then_some(since + self.linger)
    }

    pub(crate) fn seal(&mut self, sealer: &mut Sealer, far: Far) -> Append {
        let (runs, changes) = self.batch.seal(sealer, far);
        let reading = Reading {
            writer: sealer.writer(),
            number: self.epoch,
        };
        let append = Append {
            shard: self.shard.clone(),
            reading,
            from: self.from,
            to: self.read_to,
            runs,
            changes,
        };
        self.from = self.read_to;
        (self.since, self.linger) = (None, LINGER_MAX);
        self.in_flight += 1;
        append
    }

    /// An append of this reading that ended at `to` was settled.
    pub(crate) fn settle(&mut self, to: Watermark, outcome: Appended) -> Next {
        self.in_flight = self.in_flight.saturating_sub(1);
        match outcome {
            Appended::Done { .. } => Next::GoOn,
            // It was stored before, by a call whose answer was lost or by another instance.
            Appended::Elsewhere(watermark) if watermark == to => Next::GoOn,
            Appended::Elsewhere(watermark) => Next::Seek(watermark),
            Appended::Unknown => Next::Reopen,
        }
    }
}

/// Whether more may be read. Before it is not, empty batches give up what they kept for the next ones; and if it is not all the same, those that
/// are not empty wait for no company any more.
pub(super) fn has_room(intakes: &mut BTreeMap<Partition, Intake>) -> bool {
    let has_room = |intakes: &BTreeMap<_, Intake>| {
        intakes
            .values()
            .map(|intake| intake.batch.bytes_held())
            .sum::<usize>()
            < INTAKE_BYTES_MAX
    };
    if has_room(intakes) {
        return true;
    }
    intakes.values_mut().for_each(|intake| intake.batch.rest());
    let has_room = has_room(intakes);
    if !has_room {
        intakes
            .values_mut()
            .filter(|intake| intake.has_batch())
            .for_each(|intake| intake.hasten(Duration::ZERO));
    }
    has_room
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::BATCH_BYTES_MAX;
    use crate::model::{Body, Disposition, Headers, Slice};
    use crate::run::Thin;

    fn reading(from: u64) -> Intake {
        let mut intake = Intake::new(
            "prod",
            ShardId::new("r", Partition::new("t", 0)),
            Instant::now(),
        );
        intake.begin(Watermark(from), 1);
        intake
    }

    fn far() -> Far {
        Far::at(Timestamp::from_millis(0), Thin::DEFAULT)
    }

    #[tokio::test(start_paused = true)]
    async fn an_append_covers_from_the_position_asked_for_to_the_last_record() {
        let mut sealer = Sealer::new(1);
        let mut intake = reading(10);
        let now = Instant::now();
        assert_eq!(intake.seal_at(), None);
        assert!(
            intake.reads(Offset(12), now)
                && !intake.reads(Offset(11), now)
                && intake.reads(Offset(15), now)
        );
        assert_eq!(
            intake.seal_at(),
            Some(now + LINGER_MAX),
            "nothing of it is urgent"
        );
        let append = intake.seal(&mut sealer, far());
        assert_eq!((append.from, append.to), (Watermark(10), Watermark(16)));
        intake.reaches(Offset(16), now);
        assert_eq!(
            intake.seal_at(),
            None,
            "nothing lies between the last record and the end"
        );
        intake.reaches(Offset(18), now);
        assert_eq!(intake.seal_at(), None, "one append is in flight");
        assert_eq!(
            intake.settle(
                Watermark(16),
                Appended::Done {
                    cancelled: 0,
                    missed: 0
                }
            ),
            Next::GoOn
        );
        assert!(intake.seal_at().is_some() && !intake.is_settled());
        let append = intake.seal(&mut sealer, far());
        assert_eq!(
            (append.from, append.to, append.runs.len()),
            (Watermark(16), Watermark(18), 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_for_company_as_long_as_its_most_urgent_message_allows() {
        let mut intake = reading(10);
        let now = Instant::now();
        intake.reads(Offset(10), now);
        for (spare, linger) in [
            (3_600_000, LINGER_MAX),
            (400, Duration::from_millis(50)),
            (60_000, Duration::from_millis(50)),
            (0, LINGER_MIN),
        ] {
            intake.hasten(Duration::from_millis(spare));
            assert_eq!(intake.seal_at(), Some(now + linger), "{spare}");
        }
        intake.seal(&mut Sealer::new(1), far());
        intake.settle(
            Watermark(11),
            Appended::Done {
                cancelled: 0,
                missed: 0,
            },
        );
        intake.reads(Offset(11), now);
        assert_eq!(
            intake.seal_at(),
            Some(now + LINGER_MAX),
            "the next batch begins anew"
        );
    }

    #[test]
    fn after_a_rebuild_what_was_due_by_then_and_may_have_been_delivered_is_a_possible_duplicate() {
        let place = |due, offset| Cursor::new(Timestamp::from_millis(due), Offset(offset));
        let born = |delivered| State {
            identity: Identity("id".into()),
            watermark: Watermark(3),
            claimed: delivered,
            delivered,
            lowest_pending: Offset(3),
            pending: 0,
            bytes: 0,
            quarantined: 0,
            forecast: crate::store::Forecast::default(),
            ledger: crate::store::Ledger::default(),
        };
        let rebuilt = Rebuilt::new(
            &born(Claim::new(place(5, 2), Watermark(4))),
            Offset(9),
            Timestamp::from_millis(1_000),
        );
        let covers =
            |due, offset| rebuilt.is_some_and(|rebuilt| rebuilt.covers(place(due, offset)));
        assert_eq!(
            (covers(1_000, 8), covers(1_001, 8), covers(1_000, 9)),
            (true, false, false)
        );
        assert_eq!(
            Rebuilt::new(
                &born(Claim::START),
                Offset(9),
                Timestamp::from_millis(1_000)
            ),
            None,
            "nothing was ever delivered"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_watermark_elsewhere_makes_it_seek_unless_the_append_is_what_moved_it() {
        let mut intake = reading(10);
        assert_eq!(
            intake.settle(Watermark(20), Appended::Elsewhere(Watermark(20))),
            Next::GoOn
        );
        assert_eq!(
            intake.settle(Watermark(20), Appended::Elsewhere(Watermark(4))),
            Next::Seek(Watermark(4))
        );
        assert_eq!(
            intake.settle(Watermark(20), Appended::Elsewhere(Watermark(40))),
            Next::Seek(Watermark(40))
        );
        assert_eq!(
            intake.settle(Watermark(20), Appended::Unknown),
            Next::Reopen
        );
    }

    /// So many partitions, of each of which a batch of so many bytes was read.
    fn read(partitions: i32, bytes: usize, now: Instant) -> BTreeMap<Partition, Intake> {
        let (payload, due) = (vec![0; bytes], Timestamp::MAX);
        let read = |index| {
            let partition = Partition::new("t", index);
            let mut intake = Intake::new("prod", ShardId::new("r", partition.clone()), now);
            intake.begin(Watermark(0), 1);
            intake.reads(Offset(0), now);
            let (id, target, dialect, disposition) = (None, None, None, Disposition::Deliver);
            let body = Body {
                key: None,
                payload: Some(&payload),
                headers: Headers::from_block(&[]),
                id,
                target,
                dialect,
                disposition,
            };
            intake
                .batch
                .add(Slice::of(due, due), Cursor::new(due, Offset(0)), &body);
            (partition, intake)
        };
        (0..partitions).map(read).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_empty_batches_keep_does_not_end_the_reading_and_is_bounded() {
        let now = Instant::now();
        let mut intakes = read(40, BATCH_BYTES_MAX / 2, now);
        assert!(!has_room(&mut intakes), "all of it is to be stored");
        assert!(
            intakes
                .values()
                .all(|intake| intake.seal_at() == Some(now + LINGER_MIN)),
            "soon"
        );
        let far = Far::at(Timestamp::from_millis(0), Thin::DEFAULT);
        intakes
            .values_mut()
            .for_each(|intake| drop(intake.seal(&mut Sealer::new(1), far)));
        let held = |intakes: &BTreeMap<_, Intake>| {
            intakes
                .values()
                .map(|intake| intake.batch.bytes_held())
                .sum::<usize>()
        };
        assert!(held(&intakes) > INTAKE_BYTES_MAX);
        assert!(has_room(&mut intakes) && held(&intakes) < INTAKE_BYTES_MAX);
    }
}
