//! One assigned partition: how far it is read, the batch that is being filled, and what the store
//! knows of its shard. Makes decisions only; it does no I/O.

use super::appender::AppendJob;
use super::batch::AppendBatch;
use crate::broker::OffsetCommit;
use crate::limit::{
    APPEND_LINGER_DIVISOR, APPEND_LINGER_MAX, APPEND_LINGER_MIN, DUE_SOON_WITHIN,
    FULL_STATE_INTERVAL, SHARD_APPENDS_IN_FLIGHT_MAX,
};
use crate::metric;
use crate::model::{
    Body, CommitMetadata, Cursor, Headers, Offset, OriginFormat, Progress, ShardId, Slice,
    SourceIdentity, Timestamp, Watermark,
};
use crate::run::{FarTarget, RunBuilder};
use crate::store::{Append, AppendEpoch, Appended, Balance, IdChange, StoredShard, due_by};
use crate::trace::{BatchLinks, Tracer};
use std::time::Duration;
use tokio::time::Instant;

/// One partition that the consumer group assigned to this process.
pub(super) struct AssignedPartition {
    shard: ShardId,
    origin_format: OriginFormat,
    metrics: metric::ShardGauges,
    phase: Phase,
    /// Number of the current reading. Records and append results of an older reading are ignored.
    epoch: u64,
    batch: AppendBatch,
    trace_links: BatchLinks,
    /// Start of the next append: all offsets below it were passed to the appender.
    append_from: Watermark,
    /// All offsets below it were read, or do not exist.
    read_to: Watermark,
    appends_in_flight: usize,
    /// Time that the batch may wait for more records.
    linger: Duration,
    /// When the first record of the batch was read.
    batch_started_at: Option<Instant>,
    /// The delivered pair when the reading began. A rebuild skips the messages that it covers.
    delivered: Progress,
    rebuild: Option<Rebuild>,
    identity: Option<SourceIdentity>,
    /// Set while the last store check found nothing new to commit.
    idle_at: Option<IdlePosition>,
    /// Offset and metadata of the last commit that the broker accepted.
    last_commit: Option<String>,
}

/// Positions of an idle shard, and when its full state was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdlePosition {
    watermark: Watermark,
    delivered: Progress,
    since: Instant,
}

/// A shard that is rebuilt from the source log. Tells which of its messages may have been delivered
/// before the store was lost, although no record of the delivery is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rebuild {
    /// End of the log when the shard was created again.
    log_end: Offset,
    rebuilt_at: Timestamp,
}

impl Rebuild {
    /// `None` if, by the last commit, no message of the shard was ever delivered.
    pub(super) fn new(created: &StoredShard, log_end: Offset, now: Timestamp) -> Option<Self> {
        (created.delivered != Progress::START).then_some(Self {
            log_end,
            rebuilt_at: now,
        })
    }

    fn may_be_duplicate(self, position: Cursor) -> bool {
        position.offset < self.log_end && position.due <= self.rebuilt_at
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The shard must be opened in the store, at `not_before` or later.
    Opening {
        not_before: Instant,
    },
    Reading,
    /// A person must act. The shard is checked again at `retry_at`.
    Stopped {
        reason: String,
        retry_at: Instant,
    },
}

/// The action that follows an append result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterAppend {
    Continue,
    /// The store has another watermark: continue reading there.
    Seek(Watermark),
    /// The store does not know the shard: open it again.
    Reopen,
}

/// The action that follows a store check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AfterCheck {
    Nothing,
    Commit(OffsetCommit),
    /// The partition is idle and the store has another watermark: continue reading there.
    Seek(Watermark),
}

impl AssignedPartition {
    pub(super) fn new(deployment: &str, shard: ShardId, now: Instant) -> Self {
        Self {
            origin_format: OriginFormat::new(deployment, &shard),
            metrics: metric::ShardGauges::new(&shard),
            shard,
            phase: Phase::Opening { not_before: now },
            epoch: 0,
            batch: AppendBatch::default(),
            trace_links: BatchLinks::default(),
            append_from: Watermark(0),
            read_to: Watermark(0),
            appends_in_flight: 0,
            batch_started_at: None,
            linger: APPEND_LINGER_MAX,
            delivered: Progress::START,
            rebuild: None,
            identity: None,
            idle_at: None,
            last_commit: None,
        }
    }

    pub(super) fn shard(&self) -> &ShardId {
        &self.shard
    }

    pub(super) fn origin_format(&self) -> &OriginFormat {
        &self.origin_format
    }

    pub(super) fn append_from(&self) -> Watermark {
        self.append_from
    }

