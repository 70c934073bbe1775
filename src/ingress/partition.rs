//! One assigned partition: how far it is read, the batch that is being filled, and the last known
//! state of its shard in the store. Makes decisions only; it does no I/O.

use super::appender::AppendJob;
use super::assumed_rules::AssumedRules;
use super::batch::AppendBatch;
use super::quota::{Waiting, WaitingCount};
use super::read_rules::ReadRules;
use crate::broker::OffsetCommit;
use crate::limit::{
    APPEND_LINGER_MAX, APPEND_LINGER_MIN, DISPLACED_READER_DELAY, DUE_SOON_WITHIN,
    OFFSET_COMMIT_INTERVAL, SHARD_APPENDS_IN_FLIGHT_MAX,
};
use crate::metric;
use crate::model::{
    CommitMetadata, Offset, OriginFormat, Pause, PositionRules, Progress, RoutingRules, ShardId,
    SourceIdentity, Timestamp, Watermark,
};
use crate::run::{FarTarget, RunBuilder};
use crate::store::{Append, AppendEpoch, Appended, Balance, OtherKeys, StoredShard, due_by};
use crate::trace::BatchLinks;
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct AssignedPartition {
    pub(super) shard: ShardId,
    pub(super) origin_format: OriginFormat,
    metrics: metric::ShardGauges,
    assigned_at: Instant,
    /// When the shard must be opened in the store, for the first time or again. `None` while the
    /// partition is read.
    pub(super) open_at: Option<Instant>,
    /// Why the partition cannot be read. Most reasons need an operator.
    pub(super) stop_reason: Option<String>,
    /// The reading has stopped in front of a record that only a newer version can read.
    pub(super) waits_for_newer: bool,
    /// Number of the current reading. Records and append results of an older reading are ignored.
    epoch: u64,
    pub(super) batch: AppendBatch,
    pub(super) trace_links: BatchLinks,
    /// Start of the next append: all offsets below it were passed to the appender.
    pub(super) append_from: Watermark,
    /// All offsets below it were read, or do not exist.
    read_to: Watermark,
    appends_in_flight: usize,
    /// Time that the batch may wait for more records.
    linger: Duration,
    /// When the first record of the batch was read. `None`: the partition is not read, or every
    /// record is covered by an append.
    batch_started_at: Option<Instant>,
    /// The delivered pair when the reading began. A rebuild skips the messages that it covers.
    pub(super) delivered: Progress,
    /// The greatest watermark that the store is known to have had.
    pub(super) greatest_stored: Watermark,
    /// The greatest delivered pair that was committed. A commit never moves it back, so it shows a
    /// rollback until the store has it again.
    pub(super) greatest_delivered: Progress,
    /// The newest that the commit, the store or a record has shown.
    pub(super) pause: Option<Pause>,
    /// The pause that the store had at the last look at it: the offset behind its control record.
    pub(super) stored_pause: Watermark,
    pub(super) rules: ReadRules,
    /// Set while the last commit is not known. Until then, nothing is committed.
    pub(super) assumed: Option<AssumedRules>,
    /// Set while another worker reads the partition: when it was found.
    pub(super) displaced_at: Option<Instant>,
    /// The identity of the source, as the store has it.
    pub(super) identity: SourceIdentity,
    /// Set while the last store check found nothing new to commit: the positions of the shard, and
    /// when its full state was read.
    idle_at: Option<(Watermark, Progress, Instant)>,
    pub(super) last_commit: Option<OffsetCommit>,
    pub(super) waiting: WaitingCount,
    /// The quota is used up, so new messages become dead letters.
    pub(super) refuses: bool,
    /// The route has an outcome topic.
    pub(super) tells_outcomes: bool,
    /// The claimed pair at the last store check, or when the shard was opened.
    claimed: Progress,
    /// No message was claimed since the check before, so the timer may wait for records that are not
    /// read.
    pub(super) waits_for_claim: bool,
}

/// The action that follows an append result or a store check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    Continue,
    /// The store has another watermark: open the shard again, and continue reading there.
    Seek(Watermark),
    /// The store does not know the shard, or has one of another source: open it again.
    Reopen,
    /// Another worker has stored more, or has started to read: leave the partition to it for a
    /// while. If this worker is still assigned to the partition then, open the shard again.
    Displaced,
}

