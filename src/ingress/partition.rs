//! One gained partition: where its reading stands, the batch under way, and what is known of its shard. Decides, does no I/O.

use super::batch::AppendBatch;
use crate::limit::{
    APPEND_LINGER_DIVISOR, APPEND_LINGER_MAX, APPEND_LINGER_MIN, DUE_SOON_WITHIN,
    INGRESS_BUFFER_BYTES_MAX, SHARD_APPENDS_IN_FLIGHT_MAX,
};
use crate::metric;
use crate::model::{
    Cursor, Offset, OriginFormat, Partition, Progress, ShardId, SourceIdentity, Timestamp,
    Watermark,
};
use crate::run::{FarTarget, RunBuilder};
use crate::store::{Append, AppendEpoch, Appended, Balance, StoredShard};
use crate::trace::BatchLinks;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// See the module's page.
pub(crate) struct AssignedPartition {
    pub(crate) shard: ShardId,
    pub(crate) origin_format: OriginFormat,
    shard_metrics: metric::ShardGauges,
    pub(crate) phase: Phase,
    /// Numbers the current reading: what bears another was under way when it began anew.
    pub(crate) epoch: u64,
    pub(crate) batch: AppendBatch,
    /// Where the next append begins: all before it was handed to the writer.
    pub(crate) append_from: Watermark,
    /// All before it was read, or cannot be.
    read_to: Watermark,
    appends_in_flight: usize,
    /// How long the batch may wait for company.
    linger: Duration,
    /// When the first record of the batch came.
    batch_started_at: Option<Instant>,
    /// What was delivered when the reading began: a rebuild leaves it out.
    pub(crate) delivered: Progress,
    pub(crate) rebuild: Option<Rebuild>,
    pub(crate) identity: Option<SourceIdentity>,
    /// The last look found nothing that was not known and committed before.
    pub(crate) idle_at: Option<IdlePosition>,
    /// Of the batch under way.
    pub(crate) trace_links: BatchLinks,
}

/// Where a shard stood that was quiet, and when all of its state was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdlePosition {
    pub(crate) watermark: Watermark,
    pub(crate) delivered: Progress,
    pub(crate) since: Instant,
}

/// Of a shard that is filled again from the log: which of its messages may have been delivered before the store was lost, though nothing
/// that is left tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rebuild {
    /// The log's end, and the time, at the new birth.
    log_end: Offset,
    rebuilt_at: Timestamp,
}

impl Rebuild {
    /// `None`: nothing of the shard was ever delivered, as far as the commits tell.
    pub(crate) fn new(born: &StoredShard, end: Offset, now: Timestamp) -> Option<Self> {
        (born.delivered != Progress::START).then_some(Self {
            log_end: end,
            rebuilt_at: now,
        })
    }

