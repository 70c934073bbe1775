//! The appender: stores the batches of one ingress, several in one call, and reports each result.
//! The appenders of all routes share a thread, so that reading and encoding continue while the store
//! answers.

use crate::health::HealthPart;
use crate::limit::{APPEND_QUEUE_MAX, APPENDS_PER_PIPELINE_MAX};
use crate::model::{Effect, Hint, OriginFormat, OutcomeDraft, ShardId, Watermark};
use crate::outcomes::OutcomeTopic;
use crate::retry::{PartsReadiness, until_store_answers};
use crate::store::{Append, Appended, Error, Store, StorePart, ToldEffect};
use crate::trace::BatchLinks;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) struct AppendJob {
    pub(crate) append: Append,
    pub(crate) links: BatchLinks,
    /// In offset order. Empty if the route has no outcome topic.
    pub(crate) drafts: Vec<OutcomeDraft>,
}

impl AppendJob {
    pub(super) fn messages(&self) -> u64 {
        run_messages(&self.append)
    }

    /// Bytes of the runs.
    pub(super) fn bytes(&self) -> usize {
        run_bytes(&self.append)
    }

    /// Bytes of the runs and the drafts.
    pub(super) fn memory(&self) -> usize {
        let heap = self.drafts.iter().map(OutcomeDraft::heap_bytes);
        self.bytes() + size_of_val(&*self.drafts) + heap.sum::<usize>()
    }
}

pub(crate) struct AppendResult {
    pub(crate) shard: ShardId,
    /// The reading that the records are from.
    pub(crate) epoch: u64,
    /// The offsets that the append covered.
    pub(crate) offsets: Range<Watermark>,
    pub(crate) messages: u64,
    /// As [`AppendJob::bytes`].
    pub(crate) bytes: usize,
    /// As [`AppendJob::memory`].
    pub(crate) memory: usize,
    pub(crate) outcome: Appended,
    pub(crate) links: BatchLinks,
}

pub(crate) struct AppenderHandle {
    pub(crate) jobs: mpsc::Sender<AppendJob>,
    pub(crate) results: mpsc::Receiver<AppendResult>,
    pub(super) is_full: Arc<AtomicBool>,
}

pub(crate) struct AppenderInbox {
    jobs: mpsc::Receiver<AppendJob>,
    results: mpsc::Sender<AppendResult>,
    /// A part of the store refused its last append, because it is full.
    is_full: Arc<AtomicBool>,
}

pub(crate) fn appender_channels() -> (AppenderHandle, AppenderInbox) {
    let (jobs, jobs_in) = mpsc::channel(APPEND_QUEUE_MAX);
    let (results_out, results) = mpsc::channel(APPEND_QUEUE_MAX);
    let is_full = Arc::new(AtomicBool::new(false));
    let inbox = AppenderInbox {
        jobs: jobs_in,
        results: results_out,
        is_full: is_full.clone(),
    };
    let handle = AppenderHandle {
        jobs,
        results,
        is_full,
    };
    (handle, inbox)
}

pub(crate) struct Appender {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) inbox: AppenderInbox,
    /// Receivers of hints: the timer of this process, and other processes. A hint for a full queue
    /// is dropped; the timer then finds the messages with its next regular poll.
    pub(crate) hints: Vec<mpsc::Sender<Hint>>,
    pub(crate) health: HealthPart,
    /// Bytes of the runs in one call. One append may exceed it.
    pub(crate) call_bytes_max: usize,
    /// Gets the records of stored messages and changes.
    pub(crate) outcomes: Option<OutcomeTopic>,
}

impl Appender {
    /// Stores appends until the ingress closes its channel or `give_up` is cancelled. In each part of
    /// the store, one call runs at a time, so a part that does not answer delays no other part.
    pub(crate) async fn serve(self, give_up: CancellationToken) -> Result<(), Error> {
        let AppenderInbox {
            mut jobs,
            results,
            is_full,
        } = self.inbox;
        let calls = AppendCalls {
            store: self.store,
            hints: self.hints,
            readiness: PartsReadiness::new(self.health),
            full: RefCell::default(),
            is_full,
            outcomes: self.outcomes,
            give_up,
        };
        let mut queues = PartQueues::default();
        let mut running = FuturesUnordered::new();
        let mut is_open = true;
        while is_open || !queues.are_idle() {
            for (part, queue) in &mut queues.0 {
                if fault!(AppendInOnePartAtATime) && !running.is_empty() {
                    break;
                }
                if let Some(jobs) = queue.next_call(self.call_bytes_max) {
                    running.push(calls.append(*part, jobs));
                }
            }
            // Safe to drop: a job that was not received stays in the channel, and a call in `running`.
            tokio::select! {
                biased;
                Some((part, stored)) = running.next() => {
                    queues.0.entry(part).or_default().is_busy = false;
                    let Some(stored) = stored? else { break };
                    for result in stored {
                        if results.send(result).await.is_err() {
                            return Ok(());
                        }
                    }
                }
                job = jobs.recv(), if is_open && queues.have_room() => {
                    is_open = job.is_some();
                    let mut next = job;
                    while let Some(job) = next {
                        let part = calls.store.part_of(&job.append.shard);
                        queues.0.entry(part).or_default().waiting.push_back(job);
                        next = if queues.have_room() { jobs.try_recv().ok() } else { None };
                    }
                }
            }
        }
        Ok(())
    }
}

/// The jobs of each part of the store. The ingress bounds them: each shard has few appends in flight,
/// and all bytes count against the budget of the ingress.
#[derive(Default)]
struct PartQueues(BTreeMap<StorePart, PartQueue>);