impl AssignedPartition {
    pub(super) fn new(deployment: &str, shard: ShardId, now: Instant) -> Self {
        Self {
            origin_format: OriginFormat::new(deployment, &shard),
            metrics: metric::ShardGauges::new(&shard),
            shard,
            assigned_at: now,
            open_at: Some(now),
            stop_reason: None,
            waits_for_newer: false,
            epoch: 0,
            batch: AppendBatch::default(),
            trace_links: BatchLinks::default(),
            append_from: Watermark(0),
            read_to: Watermark(0),
            appends_in_flight: 0,
            batch_started_at: None,
            linger: APPEND_LINGER_MAX,
            delivered: Progress::START,
            greatest_stored: Watermark(0),
            greatest_delivered: Progress::START,
            pause: None,
            stored_pause: Watermark(0),
            rules: ReadRules::default(),
            assumed: None,
            displaced_at: None,
            identity: SourceIdentity::new(None, None),
            idle_at: None,
            last_commit: None,
            waiting: WaitingCount::default(),
            refuses: false,
            tells_outcomes: false,
            claimed: Progress::START,
            waits_for_claim: true,
        }
    }

    /// Starts to read at `from`. Records that were read and not stored are dropped: they are read
    /// again.
    pub(super) fn start_reading(&mut self, from: Watermark, epoch: u64) {
        self.open_at = None;
        self.stop_reason = None;
        self.waits_for_newer = false;
        self.displaced_at = None;
        self.waits_for_claim = true;
        self.epoch = epoch;
        self.reset(from);
    }

    /// Adds the assumed rules to those of the last commit.
    pub(super) fn learn_rules(
        &mut self,
        committed: Option<&CommitMetadata>,
        own: &PositionRules,
        today: &RoutingRules,
    ) {
        if let Some(assumed) = self.assumed.take() {
            self.greatest_stored = self.greatest_stored.max(assumed.stored(committed));
            let delivered = assumed.delivered(committed);
            self.greatest_delivered = self.greatest_delivered.greatest(delivered);
            self.rules = ReadRules::new(assumed.history(own, committed), today);
            self.learn_pause(assumed.pause(committed));
        }
    }

    /// Stops in front of the record at `offset`. The records before it are stored.
    pub(super) fn wait_for_newer(&mut self, offset: Offset, found: &str) {
        let shard = &self.shard;
        let reason = format!(
            "shard {shard} waits at offset {offset}: a newer version wrote the record ({found}): run the newer version"
        );
        tracing::error!(%shard, %offset, "{reason}");
        self.stop_reason = Some(reason);
        self.waits_for_newer = true;
    }

    /// Stops to read, until the shard is opened again.
    pub(super) fn stop_reading(&mut self, open_at: Instant, reason: Option<String>) {
        self.open_at = Some(open_at);
        self.stop_reason = reason;
        self.reset(self.append_from);
    }

    fn reset(&mut self, from: Watermark) {
        self.batch.clear();
        self.trace_links = BatchLinks::default();
        self.waiting.reading_stopped();
        self.append_from = from;
        self.read_to = from;
        self.appends_in_flight = 0;
        self.batch_started_at = None;
        self.linger = APPEND_LINGER_MAX;
    }

