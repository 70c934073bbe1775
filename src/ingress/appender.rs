//! The appender: stores the batches of one ingress, several in one call, and reports each result.
//! It runs on a thread of its own, so that reading and encoding continue while the store answers.

use crate::health::HealthPart;
use crate::limit::{APPEND_QUEUE_MAX, APPENDS_PER_PIPELINE_MAX};
use crate::model::{Hint, ShardId, Watermark};
use crate::retry::until_store_answers;
use crate::store::{Append, Appended, Error, Store};
use crate::trace::BatchLinks;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) struct AppendJob {
    pub(crate) append: Append,
    pub(crate) links: BatchLinks,
}

impl AppendJob {
    /// Bytes of the runs.
    pub(super) fn bytes(&self) -> usize {
        self.append.runs.iter().map(|run| run.bytes.len()).sum()
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
    /// The store refused the last append, because it is full.
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
}

impl Appender {
    /// Stores appends until the ingress closes its channel or `give_up` is cancelled. Retries until
    /// the store answers; a repeated append is recognised by its watermark (I2).
    pub(crate) async fn serve(mut self, give_up: CancellationToken) -> Result<(), Error> {
        let mut jobs = VecDeque::new();
        loop {
            if jobs.is_empty() {
                let Some(job) = self.inbox.jobs.recv().await else {
                    break;
                };
                jobs.push_back(job);
            }
            while jobs.len() < APPENDS_PER_PIPELINE_MAX
                && let Ok(job) = self.inbox.jobs.try_recv()
            {
                jobs.push_back(job);
            }
            let count = jobs_per_call(&jobs, self.call_bytes_max);
            let sizes: Vec<_> = jobs.iter().take(count).map(AppendJob::bytes).collect();
            let (appends, links): (Vec<_>, Vec<_>) = jobs
                .drain(..count)
                .map(|job| (job.append, job.links))
                .unzip();
            // Dropping an append is safe: the next reader continues at the store's watermark.
            let append = async || {
                let outcome = self.store.append(&appends).await;
                let is_full = matches!(outcome, Err(Error::Full));
                self.inbox.is_full.store(is_full, Ordering::Relaxed);
                outcome
            };
            let consequence = "cannot store new messages";
            let outcomes = until_store_answers(&self.health, consequence, &give_up, append).await?;
            let Some(outcomes) = outcomes else { break };
            let answered = appends.into_iter().zip(links).zip(sizes).zip(outcomes);
            for (((append, links), bytes), outcome) in answered {
                if matches!(outcome, Appended::Done { .. }) {
                    self.send_hints(&append);
                }
                let messages = append.runs.iter().map(|run| u64::from(run.summary.count));
                let result = AppendResult {
                    messages: messages.sum(),
                    bytes,
                    shard: append.shard,
                    epoch: append.epoch.number,
                    offsets: append.from..append.to,
                    outcome,
                    links,
                };
                if self.inbox.results.send(result).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
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

/// The number of jobs whose runs fit into one call: at least one.
fn jobs_per_call(jobs: &VecDeque<AppendJob>, bytes_max: usize) -> usize {
    let mut bytes = 0;
    let fits = |job: &&AppendJob| {
        bytes += job.bytes();
        bytes <= bytes_max
    };
    jobs.iter().take_while(fits).count().max(1)
}