    pub(crate) fn may_be_duplicate(self, place: Cursor) -> bool {
        place.offset < self.log_end && place.due <= self.rebuilt_at
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
pub(crate) enum AfterAppend {
    Continue,
    /// The store's watermark is elsewhere: read on from there.
    Seek(Watermark),
    /// The store knows nothing of the shard.
    Reopen,
}

impl AssignedPartition {
    pub(crate) fn new(deployment: &str, shard: ShardId, now: Instant) -> Self {
        Self {
            origin_format: OriginFormat::new(deployment, &shard),
            shard_metrics: metric::ShardGauges::new(&shard),
            shard,
            phase: Phase::Opening { not_before: now },
            epoch: 0,
            batch: AppendBatch::default(),
            append_from: Watermark(0),
            read_to: Watermark(0),
            appends_in_flight: 0,
            batch_started_at: None,
            linger: APPEND_LINGER_MAX,
            delivered: Progress::START,
            rebuild: None,
            identity: None,
            idle_at: None,
            trace_links: BatchLinks::default(),
        }
    }

    /// Reading begins (anew) at `from`; whatever was read and not stored is dropped, for it will be read again.
    pub(crate) fn start_reading(&mut self, from: Watermark, epoch: u64) {
        self.phase = Phase::Reading;
        self.epoch = epoch;
        self.reset(from);
    }

    pub(crate) fn stop_reading(&mut self, phase: Phase) {
        self.phase = phase;
        self.reset(self.append_from);
    }

    fn reset(&mut self, from: Watermark) {
        self.batch.clear();
        self.trace_links = BatchLinks::default();
        (
            self.append_from,
            self.read_to,
            self.appends_in_flight,
            self.batch_started_at,
            self.linger,
        ) = (from, from, 0, None, APPEND_LINGER_MAX);
    }

    pub(crate) fn is_reading(&self, epoch: u64) -> bool {
        self.phase == Phase::Reading && self.epoch == epoch
    }

    /// The record at `offset` was read. `false`: it was read before, and is to be passed over.
    pub(crate) fn record_read(&mut self, offset: Offset, now: Instant) -> bool {
        if self.read_to.covers(offset) && !fault!(StoreRereadRecords) {
            return false;
        }
        self.read_to = self.read_to.max(Watermark(offset.next().0));
        self.batch_started_at.get_or_insert(now);
        true
    }

    /// What was read last is to be stored well before `spare` is over.
    pub(crate) fn flush_within(&mut self, spare: Duration) {
        self.linger = self
            .linger
            .min((spare / APPEND_LINGER_DIVISOR).max(APPEND_LINGER_MIN));
    }

    /// The reader stands at the end of the partition, or past a gap: there is nothing to come before `at`.
    pub(crate) fn reached_end(&mut self, at: Offset, now: Instant) {
        if at.0 > self.read_to.0 {
            self.read_to = Watermark(at.0);
            self.batch_started_at.get_or_insert(now);
        }
    }

    /// What the store knows of its shard is shown.
    pub(crate) fn report_state(&self, state: &StoredShard, now: Timestamp) {
        let balance = Balance::of(state);
        let difference = (!balance.is_uncertain).then_some(balance.difference);
        let due_soon = state.forecast.due_by(now.plus(DUE_SOON_WITHIN), now);
        self.shard_metrics.set(
            [
                state.pending,
                due_soon,
                state.quarantined,
                state.stored_bytes,
            ],
            balance.counts(),
            difference,
        );
    }

    /// How far the reading is behind the partition's end is shown, if that is known.
    pub(crate) fn report_lag(&self, end: Option<Offset>) {
        if let Some(end) = end.filter(|_| self.phase == Phase::Reading) {
            self.shard_metrics
                .set_ingress_lag(end.0.saturating_sub(self.append_from.0));
        }
    }

    /// Whether all that was read has been stored.
    pub(crate) fn is_fully_stored(&self) -> bool {
        self.appends_in_flight == 0 && self.read_to == self.append_from
    }

    /// Whether something was read that no append covers yet.
    pub(crate) fn has_unsent(&self) -> bool {
        self.batch_started_at.is_some()
    }

    /// Whether the writer still owes an outcome.
    pub(crate) fn awaits_appender(&self) -> bool {
        self.phase == Phase::Reading && self.appends_in_flight > 0
    }

    /// When the batch under way is to be sealed; `None`: not before an append in flight is settled, or there is nothing to seal.
    ///
    /// A full batch goes at once, and several may be in flight. Else one append is in flight at a time and collects what comes meanwhile,
    /// so that batches grow with the load by themselves.
    pub(crate) fn flush_at(&self) -> Option<Instant> {
        let since = self.batch_started_at?;
        if self.phase != Phase::Reading || self.appends_in_flight >= SHARD_APPENDS_IN_FLIGHT_MAX {
            return None;
        }
        if self.batch.is_full() {
            return Some(since);
        }
        (self.appends_in_flight == 0).then_some(since + self.linger)
    }

    pub(crate) fn build_append(&mut self, sealer: &mut RunBuilder, far: FarTarget) -> Append {
        let (runs, changes) = self.batch.build_runs(sealer, far);
        let reading = AppendEpoch {
            process: sealer.writer(),
            number: self.epoch,
        };
        let append = Append {
            shard: self.shard.clone(),
            epoch: reading,
            from: self.append_from,
            to: self.read_to,
            runs,
            changes,
        };
        self.append_from = self.read_to;
        (self.batch_started_at, self.linger) = (None, APPEND_LINGER_MAX);
        self.appends_in_flight += 1;
        append
    }

    /// An append of this reading that ended at `to` was settled.
    pub(crate) fn on_append_result(&mut self, to: Watermark, outcome: Appended) -> AfterAppend {
        self.appends_in_flight = self.appends_in_flight.saturating_sub(1);
        match outcome {
            Appended::Done { .. } => AfterAppend::Continue,
            // It was stored before, by a call whose answer was lost or by another instance.
            Appended::WatermarkMismatch(watermark) if watermark == to => AfterAppend::Continue,
            Appended::WatermarkMismatch(watermark) => AfterAppend::Seek(watermark),
            Appended::Unknown => AfterAppend::Reopen,
        }
    }
}

/// Whether more may be read. Before it is not, empty batches give up what they kept for the next ones; and if it is not all the same, those that
/// are not empty wait for no company any more.
pub(super) fn has_room(intakes: &mut BTreeMap<Partition, AssignedPartition>) -> bool {
    let has_room = |intakes: &BTreeMap<_, AssignedPartition>| {
        intakes
            .values()
            .map(|intake| intake.batch.allocated_bytes())
            .sum::<usize>()
            < INGRESS_BUFFER_BYTES_MAX
    };
    if has_room(intakes) {
        return true;
    }
    intakes
        .values_mut()
        .for_each(|intake| intake.batch.free_if_empty());
    let has_room = has_room(intakes);
    if !has_room {
        intakes
            .values_mut()
            .filter(|intake| intake.has_unsent())
            .for_each(|intake| intake.flush_within(Duration::ZERO));
    }
    has_room
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::BATCH_BYTES_MAX;
    use crate::model::{Body, Disposition, Headers, Slice};
    use crate::run::ThinHours;

    fn reading(from: u64) -> AssignedPartition {
        let mut intake = AssignedPartition::new(
            "prod",
            ShardId::new("r", Partition::new("t", 0)),
            Instant::now(),
        );
        intake.start_reading(Watermark(from), 1);
        intake
    }

    fn far() -> FarTarget {
        FarTarget::at(Timestamp::from_millis(0), ThinHours::DEFAULT)
    }

    #[tokio::test(start_paused = true)]
    async fn an_append_covers_from_the_position_asked_for_to_the_last_record() {
        let mut sealer = RunBuilder::new(1);
        let mut intake = reading(10);
        let now = Instant::now();
        assert_eq!(intake.flush_at(), None);
        assert!(
            intake.record_read(Offset(12), now)
                && !intake.record_read(Offset(11), now)
                && intake.record_read(Offset(15), now)
        );
        assert_eq!(
            intake.flush_at(),
            Some(now + APPEND_LINGER_MAX),
            "nothing of it is urgent"
        );
        let append = intake.build_append(&mut sealer, far());
        assert_eq!((append.from, append.to), (Watermark(10), Watermark(16)));
        intake.reached_end(Offset(16), now);
        assert_eq!(
            intake.flush_at(),
            None,
            "nothing lies between the last record and the end"
        );
        intake.reached_end(Offset(18), now);
        assert_eq!(intake.flush_at(), None, "one append is in flight");
        assert_eq!(
            intake.on_append_result(
                Watermark(16),
                Appended::Done {
                    cancelled: 0,
                    missed: 0
                }
            ),
            AfterAppend::Continue
        );
        assert!(intake.flush_at().is_some() && !intake.is_fully_stored());
        let append = intake.build_append(&mut sealer, far());
        assert_eq!(
            (append.from, append.to, append.runs.len()),
            (Watermark(16), Watermark(18), 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_for_company_as_long_as_its_most_urgent_message_allows() {
        let mut intake = reading(10);
        let now = Instant::now();
        intake.record_read(Offset(10), now);
        for (spare, linger) in [
            (3_600_000, APPEND_LINGER_MAX),
            (400, Duration::from_millis(50)),
            (60_000, Duration::from_millis(50)),
            (0, APPEND_LINGER_MIN),
        ] {
            intake.flush_within(Duration::from_millis(spare));
            assert_eq!(intake.flush_at(), Some(now + linger), "{spare}");
        }
        intake.build_append(&mut RunBuilder::new(1), far());
        intake.on_append_result(
            Watermark(11),
            Appended::Done {
                cancelled: 0,
                missed: 0,
            },
        );
        intake.record_read(Offset(11), now);
        assert_eq!(
            intake.flush_at(),
            Some(now + APPEND_LINGER_MAX),
            "the next batch begins anew"
        );
    }

    #[test]
    fn after_a_rebuild_what_was_due_by_then_and_may_have_been_delivered_is_a_possible_duplicate() {
        let place = |due, offset| Cursor::new(Timestamp::from_millis(due), Offset(offset));
        let born = |delivered| StoredShard {
            identity: SourceIdentity("id".into()),
            watermark: Watermark(3),
            claimed: delivered,
            delivered,
            lowest_pending: Offset(3),
            pending: 0,
            stored_bytes: 0,
            quarantined: 0,
            forecast: crate::store::Forecast::default(),
            ledger: crate::store::Ledger::default(),
        };
        let rebuilt = Rebuild::new(
            &born(Progress::new(place(5, 2), Watermark(4))),
            Offset(9),
            Timestamp::from_millis(1_000),
        );
        let covers = |due, offset| {
            rebuilt.is_some_and(|rebuilt| rebuilt.may_be_duplicate(place(due, offset)))
        };
        assert_eq!(
            (covers(1_000, 8), covers(1_001, 8), covers(1_000, 9)),
            (true, false, false)
        );
        assert_eq!(
            Rebuild::new(
                &born(Progress::START),
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
            intake.on_append_result(Watermark(20), Appended::WatermarkMismatch(Watermark(20))),
            AfterAppend::Continue
        );
        assert_eq!(
            intake.on_append_result(Watermark(20), Appended::WatermarkMismatch(Watermark(4))),
            AfterAppend::Seek(Watermark(4))
        );
        assert_eq!(
            intake.on_append_result(Watermark(20), Appended::WatermarkMismatch(Watermark(40))),
            AfterAppend::Seek(Watermark(40))
        );
        assert_eq!(
            intake.on_append_result(Watermark(20), Appended::Unknown),
            AfterAppend::Reopen
        );
    }

    /// So many partitions, of each of which a batch of so many bytes was read.
    fn read(partitions: i32, bytes: usize, now: Instant) -> BTreeMap<Partition, AssignedPartition> {
        let (payload, due) = (vec![0; bytes], Timestamp::MAX);
        let read = |index| {
            let partition = Partition::new("t", index);
            let mut intake =
                AssignedPartition::new("prod", ShardId::new("r", partition.clone()), now);
            intake.start_reading(Watermark(0), 1);
            intake.record_read(Offset(0), now);
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
                .all(|intake| intake.flush_at() == Some(now + APPEND_LINGER_MIN)),
            "soon"
        );
        let far = FarTarget::at(Timestamp::from_millis(0), ThinHours::DEFAULT);
        intakes
            .values_mut()
            .for_each(|intake| drop(intake.build_append(&mut RunBuilder::new(1), far)));
        let held = |intakes: &BTreeMap<_, AssignedPartition>| {
            intakes
                .values()
                .map(|intake| intake.batch.allocated_bytes())
                .sum::<usize>()
        };
        assert!(held(&intakes) > INGRESS_BUFFER_BYTES_MAX);
        assert!(has_room(&mut intakes) && held(&intakes) < INGRESS_BUFFER_BYTES_MAX);
    }
}
