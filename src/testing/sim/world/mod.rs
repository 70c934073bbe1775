//! The environment of simulated processes: one cluster, one store, one clock, and the record of
//! events.

mod broker_faults;
mod faults;

pub(crate) use broker_faults::{COORDINATOR, leader};

use crate::broker::Catalog;
use crate::clock::Clock as _;
use crate::encryption::KeyRing;
use crate::ingress::Quota;
use crate::limit::CLAIM_AHEAD;
use crate::model::{
    CommitMetadata, Lease, LeaseToken, Offset, OnDuplicate, Partition, Progress, ShardId,
    SourceIdentity, Timestamp, Watermark,
};
use crate::store::{Append, Balance, ShardStore};
use crate::testing::broker::memory::MemoryCluster;
use crate::testing::sim::clock::{EPOCH, SimClock};
use crate::testing::sim::compaction_trace::CompactionTrace;
use crate::testing::sim::duplicate_counter::DuplicateCounter;
use crate::testing::sim::faults::nats::Streams;
use crate::testing::sim::trace::TraceLine;
use crate::testing::sim::workload::{Sent, SentKind};
use crate::testing::store::memory::{MemoryStore, StoreSnapshot};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) const ROUTE: &str = "r";
pub(crate) const GROUP: &str = "sim.r";
pub(crate) const SOURCE: &str = "in";
pub(crate) const TARGET: &str = "out";
pub(crate) const DEAD: &str = "dead";
pub(crate) const ANSWERS: &str = "answers";
pub(crate) const OUTCOMES: &str = "outcomes";
pub(crate) const MARKERS: &str = "sim.r.delivered";

/// With exactly-once delivery, the target rejects larger records.
const TARGET_BYTES_MAX: usize = 160;

/// A clock may have been this far ahead.
const CLOCK_STEP_MAX: Duration = Duration::from_secs(3);

/// The payload of records in aborted transactions.
pub(crate) const ABORTED: &str = "aborted";

/// A handle; clones share the world.
#[derive(Clone)]
pub(crate) struct World(Rc<Inner>);