impl PartQueues {
    fn are_idle(&self) -> bool {
        let mut queues = self.0.values();
        queues.all(|queue| !queue.is_busy && queue.waiting.is_empty())
    }

    /// While no part has room, batches grow at the ingress. The jobs of a part that does not answer
    /// do not count.
    fn have_room(&self) -> bool {
        let least = self.0.values().map(|queue| queue.waiting.len()).min();
        least.is_none_or(|least| least < APPENDS_PER_PIPELINE_MAX)
    }
}

#[derive(Default)]
struct PartQueue {
    waiting: VecDeque<AppendJob>,
    is_busy: bool,
}

impl PartQueue {
    /// The jobs of the next call: at least one, and not more than its limits. `None`: a call runs, or
    /// nothing waits.
    fn next_call(&mut self, bytes_max: usize) -> Option<Vec<AppendJob>> {
        if self.is_busy || self.waiting.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let fits = |job: &&AppendJob| {
            bytes += job.bytes();
            bytes <= bytes_max
        };
        let waiting = self.waiting.iter().take(APPENDS_PER_PIPELINE_MAX);
        let count = waiting.take_while(fits).count().max(1);
        self.is_busy = true;
        Some(self.waiting.drain(..count).collect())
    }
}

struct AppendCalls {
    store: Rc<dyn Store>,
    hints: Vec<mpsc::Sender<Hint>>,
    readiness: PartsReadiness,
    /// The parts that refused their last append, because they are full.
    full: RefCell<BTreeSet<StorePart>>,
    is_full: Arc<AtomicBool>,
    outcomes: Option<OutcomeTopic>,
    give_up: CancellationToken,
}

impl AppendCalls {
    /// Makes a call, and repeats it until the part answers. A repeated append is recognised by its
    /// watermark (I2). `None`: the appender gives up.
    async fn append(
        &self,
        part: StorePart,
        jobs: Vec<AppendJob>,
    ) -> (StorePart, Result<Option<Vec<AppendResult>>, Error>) {
        let split = |job: AppendJob| {
            let memory = job.memory();
            (job.append, (job.links, job.drafts, memory))
        };
        let (appends, rests): (Vec<_>, Vec<_>) = jobs.into_iter().map(split).unzip();
        // Dropping an append is safe: the next reader continues at the store's watermark.
        let append = async || {
            let outcome = self.store.append(&appends).await;
            self.note_full(part, matches!(outcome, Err(Error::Full)));
            outcome
        };
        let (readiness, consequence) = (self.readiness.of(part), "cannot store new messages");
        let answer = until_store_answers(&readiness, consequence, &self.give_up, append).await;
        let results = answer.map(|outcomes| {
            let answered = outcomes.map(|outcomes| appends.into_iter().zip(rests).zip(outcomes));
            let results = answered?.map(|((append, (links, drafts, memory)), outcome)| {
                self.tell_outcomes(&append, &drafts, &outcome);
                self.result(append, links, memory, outcome)
            });
            Some(results.collect())
        });
        (part, results)
    }

    fn note_full(&self, part: StorePart, is_full: bool) {
        let mut full = self.full.borrow_mut();
        if is_full {
            full.insert(part);
        } else {
            full.remove(&part);
        }
        self.is_full.store(!full.is_empty(), Ordering::Relaxed);
    }

    fn result(
        &self,
        append: Append,
        links: BatchLinks,
        memory: usize,
        outcome: Appended,
    ) -> AppendResult {
        if matches!(outcome, Appended::Done { .. }) {
            self.send_hints(&append);
        }
        AppendResult {
            messages: run_messages(&append),
            bytes: run_bytes(&append),
            memory,
            shard: append.shard,
            epoch: append.epoch.number,
            offsets: append.from..append.to,
            outcome,
            links,
        }
    }

    /// Sends the records of the drafts of a stored append, with the effects that the store has told.
    fn tell_outcomes(&self, append: &Append, drafts: &[OutcomeDraft], outcome: &Appended) {
        let Some(topic) = self.outcomes.as_ref().filter(|_| !drafts.is_empty()) else {
            return;
        };
        let told = match outcome {
            Appended::Done { told, .. } => told,
            // It is stored, and the answer with the effects is lost.
            Appended::WatermarkMismatch(watermark) if *watermark == append.to => {
                return topic.lose(drafts.len(), "the store did not answer in time");
            }
            // Its records are read again.
            Appended::WatermarkMismatch(_) | Appended::Unknown => return,
        };
        let origins = OriginFormat::new(topic.deployment(), &append.shard);
        let partition = append.shard.partition.index;
        for draft in drafts {
            let effect = effect_of(draft, told);
            for record in draft
                .records(effect, partition, &origins)
                .into_iter()
                .flatten()
            {
                topic.send(record);
            }
        }
    }

    fn send_hints(&self, append: &Append) {
        let Some(least_due) = append.runs.iter().map(|run| run.summary.least_due()).min() else {
            return;
        };
        for hints in &self.hints {
            let _full_queue = hints.try_send(Hint {
                shard: append.shard.clone(),
                least_due,
            });
        }
    }
}

/// `told` is in the order of the changes.
fn effect_of(draft: &OutcomeDraft, told: &[ToldEffect]) -> Effect {
    let found = |change| told.binary_search_by_key(&change, |it| it.change).ok();
    match draft.change.and_then(found) {
        Some(at) => draft.effect(told[at].named, told[at].is_changed),
        None => Effect::None,
    }
}

fn run_messages(append: &Append) -> u64 {
    let counts = append.runs.iter().map(|run| u64::from(run.summary.count));
    counts.sum()
}

fn run_bytes(append: &Append) -> usize {
    append.runs.iter().map(|run| run.bytes.len()).sum()
}