    pub(super) fn is_reading(&self) -> bool {
        self.open_at.is_none()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn is_first_reading(&self) -> bool {
        self.epoch == 0
    }

    pub(super) fn is_reading_epoch(&self, epoch: u64) -> bool {
        self.is_reading() && self.epoch == epoch
    }

    /// False if the record at `offset` was read before: skip it.
    pub(super) fn is_unread(&self, offset: Offset) -> bool {
        !self.read_to.covers(offset) || fault!(StoreRereadRecords)
    }

    /// Notes that the record at `offset` was read.
    pub(super) fn record_read(&mut self, offset: Offset, now: Instant) {
        self.read_to = self.read_to.max(Watermark(offset.next().0));
        self.batch_started_at.get_or_insert(now);
    }

    /// Notes that no record exists below `end`: the reader is at the end of the partition or behind
    /// a gap.
    pub(super) fn reached_end(&mut self, end: Offset, now: Instant) {
        if end.0 > self.read_to.0 {
            self.read_to = Watermark(end.0);
            self.batch_started_at.get_or_insert(now);
        }
    }

    /// Shortens the linger time, so that the last record is stored well before `spare` is over.
    pub(super) fn flush_within(&mut self, spare: Duration) {
        self.linger = self.linger.min((spare / 8).max(APPEND_LINGER_MIN));
    }

    /// Sets the gauge of the offsets from the next append to the partition's end, if the end is
    /// known.
    pub(super) fn report_lag(&self, end: Option<Offset>) {
        if let Some(end) = end.filter(|_| self.is_reading()) {
            let lag = end.0.saturating_sub(self.append_from.0);
            self.metrics.set_ingress_lag(lag);
        }
    }

    /// Returns `true` if the records that are read now were stored before the store lost them.
    pub(super) fn is_rebuilding(&self) -> bool {
        self.is_reading() && self.stop_reason.is_none() && self.read_to < self.greatest_stored
    }

    /// Returns `true` if the quota refuses the message of this record. A record that may have been
    /// stored before is accepted, so a rebuild refuses no message that was accepted.
    pub(super) fn refuses(&self, offset: Offset) -> bool {
        let was_stored = self.was_stored(offset) && !fault!(QuotaRefusesStored);
        self.refuses && !was_stored
    }

    /// Returns `true` if the record at this offset was stored before the store lost it.
    pub(super) fn was_stored(&self, offset: Offset) -> bool {
        self.greatest_stored.covers(offset)
    }

    /// The store has the shard in this state.
    pub(super) fn opened(&mut self, state: &StoredShard) {
        let stored = self.waiting.stored_by_worker();
        self.waiting.checked(Waiting::of(state), stored);
        self.note_stored_pause(state);
        self.claimed = state.claimed;
    }

    /// A store check has found this state. `stored_by_worker`: what this worker had stored when it began.
    pub(super) fn checked(&mut self, state: &StoredShard, stored_by_worker: Waiting) {
        self.waiting.checked(Waiting::of(state), stored_by_worker);
        self.note_stored_pause(state);
        let is_unchanged = state.claimed == self.claimed;
        self.waits_for_claim =
            is_unchanged && (self.waits_for_claim || !fault!(QuotaKeepsLaterHolds));
        self.claimed = state.claimed;
    }

    /// Messages that wait in the shard, those included that are not stored yet.
    pub(super) fn waiting(&self) -> Waiting {
        self.waiting.total().plus(self.batch.waiting())
    }

    fn is_fully_stored(&self) -> bool {
        self.appends_in_flight == 0 && self.read_to == self.append_from
    }

    /// Returns `true` if the source may have records that are not stored.
    pub(super) fn is_behind(&self, known_end: Option<Offset>) -> bool {
        !self.is_fully_stored() || known_end.is_none_or(|end| end > self.append_from.offset())
    }

    /// Returns `true` if no record waits for an append, or for the result of one.
    pub(super) fn is_flushed(&self) -> bool {
        !self.has_batch() && self.appends_in_flight == 0
    }

    /// When to send the batch to the appender. `None` if it is empty, or must wait for an append
    /// result.
    ///
    /// A full batch goes at once, and several may be in flight. A smaller batch waits until no
    /// append is in flight and collects records meanwhile, so that batches grow with the load.
    pub(super) fn flush_at(&self) -> Option<Instant> {
        let started_at = self.batch_started_at?;
        if self.appends_in_flight >= SHARD_APPENDS_IN_FLIGHT_MAX {
            return None;
        }
        if self.batch.is_full() {
            return Some(started_at);
        }
        (self.appends_in_flight == 0).then_some(started_at + self.linger)
    }

    /// Returns `true` if records were read that no append covers yet.
    pub(super) fn has_batch(&self) -> bool {
        self.batch_started_at.is_some()
    }

    pub(super) fn build_append(&mut self, builder: &mut RunBuilder, far: FarTarget) -> AppendJob {
        let drafts = self.batch.take_drafts();
        let (runs, changes) = self.batch.build_runs(&self.shard, builder, far);
        let append = Append {
            shard: self.shard.clone(),
            epoch: AppendEpoch {
                process: builder.writer(),
                number: self.epoch,
            },
            identity: self.identity.clone(),
            from: self.append_from,
            to: self.read_to,
            runs,
            changes,
            pause: self.pause_to_append(self.read_to),
        };
        self.append_from = self.read_to;
        self.batch_started_at = None;
        self.linger = APPEND_LINGER_MAX;
        self.appends_in_flight += 1;
        let links = std::mem::take(&mut self.trace_links);
        let job = AppendJob {
            append,
            links,
            drafts,
        };
        self.waiting.append_sent(Waiting {
            messages: job.messages(),
            bytes: job.bytes() as u64,
        });
        job
    }

    /// Handles the result of an append of these offsets.
    pub(super) fn on_append_result(
        &mut self,
        offsets: Range<Watermark>,
        outcome: &Appended,
    ) -> NextStep {
        self.appends_in_flight = self.appends_in_flight.saturating_sub(1);
        match *outcome {
            Appended::Done { .. } => {
                self.greatest_stored = self.greatest_stored.max(offsets.end);
                NextStep::Continue
            }
            // An earlier call stored it, whose answer was lost, or another process did.
            Appended::WatermarkMismatch(watermark) if watermark == offsets.end => {
                NextStep::Continue
            }
            // The watermark is right, so another epoch has followed.
            Appended::WatermarkMismatch(watermark) if watermark == offsets.start => {
                NextStep::Displaced
            }
            Appended::WatermarkMismatch(watermark) => self.step_to(watermark),
            Appended::Unknown => NextStep::Reopen,
        }
    }

    /// The step to another watermark of the store. This worker has appended nothing beyond
    /// `append_from`.
    fn step_to(&self, watermark: Watermark) -> NextStep {
        if watermark > self.append_from {
            NextStep::Displaced
        } else {
            NextStep::Seek(watermark)
        }
    }

    /// When to open the shard again after this step. A worker that was assigned just now does not
    /// wait: the reader before it is about to stop.
    pub(super) fn reopen_at(&mut self, next: NextStep, now: Instant) -> Instant {
        let is_new = now < self.assigned_at + DISPLACED_READER_DELAY;
        let waits = next == NextStep::Displaced && !is_new && !fault!(DisplacedReaderContinues);
        self.displaced_at = waits.then_some(now);
        if next == NextStep::Reopen {
            // Another process may create the shard first. Then the next opening takes the delivered pair
            // of that shard, as a first reading does.
            self.epoch = 0;
        }
        if waits {
            now + DISPLACED_READER_DELAY
        } else {
            now
        }
    }

    /// The positions at which the last check found nothing new to commit. While an idle shard still
    /// has them, its full state is not read, which costs the store more: see the benchmark `idle`.
    pub(super) fn idle_positions(&self, now: Instant) -> Option<(Watermark, Progress)> {
        let (watermark, delivered, since) = self.idle_at?;
        // Deleting a run changes no position, so sometimes read the full state.
        let is_recent = now < since + 10 * OFFSET_COMMIT_INTERVAL;
        let is_idle = self.is_fully_stored() && self.append_from == watermark;
        (is_recent && is_idle).then_some((watermark, delivered))
    }

    /// The watermark that the store must have. `None`: records that were read are not stored yet.
    pub(super) fn stored_to(&self) -> Option<Watermark> {
        self.is_fully_stored().then_some(self.append_from)
    }

    /// Handles the stored state of the shard: sets its gauges, and compares the positions.
    /// `stored_to`: the watermark that the store had to have when the state was asked for. If more
    /// was stored meanwhile, the append has compared the watermarks.
    pub(super) fn on_state(
        &self,
        state: &StoredShard,
        stored_to: Option<Watermark>,
        wall: Timestamp,
    ) -> NextStep {
        if state.identity != self.identity {
            return NextStep::Reopen;
        }
        self.report_state(state, wall);
        match stored_to {
            Some(expected) if self.stored_to() == stored_to && state.watermark != expected => {
                self.step_to(state.watermark)
            }
            _ => NextStep::Continue,
        }
    }

    /// The commit of the stored state, if it is new or `commit_unchanged` is set. `is_final`:
    /// nothing more will be stored. `None` while the rules history is not known.
    pub(super) fn next_commit(
        &mut self,
        state: &StoredShard,
        commit_unchanged: bool,
        is_final: bool,
        now: Instant,
    ) -> Option<OffsetCommit> {
        let is_end = is_final && self.is_fully_stored();
        self.greatest_stored = self.greatest_stored.max(state.watermark);
        if self.assumed.is_some() && !fault!(CommitAssumedRules) {
            return None;
        }
        self.greatest_delivered = self.greatest_delivered.greatest(state.delivered);
        let metadata = CommitMetadata {
            lowest_pending: state.lowest_pending,
            delivered: self.greatest_delivered,
            stored: self.greatest_stored,
            identity: Some(self.identity.clone()),
            end: is_end.then_some(state.watermark.offset()),
            rules: self.rules.history.clone(),
            pause: self.needed_pause(state.lowest_pending),
        };
        let commit = OffsetCommit {
            offset: state.watermark.offset(),
            metadata: metadata.to_string(),
            partition: self.shard.partition.clone(),
        };
        let is_new = self.last_commit.as_ref() != Some(&commit);
        self.idle_at = (!is_new).then_some((state.watermark, state.delivered, now));
        (is_new || commit_unchanged).then_some(commit)
    }

    /// A commit has failed, so the next check commits again, even if nothing has changed.
    pub(super) fn on_failed_commit(&mut self) {
        (self.last_commit, self.idle_at) = (None, None);
    }

    /// Sets the gauges of messages that are not encrypted with the key that writes.
    pub(super) fn report_keys(&self, others: OtherKeys) {
        self.metrics.set_keys(others.known, others.missing);
    }

    fn report_state(&self, state: &StoredShard, now: Timestamp) {
        let balance = Balance::of(state);
        let difference = (!balance.is_uncertain).then_some(balance.difference);
        // More workers deliver nothing of a paused shard.
        let due_soon = match state.is_paused() {
            true => 0,
            false => due_by(&state.slices, now.plus(DUE_SOON_WITHIN), now),
        };
        let (pending, bytes) = (state.pending(), state.stored_bytes());
        let gauges = [pending, due_soon, state.quarantined, bytes];
        self.metrics.set(gauges, balance.counts(), difference);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Partition};
    use crate::run::ThinHours;
    use crate::store::NewShard;
    use crate::store::rules::{ShardCounts, ShardMeta};
    use crate::testing::store::requests::new_shard;

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
        let mut builder = RunBuilder::plain(1);
        let mut partition = reading(10);
        let now = Instant::now();
        assert_eq!(partition.flush_at(), None);
        partition.record_read(Offset(12), now);
        assert!(!partition.is_unread(Offset(11)) && partition.is_unread(Offset(15)));
        partition.record_read(Offset(15), now);
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
                Watermark(10)..Watermark(16),
                &Appended::Done {
                    cancelled: 0,
                    missed: 0,
                    told: Vec::new(),
                }
            ),
            NextStep::Continue
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
        partition.build_append(&mut RunBuilder::plain(1), far());
        partition.on_append_result(
            Watermark(10)..Watermark(11),
            &Appended::Done {
                cancelled: 0,
                missed: 0,
                told: Vec::new(),
            },
        );
        partition.record_read(Offset(11), now);
        assert_eq!(
            partition.flush_at(),
            Some(now + APPEND_LINGER_MAX),
            "the next batch has its own linger time"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_never_moves_the_delivered_pair_back() {
        let state = |due| {
            let cursor = Cursor::new(Timestamp::from_millis(due), Offset(1));
            let new = NewShard {
                watermark: Watermark(2),
                delivered: Progress::new(cursor, Watermark(2)),
                ..new_shard("t")
            };
            ShardCounts::default().state(&ShardMeta::new(&new))
        };
        let mut partition = reading(2);
        for (stored, committed) in [(7, 7), (5, 7), (8, 8)] {
            let commit = partition.next_commit(&state(stored), true, false, Instant::now());
            let metadata = commit.map(|commit| CommitMetadata::parse(&commit.metadata));
            let metadata = metadata.expect("a commit").ok().flatten();
            let delivered = metadata.map(|metadata| metadata.delivered);
            assert_eq!(delivered, Some(state(committed).delivered));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_watermark_stops_the_reading_unless_this_append_moved_it() {
        let mut partition = reading(10);
        let append = |found| {
            let mut partition = reading(10);
            partition.record_read(Offset(29), Instant::now());
            partition.build_append(&mut RunBuilder::plain(1), far());
            partition.on_append_result(
                Watermark(10)..Watermark(20),
                &Appended::WatermarkMismatch(Watermark(found)),
            )
        };
        for (found, expected) in [
            (20, NextStep::Continue),
            (4, NextStep::Seek(Watermark(4))),
            (30, NextStep::Seek(Watermark(30))),
            (10, NextStep::Displaced),
            (40, NextStep::Displaced),
        ] {
            assert_eq!(append(found), expected, "{found}");
        }
        assert_eq!(
            partition.on_append_result(Watermark(10)..Watermark(20), &Appended::Unknown),
            NextStep::Reopen
        );
        let now = Instant::now();
        let mut reopen = |next, now| (partition.reopen_at(next, now) - now, partition.displaced_at);
        assert_eq!(reopen(NextStep::Displaced, now), (Duration::ZERO, None));
        let later = now + DISPLACED_READER_DELAY;
        let waits = (DISPLACED_READER_DELAY, Some(later));
        assert_eq!(reopen(NextStep::Displaced, later), waits);
        assert_eq!(reopen(NextStep::Reopen, later), (Duration::ZERO, None));
        assert!(
            partition.is_first_reading(),
            "another process may create the shard"
        );
    }
}