struct Inner {
    start: Instant,
    /// The clock of the workers. The clock of the brokers never jumps.
    clock: Rc<SimClock>,
    store_clock: Rc<SimClock>,
    cluster: MemoryCluster,
    store: MemoryStore,
    /// Snapshots of the store, each with the milliseconds since the start.
    snapshots: RefCell<VecDeque<(i64, StoreSnapshot)>>,
    trace: RefCell<Vec<TraceLine>>,
    /// Sent messages by their place in the source. The cancelled ones among them, each with the
    /// watermark behind its cancel.
    sent: RefCell<BTreeMap<(u32, i32, Offset), String>>,
    cancelled: RefCell<BTreeMap<(u32, i32, Offset), Watermark>>,
    /// Cancelled messages that may still be delivered: the cancel came in time only on the second
    /// read, or the store has lost it and no commit shows that.
    uncancelled: RefCell<BTreeSet<(u32, i32, Offset)>>,
    /// Messages that are due before it may have been claimed when the store last lost writes.
    claimed_at_loss: Cell<Timestamp>,
    /// Every cancel may be lost.
    may_lose_cancels: Cell<bool>,
    /// The end of what was stored of each partition.
    stored_to: RefCell<BTreeMap<(u32, i32), Watermark>>,
    streams: Streams,
    store_lost: Cell<bool>,
    /// The last outage of the store: its start, and its end if it is over.
    store_outage: Cell<Option<(Instant, Option<Instant>)>>,
    /// When the last fault ended, by the clock of the brokers.
    healed_at: Cell<Option<i64>>,
    duplicates_allowed: Cell<bool>,
    duplicate_counter: DuplicateCounter,
    /// Deliveries of which neither the store nor a commit may know after a loss.
    unknown_deliveries: Cell<usize>,
    /// Records that were lost with the leader of their partition, before they were acknowledged.
    unacknowledged: RefCell<BTreeSet<String>>,
    /// The commits have expired, and the deliveries are forgotten.
    starts_again: Cell<bool>,
    /// When all writes of the store were last on its disk, in milliseconds since the start.
    synced_at: Cell<i64>,
    /// A producer failed, so the outcome of its sends is unknown.
    sends_failed: Cell<bool>,
    /// A clock of a worker was set back, or differs from the others.
    clocks_differ: Cell<bool>,
    exactly_once: Cell<bool>,
    /// The keys of processes that start from now on.
    keys: RefCell<KeyRing>,
    changes_rules: Cell<bool>,
    recurring: Cell<bool>,
    outcomes: Cell<bool>,
    without_ids: Cell<bool>,
    /// The memory of each timer in bytes; `None`: the usual one.
    memory: Cell<Option<usize>>,
    real_levels: Cell<bool>,
    compaction_trace: CompactionTrace,
    /// The time that each way of a store call takes; `None`: random.
    store_delay: Cell<Option<Duration>>,
    max_delay: Cell<Duration>,
    on_duplicate: Cell<OnDuplicate>,
    /// Options of the route for late messages.
    overdue_after: Cell<Option<Duration>>,
    rate: Cell<Option<u32>>,
    catch_up_rate: Cell<Option<u32>>,
    quota: Cell<Quota>,
    /// The identity that each source partition had first.
    first_identities: RefCell<BTreeMap<Partition, Option<SourceIdentity>>>,
    /// The process that created each lease token.
    tokens: RefCell<BTreeMap<LeaseToken, usize>>,
    /// The tokens that were granted, by shard.
    tenures: RefCell<BTreeSet<(ShardId, LeaseToken)>>,
    deliveries: RefCell<Vec<SimDelivery>>,
    /// Broken promises that were observed.
    violations: RefCell<Vec<String>>,
}

/// A message that a process sent to its target.
#[derive(Clone, Debug)]
pub(crate) struct SimDelivery {
    pub(crate) uid: String,
    pub(crate) process: usize,
    /// Milliseconds since the start of the simulation, and the time by the clock of the process.
    pub(crate) at: i64,
    pub(crate) own_at: i64,
}