    /// Why the partition is stopped.
    pub(super) fn stop_reason(&self) -> Option<&str> {
        match &self.phase {
            Phase::Stopped { reason, .. } => Some(reason),
            Phase::Opening { .. } | Phase::Reading => None,
        }
    }

    /// When the shard must be opened, for the first time or again. `None` while it is read.
    pub(super) fn open_at(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Opening { not_before: at } | Phase::Stopped { retry_at: at, .. } => Some(*at),
            Phase::Reading => None,
        }
    }

    /// Takes over what broker and store said of the partition when its shard was opened.
    pub(super) fn on_opened(&mut self, identity: Option<SourceIdentity>, rebuild: Option<Rebuild>) {
        self.identity = identity;
        if rebuild.is_some() {
            self.rebuild = rebuild;
        }
    }

    /// Starts to read at `from`. Records that were read and not stored are dropped: they are read
    /// again.
    pub(super) fn start_reading(&mut self, from: Watermark, epoch: u64) {
        self.phase = Phase::Reading;
        self.epoch = epoch;
        self.reset(from);
    }

    /// Sets the delivered pair with which the shard was opened.
    pub(super) fn set_delivered(&mut self, delivered: Progress) {
        self.delivered = delivered;
    }

    pub(super) fn stop_reading(&mut self, phase: Phase) {
        self.phase = phase;
        self.reset(self.append_from);
    }

    fn reset(&mut self, from: Watermark) {
        self.batch.clear();
        self.trace_links = BatchLinks::default();
        self.append_from = from;
        self.read_to = from;
        self.appends_in_flight = 0;
        self.batch_started_at = None;
        self.linger = APPEND_LINGER_MAX;
    }

    pub(super) fn is_reading(&self) -> bool {
        self.phase == Phase::Reading
    }

    /// Returns `true` if the current reading has this epoch.
    pub(super) fn is_reading_epoch(&self, epoch: u64) -> bool {
        self.is_reading() && self.epoch == epoch
    }

    /// Notes that the record at `offset` was read. Returns `false` if it was read before: skip it.
    pub(super) fn record_read(&mut self, offset: Offset, now: Instant) -> bool {
        if self.read_to.covers(offset) && !fault!(StoreRereadRecords) {
            return false;
        }
        self.read_to = self.read_to.max(Watermark(offset.next().0));
        self.batch_started_at.get_or_insert(now);
        true
    }

    /// Links the batch to the trace of a message, if the message has one.
    pub(super) fn link_trace(&mut self, tracer: &Tracer, headers: Headers<'_>, now: Timestamp) {
        tracer.link_message(&mut self.trace_links, headers, now);
    }

    /// Returns `true` if the message is delivered. A rebuild then skips it.
    pub(super) fn is_delivered(&self, position: Cursor) -> bool {
        self.delivered.covers(position)
    }

    pub(super) fn may_be_duplicate(&self, position: Cursor) -> bool {
        self.rebuild
            .is_some_and(|rebuild| rebuild.may_be_duplicate(position))
    }

    /// Adds a message to the batch.
    pub(super) fn add_message(&mut self, slice: Slice, position: Cursor, body: &Body<'_>) {
        self.batch.add(slice, position, body);
    }

    /// Adds a cancel or a replacement to the batch.
    pub(super) fn add_change(&mut self, change: IdChange) {
        self.batch.add_change(change);
    }

    /// Shortens the linger time, so that the last record is stored well before `spare` is over.
    pub(super) fn flush_within(&mut self, spare: Duration) {
        self.linger = self
            .linger
            .min((spare / APPEND_LINGER_DIVISOR).max(APPEND_LINGER_MIN));
    }

    /// Notes that no record exists below `end`: the reader is at the end of the partition or behind
    /// a gap.
    pub(super) fn reached_end(&mut self, end: Offset, now: Instant) {
        if end.0 > self.read_to.0 {
            self.read_to = Watermark(end.0);
            self.batch_started_at.get_or_insert(now);
        }
    }

    /// Sets the gauge of the offsets between the reader and the partition's end, if the end is
    /// known.
    pub(super) fn report_lag(&self, end: Option<Offset>) {
        if let Some(end) = end.filter(|_| self.is_reading()) {
            self.metrics
                .set_ingress_lag(end.0.saturating_sub(self.append_from.0));
        }
    }

    /// Returns `true` if all records that were read are stored.
    fn is_fully_stored(&self) -> bool {
        self.appends_in_flight == 0 && self.read_to == self.append_from
    }

    /// Returns `true` while an append result is outstanding.
    pub(super) fn awaits_appender(&self) -> bool {
        self.is_reading() && self.appends_in_flight > 0
    }

    /// When to send the batch to the appender. `None` if it is empty, or must wait for an append
    /// result.
    ///
    /// A full batch goes at once, and several may be in flight. A smaller batch waits until no
    /// append is in flight and collects records meanwhile, so that batches grow with the load.
    pub(super) fn flush_at(&self) -> Option<Instant> {
        let started_at = self.batch_started_at?;
        if !self.is_reading() || self.appends_in_flight >= SHARD_APPENDS_IN_FLIGHT_MAX {
            return None;
        }
        if self.batch.is_full() {
            return Some(started_at);
        }
        (self.appends_in_flight == 0).then_some(started_at + self.linger)
    }

    pub(super) fn is_flush_due(&self, now: Instant) -> bool {
        self.flush_at().is_some_and(|at| at <= now)
    }

    /// Returns `true` if records were read that no append covers yet.
    pub(super) fn has_batch(&self) -> bool {
        self.batch_started_at.is_some()
    }

    /// Bytes of memory that the batch holds.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.batch.allocated_bytes()
    }

    /// Frees the memory of the batch if it is empty.
    pub(super) fn free_empty_batch(&mut self) {
        self.batch.free_if_empty();
    }

    /// Empties the batch into an append.
    pub(super) fn build_append(&mut self, builder: &mut RunBuilder, far: FarTarget) -> AppendJob {
        let (runs, changes) = self.batch.build_runs(builder, far);
        let append = Append {
            shard: self.shard.clone(),
            epoch: AppendEpoch {
                process: builder.writer(),
                number: self.epoch,
            },
            from: self.append_from,
            to: self.read_to,
            runs,
            changes,
        };
        self.append_from = self.read_to;
        self.batch_started_at = None;
        self.linger = APPEND_LINGER_MAX;
        self.appends_in_flight += 1;
        AppendJob {
            partition: self.shard.partition.clone(),
            epoch: self.epoch,
            append,
            links: std::mem::take(&mut self.trace_links),
        }
    }

    /// Handles the result of an append that ended at `to`.
    pub(super) fn on_append_result(&mut self, to: Watermark, outcome: Appended) -> AfterAppend {
        self.appends_in_flight = self.appends_in_flight.saturating_sub(1);
        match outcome {
            Appended::Done { .. } => AfterAppend::Continue,
            // An earlier call stored it, whose answer was lost, or another process did.
            Appended::WatermarkMismatch(watermark) if watermark == to => AfterAppend::Continue,
            Appended::WatermarkMismatch(watermark) => AfterAppend::Seek(watermark),
            Appended::Unknown => AfterAppend::Reopen,
        }
    }

    /// The positions of an idle shard. While the store still has them, its full state need not be
    /// read.
    pub(super) fn idle_positions(&self, now: Instant) -> Option<(Watermark, Progress)> {
        let idle = self.idle_at?;
        let is_recent = now < idle.since + FULL_STATE_INTERVAL;
        let is_unchanged = self.is_fully_stored() && self.append_from == idle.watermark;
        (is_recent && is_unchanged).then_some((idle.watermark, idle.delivered))
    }

    /// Handles the stored state of the shard: sets its gauges, and decides what to commit.
    /// An unchanged position is committed only if `commit_unchanged`.
    pub(super) fn on_state(
        &mut self,
        state: &StoredShard,
        commit_unchanged: bool,
        wall: Timestamp,
        now: Instant,
    ) -> AfterCheck {
        self.report_state(state, wall);
        if self.is_fully_stored() && self.append_from != state.watermark {
            return AfterCheck::Seek(state.watermark);
        }
        let metadata = CommitMetadata {
            lowest_pending: state.lowest_pending,
            delivered: state.delivered,
            identity: self.identity.clone(),
        };
        let commit = OffsetCommit {
            offset: state.watermark.offset(),
            metadata: metadata.to_string(),
            partition: self.shard.partition.clone(),
        };
        let is_new = self.last_commit != Some(commit_text(&commit));
        self.idle_at = (!is_new).then_some(IdlePosition {
            watermark: state.watermark,
            delivered: state.delivered,
            since: now,
        });
        if is_new || commit_unchanged {
            AfterCheck::Commit(commit)
        } else {
            AfterCheck::Nothing
        }
    }

    /// Notes that the broker accepted a commit.
    pub(super) fn on_committed(&mut self, commit: &OffsetCommit) {
        self.last_commit = Some(commit_text(commit));
    }

    fn report_state(&self, state: &StoredShard, now: Timestamp) {
        let balance = Balance::of(state);
        let difference = (!balance.is_uncertain).then_some(balance.difference);
        let due_soon = due_by(&state.slices, now.plus(DUE_SOON_WITHIN), now);
        self.metrics.set(
            [
                state.pending(),
                due_soon,
                state.quarantined,
                state.stored_bytes(),
            ],
            balance.counts(),
            difference,
        );
    }
}

fn commit_text(commit: &OffsetCommit) -> String {
    format!("{} {}", commit.offset, commit.metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;
    use crate::run::ThinHours;

    fn reading(from: u64) -> AssignedPartition {
        let mut partition = AssignedPartition::new(
            "prod",
            ShardId::new("r", Partition::new("t", 0)),
            Instant::now(),
        );
        partition.start_reading(Watermark(from), 1);
        partition
    }

    fn far() -> FarTarget {
        FarTarget::at(Timestamp::from_millis(0), ThinHours::DEFAULT)
    }

    #[tokio::test(start_paused = true)]
    async fn an_append_covers_the_offsets_from_the_start_position_to_the_last_record() {
        let mut builder = RunBuilder::new(1);
        let mut partition = reading(10);
        let now = Instant::now();
        assert_eq!(partition.flush_at(), None);
        assert!(
            partition.record_read(Offset(12), now)
                && !partition.record_read(Offset(11), now)
                && partition.record_read(Offset(15), now)
        );
        assert_eq!(
            partition.flush_at(),
            Some(now + APPEND_LINGER_MAX),
            "no record is urgent"
        );
        let append = partition.build_append(&mut builder, far()).append;
        assert_eq!((append.from, append.to), (Watermark(10), Watermark(16)));
        partition.reached_end(Offset(16), now);
        assert_eq!(
            partition.flush_at(),
            None,
            "no offset is left between the last record and the end"
        );
        partition.reached_end(Offset(18), now);
        assert_eq!(partition.flush_at(), None, "one append is in flight");
        assert_eq!(
            partition.on_append_result(
                Watermark(16),
                Appended::Done {
                    cancelled: 0,
                    missed: 0
                }
            ),
            AfterAppend::Continue
        );
        assert!(partition.flush_at().is_some() && !partition.is_fully_stored());
        let append = partition.build_append(&mut builder, far()).append;
        assert_eq!(
            (append.from, append.to, append.runs.len()),
            (Watermark(16), Watermark(18), 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_lingers_only_as_long_as_its_most_urgent_message_allows() {
        let mut partition = reading(10);
        let now = Instant::now();
        partition.record_read(Offset(10), now);
        for (spare, linger) in [
            (3_600_000, APPEND_LINGER_MAX),
            (400, Duration::from_millis(50)),
            (60_000, Duration::from_millis(50)),
            (0, APPEND_LINGER_MIN),
        ] {
            partition.flush_within(Duration::from_millis(spare));
            assert_eq!(partition.flush_at(), Some(now + linger), "{spare}");
        }
        partition.build_append(&mut RunBuilder::new(1), far());
        partition.on_append_result(
            Watermark(11),
            Appended::Done {
                cancelled: 0,
                missed: 0,
            },
        );
        partition.record_read(Offset(11), now);
        assert_eq!(
            partition.flush_at(),
            Some(now + APPEND_LINGER_MAX),
            "the next batch has its own linger time"
        );
    }

    #[test]
    fn a_rebuild_marks_messages_that_were_due_before_it_as_possible_duplicates() {
        let place = |due, offset| Cursor::new(Timestamp::from_millis(due), Offset(offset));
        let created = |delivered| StoredShard {
            identity: SourceIdentity("id".into()),
            watermark: Watermark(3),
            claimed: delivered,
            delivered,
            lowest_pending: Offset(3),
            slices: Vec::new(),
            quarantined: 0,
            ledger: crate::store::Ledger::default(),
        };
        let rebuilt = Rebuild::new(
            &created(Progress::new(place(5, 2), Watermark(4))),
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
                &created(Progress::START),
                Offset(9),
                Timestamp::from_millis(1_000)
            ),
            None,
            "no message was ever delivered"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn another_watermark_causes_a_seek_unless_this_append_moved_it() {
        let mut partition = reading(10);
        assert_eq!(
            partition.on_append_result(Watermark(20), Appended::WatermarkMismatch(Watermark(20))),
            AfterAppend::Continue
        );
        assert_eq!(
            partition.on_append_result(Watermark(20), Appended::WatermarkMismatch(Watermark(4))),
            AfterAppend::Seek(Watermark(4))
        );
        assert_eq!(
            partition.on_append_result(Watermark(20), Appended::WatermarkMismatch(Watermark(40))),
            AfterAppend::Seek(Watermark(40))
        );
        assert_eq!(
            partition.on_append_result(Watermark(20), Appended::Unknown),
            AfterAppend::Reopen
        );
    }
}