/// A message that arrived at the target or the dead-letter topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) uid: String,
    /// By the clock of the brokers.
    pub(crate) at: i64,
    pub(crate) is_dead: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_partitions(2)
    }

    /// Creates a world whose source has this number of partitions.
    pub(crate) fn with_partitions(partitions: i32) -> Self {
        let start = Instant::now();
        let cluster = MemoryCluster::new(SimClock::new(start));
        let store_clock = SimClock::new(start);
        let store = MemoryStore::new(store_clock.clone());
        Self::build(partitions, cluster, store, store_clock)
    }

    /// Creates a second installation: its own cluster with the same topics, but the same store and
    /// deployment name.
    pub(crate) fn with_same_store(&self, partitions: i32) -> Self {
        let cluster = MemoryCluster::with_id("second", SimClock::new(self.0.start));
        // The identity of a topic contains a number, which is different after another topic.
        cluster.create_topic("other", 1);
        let (store, store_clock) = (self.0.store.clone(), self.0.store_clock.clone());
        Self::build(partitions, cluster, store, store_clock)
    }

    fn build(
        partitions: i32,
        cluster: MemoryCluster,
        store: MemoryStore,
        store_clock: Rc<SimClock>,
    ) -> Self {
        let start = Instant::now();
        cluster.create_topic(SOURCE, partitions);
        cluster.create_topic(TARGET, 2);
        cluster.create_topic(DEAD, 1);
        cluster.create_topic(ANSWERS, 1);
        cluster.create_topic(OUTCOMES, 1);
        Self(Rc::new(Inner {
            start,
            clock: SimClock::new(start),
            store_clock,
            cluster,
            store,
            snapshots: RefCell::default(),
            trace: RefCell::default(),
            sent: RefCell::default(),
            cancelled: RefCell::default(),
            uncancelled: RefCell::default(),
            claimed_at_loss: Cell::new(Timestamp::AT_ONCE),
            may_lose_cancels: Cell::new(false),
            stored_to: RefCell::default(),
            streams: Streams::default(),
            store_lost: Cell::new(false),
            store_outage: Cell::new(None),
            healed_at: Cell::new(None),
            duplicates_allowed: Cell::new(false),
            duplicate_counter: DuplicateCounter::default(),
            unknown_deliveries: Cell::new(0),
            unacknowledged: RefCell::default(),
            starts_again: Cell::new(false),
            synced_at: Cell::new(0),
            sends_failed: Cell::new(false),
            clocks_differ: Cell::new(false),
            exactly_once: Cell::new(false),
            keys: RefCell::default(),
            changes_rules: Cell::new(false),
            recurring: Cell::new(false),
            outcomes: Cell::new(false),
            without_ids: Cell::new(false),
            memory: Cell::new(None),
            real_levels: Cell::new(false),
            compaction_trace: CompactionTrace::default(),
            store_delay: Cell::new(None),
            max_delay: Cell::new(Duration::from_secs(7 * 24 * 3_600)),
            on_duplicate: Cell::new(OnDuplicate::Replace),
            overdue_after: Cell::new(None),
            rate: Cell::new(None),
            catch_up_rate: Cell::new(None),
            quota: Cell::default(),
            first_identities: RefCell::default(),
            tokens: RefCell::default(),
            tenures: RefCell::default(),
            deliveries: RefCell::default(),
            violations: RefCell::default(),
        }))
    }

    /// Makes its processes deliver exactly once.
    pub(crate) fn with_exactly_once(self) -> Self {
        self.0.exactly_once.set(true);
        self.0
            .cluster
            .limit_record_size(TARGET, Some(TARGET_BYTES_MAX));
        self
    }

    pub(crate) fn is_exactly_once(&self) -> bool {
        self.0.exactly_once.get()
    }

    /// The keys of a process that starts now.
    pub(crate) fn keys(&self) -> KeyRing {
        self.0.keys.borrow().clone()
    }

    /// Sets the keys of the processes that start from now on.
    pub(crate) fn set_keys(&self, keys: KeyRing) {
        self.0.keys.replace(keys);
    }

    /// Gives each run of a process other routing rules.
    pub(crate) fn with_changing_rules(self) -> Self {
        self.0.changes_rules.set(true);
        self
    }

    pub(crate) fn changes_rules(&self) -> bool {
        self.0.changes_rules.get()
    }

    /// Makes its source a topic of definitions.
    pub(crate) fn with_recurring(self) -> Self {
        self.0.recurring.set(true);
        self
    }

    pub(crate) fn is_recurring(&self) -> bool {
        self.0.recurring.get()
    }

    /// Its route has an outcome topic.
    pub(crate) fn with_outcomes(self) -> Self {
        self.0.outcomes.set(true);
        self
    }

    pub(crate) fn has_outcomes(&self) -> bool {
        self.0.outcomes.get()
    }

    /// No message has an id, so no shard waits for its source.
    pub(crate) fn without_ids(self) -> Self {
        self.0.without_ids.set(true);
        self
    }

    pub(crate) fn has_ids(&self) -> bool {
        !self.0.without_ids.get()
    }

    /// Gives each timer this memory.
    pub(crate) fn with_memory(self, bytes: usize) -> Self {
        self.0.memory.set(Some(bytes));
        self
    }

    pub(crate) fn memory(&self) -> Option<usize> {
        self.0.memory.get()
    }

    /// Uses the levels of the real service, which last hours. Simulated levels last half a minute.
    pub(crate) fn with_real_levels(self) -> Self {
        self.0.real_levels.set(true);
        self
    }

    pub(crate) fn has_real_levels(&self) -> bool {
        self.0.real_levels.get()
    }

    pub(crate) fn compaction_trace(&self) -> &CompactionTrace {
        &self.0.compaction_trace
    }

    pub(crate) fn streams(&self) -> &Streams {
        &self.0.streams
    }

    pub(crate) fn clock(&self) -> Rc<SimClock> {
        self.0.clock.clone()
    }

    /// The clock of the store.
    pub(crate) fn store_clock(&self) -> Rc<SimClock> {
        self.0.store_clock.clone()
    }

    /// A clock for one process, with its own offset.
    pub(crate) fn new_clock(&self) -> Rc<SimClock> {
        SimClock::new(self.0.start)
    }

    pub(crate) fn record_token(&self, token: LeaseToken, process: usize) {
        self.0.tokens.borrow_mut().insert(token, process);
    }

    /// Two tenures of a shard must not have the same token.
    pub(crate) fn record_tenure(&self, lease: &Lease) {
        let tenure = (lease.shard.clone(), lease.token);
        if !self.0.tenures.borrow_mut().insert(tenure) {
            let shard = &lease.shard;
            self.report_violation(format!("two tenures of {shard} have the same token"));
        }
    }

    /// Records a delivery. Unless the store has lost writes, only the holder of the shard may
    /// deliver.
    pub(crate) fn record_delivery(
        &self,
        uid: String,
        partition: i32,
        (process, own_at): (usize, Timestamp),
    ) {
        let own_at = own_at.as_millis();
        self.note_message(
            &uid,
            format!(
                "process {process} delivers {uid} at {} by its clock",
                own_at - EPOCH
            ),
        );
        let holder = self.holder(partition);
        if holder.is_some_and(|holder| holder != process) && !self.store_lost_writes() {
            let what = format!(
                "process {process} delivered {uid} although {holder:?} held its shard {partition}"
            );
            self.note_message(&uid, what.clone());
            self.0.violations.borrow_mut().push(what);
        }
        self.0.deliveries.borrow_mut().push(SimDelivery {
            uid,
            process,
            at: self.elapsed(),
            own_at,
        });
    }

    pub(crate) fn report_violation(&self, what: String) {
        self.note(&what);
        self.0.violations.borrow_mut().push(what);
    }

    pub(crate) fn take_violations(&self) -> Vec<String> {
        self.0.violations.take()
    }

    pub(crate) fn deliveries(&self) -> Vec<SimDelivery> {
        self.0.deliveries.borrow().clone()
    }

    /// The process that holds the shard of a partition.
    pub(crate) fn holder(&self, partition: i32) -> Option<usize> {
        let token = self
            .0
            .store
            .lease_holder(&ShardId::new(ROUTE, Partition::new(SOURCE, partition)))?;
        self.0.tokens.borrow().get(&token).copied()
    }

    /// Applies to processes that start later.
    pub(crate) fn set_overdue(&self, overdue_after: Option<Duration>, catch_up_rate: Option<u32>) {
        self.0.overdue_after.set(overdue_after);
        self.0.catch_up_rate.set(catch_up_rate);
    }

    /// Applies to processes that start later.
    pub(crate) fn set_rate(&self, rate: Option<u32>) {
        self.0.rate.set(rate);
    }

    pub(crate) fn rate(&self) -> Option<u32> {
        self.0.rate.get()
    }

    /// Applies to processes that start later.
    pub(crate) fn set_quota(&self, quota: Quota) {
        self.0.quota.set(quota);
    }

    pub(crate) fn quota(&self) -> Quota {
        self.0.quota.get()
    }

    /// From now on, each way of a store call takes this long instead of a random time.
    pub(crate) fn set_store_delay(&self, way: Duration) {
        self.0.store_delay.set(Some(way));
    }

    pub(crate) fn store_delay(&self) -> Option<Duration> {
        self.0.store_delay.get()
    }

    pub(crate) fn overdue(&self) -> (Option<Duration>, Option<u32>) {
        (self.0.overdue_after.get(), self.0.catch_up_rate.get())
    }

    /// Applies to processes that start later.
    pub(crate) fn set_max_delay(&self, max_delay: Duration) {
        self.0.max_delay.set(max_delay);
    }

    pub(crate) fn max_delay(&self) -> Duration {
        self.0.max_delay.get()
    }

    /// Applies to processes that start later.
    pub(crate) fn set_on_duplicate(&self, on_duplicate: OnDuplicate) {
        self.0.on_duplicate.set(on_duplicate);
    }

    pub(crate) fn on_duplicate(&self) -> OnDuplicate {
        self.0.on_duplicate.get()
    }

    /// The identity that the partition had when this was called first.
    pub(crate) fn first_identity(
        &self,
        partition: &Partition,
        now: Option<SourceIdentity>,
    ) -> Option<SourceIdentity> {
        let mut identities = self.0.first_identities.borrow_mut();
        identities.entry(partition.clone()).or_insert(now).clone()
    }

    pub(crate) fn cluster(&self) -> &MemoryCluster {
        &self.0.cluster
    }

    pub(crate) fn store(&self) -> &MemoryStore {
        &self.0.store
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// Milliseconds since the start of the simulation.
    pub(crate) fn elapsed(&self) -> i64 {
        i64::try_from(self.0.start.elapsed().as_millis()).expect("it does not last that long")
    }

    /// Records a fault or an action of a process.
    pub(crate) fn note(&self, what: impl AsRef<str>) {
        tracing::info!("{} {}", self.elapsed(), what.as_ref());
        self.0.trace.borrow_mut().push(TraceLine {
            at: self.elapsed(),
            uid: None,
            what: what.as_ref().to_owned(),
        });
    }

    /// Records an event of a message.
    pub(crate) fn note_message(&self, uid: &str, what: String) {
        self.0.trace.borrow_mut().push(TraceLine {
            at: self.elapsed(),
            uid: Some(uid.to_owned()),
            what,
        });
    }

    pub(crate) fn produce(
        &self,
        partition: &Partition,
        uid: &str,
        headers: &[(&str, String)],
    ) -> Offset {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
        let parts = (Some(uid.as_bytes()), Some(uid.as_bytes()));
        self.0
            .cluster
            .produce(partition, Some(self.now()), parts, headers)
    }

    pub(crate) fn note_sent(&self, sent: &Sent) {
        let Sent {
            generation: make,
            partition,
            offset,
            uid,
            kind,
        } = sent;
        let kind = match kind {
            SentKind::Delayed { due, id: Some(id) } => format!("due at {}, as {id}", due - EPOCH),
            SentKind::Delayed { due, id: None } | SentKind::Large { due } => {
                format!("due at {}", due - EPOCH)
            }
            SentKind::Relay => "without a delay".to_owned(),
            SentKind::Refused => "invalid".to_owned(),
            SentKind::Cancel { id } => format!("cancels {id}"),
        };
        self.note_message(
            uid,
            format!("{uid} is sent to {partition}, at offset {offset}: {kind}"),
        );
        self.0
            .sent
            .borrow_mut()
            .insert((*make, *partition, *offset), uid.clone());
    }

    /// Writes a record in a transaction that is aborted.
    pub(crate) fn produce_aborted(&self, partition: &Partition) {
        self.0
            .cluster
            .produce_aborted(partition, ABORTED.as_bytes());
    }

    /// At every moment, each accepted message is settled or pending, as far as the store can know.
    pub(crate) fn check_ledgers(&self) {
        for (shard, balance) in self
            .0
            .store
            .balances_at_once()
            .into_iter()
            .filter(|(_, balance)| !balance.is_balanced())
        {
            self.report_violation(format!(
                "the ledger of {shard} does not balance: {balance:?}"
            ));
        }
    }

    /// The ledgers of all shards.
    pub(crate) fn balances(&self) -> Vec<Balance> {
        self.0
            .store
            .balances_at_once()
            .into_iter()
            .map(|(_, balance)| balance)
            .collect()
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        let of = |topic: &str, is_dead| {
            let arrived = self.0.cluster.records(topic).into_iter();
            arrived.map(move |record| Arrival {
                uid: String::from_utf8_lossy(&record.payload.unwrap_or_default()).into_owned(),
                at: record.at.as_millis(),
                is_dead,
            })
        };
        of(TARGET, false).chain(of(DEAD, true)).collect()
    }

    /// Records which messages are cancelled in a server of the store, after these appends were stored
    /// there. A cancel in a former server may be lost with it.
    pub(crate) fn note_cancelled<'a>(
        &self,
        server: &MemoryStore,
        appends: impl Iterator<Item = &'a Append>,
    ) {
        let is_former = !server.is_same_as(&self.0.store);
        let make = self.0.streams.stored_generation();
        // `true`: the append continues where the last one ended. Otherwise it may store records again.
        let mut continues: BTreeMap<i32, bool> = BTreeMap::new();
        for append in appends {
            let partition = append.shard.partition.index;
            let mut stored = self.0.stored_to.borrow_mut();
            let stored = stored.entry((make, partition)).or_insert(append.from);
            *continues.entry(partition).or_insert(!is_former) &= append.from == *stored;
            *stored = append.to.max(*stored);
        }
        for (shard, watermark, place) in server.cancelled_places() {
            let Some(continues) = continues.get(&shard.partition.index) else {
                continue;
            };
            let was_claimed = place.due <= self.0.claimed_at_loss.get();
            let place = (make, shard.partition.index, place.offset);
            let before = self.0.cancelled.borrow_mut().insert(place, watermark);
            if before.is_some() {
                continue;
            }
            let found = self.first_record(place);
            let (place, uid) = found.map_or((place, None), |(first, uid)| (first, Some(uid)));
            self.0.cancelled.borrow_mut().insert(place, watermark);
            let is_sent = |uid: &String| self.0.deliveries.borrow().iter().any(|it| it.uid == *uid);
            if !continues || uid.as_ref().is_some_and(is_sent) || was_claimed {
                self.0.uncancelled.borrow_mut().insert(place);
            }
            if let Some(uid) = uid {
                self.note_message(&uid, format!("{uid} is cancelled"));
            }
        }
    }

    /// The place and the payload of the first record of a message, which may be a retry.
    fn first_record(&self, place: (u32, i32, Offset)) -> Option<((u32, i32, Offset), String)> {
        let sent = self.0.sent.borrow();
        if let Some(uid) = sent.get(&place) {
            return Some((place, uid.clone()));
        }
        let in_source = || {
            let records = self.0.cluster.records(SOURCE);
            let mut records = records.into_iter().filter(|_| !sent.is_empty());
            let retry = records.find(|it| (it.partition, it.offset) == (place.1, place.2))?;
            String::from_utf8(retry.payload?).ok()
        };
        let uid = self.streams().deleted_payload(place).or_else(in_source)?;
        let (first, _) = sent.iter().find(|(_, it)| **it == uid)?;
        Some((*first, uid))
    }

    /// True if the store has cancelled a record at this place, even if it has forgotten that.
    pub(crate) fn was_cancelled_at(&self, partition: i32, offset: Offset) -> bool {
        let places = self.0.cancelled.borrow();
        places
            .keys()
            .any(|(_, of, at)| (*of, *at) == (partition, offset))
    }

    pub(crate) fn was_cancelled(&self, sent: &Sent) -> bool {
        self.0
            .cancelled
            .borrow()
            .contains_key(&(sent.generation, sent.partition, sent.offset))
    }

    /// True if the message must not be delivered.
    pub(crate) fn is_cancel_binding(&self, sent: &Sent) -> bool {
        let place = (sent.generation, sent.partition, sent.offset);
        self.was_cancelled(sent)
            && !self.0.may_lose_cancels.get()
            && !self.0.uncancelled.borrow().contains(&place)
    }

    /// The source does not retain all cancels, or the store was full before it had read them.
    pub(crate) fn allow_lost_cancels(&self) {
        self.0.may_lose_cancels.set(true);
    }

    /// The store is about to lose writes.
    pub(super) fn note_stored(&self) {
        let ahead = CLAIM_AHEAD + CLOCK_STEP_MAX;
        self.0.claimed_at_loss.set(self.now().plus(ahead));
        let make = self.0.streams.stored_generation();
        for (shard, watermark) in self.0.store.watermarks() {
            let mut stored = self.0.stored_to.borrow_mut();
            let stored = stored
                .entry((make, shard.partition.index))
                .or_insert(watermark);
            *stored = watermark.max(*stored);
        }
    }

    /// The store rolls back. Cancels that no commit names may be lost until they are read again.
    pub(super) fn forget_recent_cancels(&self) {
        let make = self.0.streams.stored_generation();
        for (place, watermark) in &*self.0.cancelled.borrow() {
            let partition = Partition::new(SOURCE, place.1);
            let committed = self.0.cluster.committed_offset(GROUP, &partition);
            let committed =
                committed.and_then(|(_, text)| CommitMetadata::parse(&text).ok().flatten());
            if committed.is_none_or(|it| place.0 != make || it.stored < *watermark) {
                self.0.uncancelled.borrow_mut().insert(*place);
            }
        }
    }

    /// The delivered pair in the last commit of a partition.
    pub(crate) async fn committed(&self, partition: &Partition) -> Option<Progress> {
        let committed = self
            .0
            .cluster
            .catalog()
            .committed_metadata(GROUP, std::slice::from_ref(partition))
            .await;
        let text = committed
            .expect("the memory broker answers")
            .pop()
            .flatten();
        text.and_then(|text| CommitMetadata::parse(&text).expect("a known version"))
            .map(|committed| committed.delivered)
    }

    /// The delivered pair of a partition's shard in the store.
    pub(crate) async fn delivered(&self, partition: &Partition) -> Progress {
        let shard = ShardId::new(ROUTE, partition.clone());
        let state = self
            .0
            .store
            .state(&[shard])
            .await
            .expect("the memory store answers")
            .pop()
            .flatten();
        state.expect("the shard exists").delivered
    }

    pub(crate) fn store_lost_writes(&self) -> bool {
        self.0.store_lost.get()
    }

    pub(crate) fn may_count_duplicates(&self) -> bool {
        self.may_have_duplicates() || self.0.sends_failed.get()
    }

    pub(crate) fn unknown_deliveries(&self) -> usize {
        self.0.unknown_deliveries.get()
    }

    pub(crate) fn duplicate_counter(&self) -> &DuplicateCounter {
        &self.0.duplicate_counter
    }

    pub(crate) fn may_have_duplicates(&self) -> bool {
        self.0.duplicates_allowed.get()
    }

    /// All events, in time order.
    pub(crate) fn take_trace(&self) -> Vec<TraceLine> {
        let mut trace = self.0.trace.take();
        trace.extend(
            self.arrivals()
                .into_iter()
                .map(|Arrival { uid, at, is_dead }| {
                    let what = format!(
                        "{uid} arrives{}",
                        if is_dead { ", as a dead letter" } else { "" }
                    );
                    TraceLine {
                        at: at - EPOCH,
                        uid: Some(uid),
                        what,
                    }
                }),
        );
        // The sort is stable: an action precedes an arrival of the same millisecond.
        trace.sort_by_key(|line| line.at);
        trace
    }
}
