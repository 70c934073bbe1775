//! The loader: reads runs for the dispatcher - names, runs by name, the tail of what was appended - and decodes them, on a thread and a store
//! connection of its own, so that a big run holds nothing up that is due. Keeps no state of its own, and no more in memory than one call of the
//! store brings: each reply is sent before more is asked for.

use crate::health::HealthPart;
use crate::limit::{
    FETCH_BYTES_MAX, LOADER_BATCH_MAX, STORE_RETRY_DELAY_MAX, STORE_RETRY_DELAY_MIN,
};
use crate::model::{Progress, ShardId, Slice, Timestamp, Watermark};
use crate::run::{CorruptRun, LoadedRun, RunDecoder, RunName, decoded_size};
use crate::store::{
    Error, Fetch, Lineage, List, Listed, RunEntry, ShardPosition, Store, Tail, Tailed,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What the dispatcher asks for one shard. `tag` comes back with the reply.
#[derive(Debug)]
pub(crate) struct LoadRequest {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    pub(crate) load: Load,
}

#[derive(Debug)]
pub(crate) enum Load {
    /// What was appended past `after`; runs that begin after `until` are left in the store. If nothing is `expected`, it is looked first
    /// whether there is anything, which costs the store less.
    Tail {
        after: Watermark,
        until: Timestamp,
        keep_until: Timestamp,
        limit: usize,
        hinted: bool,
    },
    /// Names of the runs that begin in `from..=until`.
    List {
        from: Timestamp,
        until: Timestamp,
        limit: usize,
    },
    /// Runs by name, as many as take no more than `bytes` of memory; of each, messages due after `keep` are left in the store, and so are those
    /// at its head that `taken` covers.
    Fetch {
        runs: Vec<(Slice, RunName)>,
        bytes: usize,
        keep_until: Timestamp,
        taken: Progress,
    },
}

#[derive(Debug)]
pub(crate) struct LoadReply {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    pub(crate) result: LoadResult,
}

#[derive(Debug)]
pub(crate) enum LoadResult {
    Tail {
        watermark: Watermark,
        seen: Watermark,
        history: Lineage,
        runs: Vec<ReadOutcome>,
    },
    /// The tail does not reach back far enough, or the store went back: everything is to be loaded again.
    TailGap {
        watermark: Watermark,
    },
    List {
        watermark: Watermark,
        history: Lineage,
        runs: Vec<RunEntry>,
        more: bool,
    },
    /// The first of the runs that were asked for; and what each of the others would take.
    Fetch {
        reads: Vec<ReadOutcome>,
        left: Vec<usize>,
    },
    UnknownShard,
}

/// One run that was asked for.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    Loaded(LoadedRun),
    Corrupt {
        slice: Slice,
        name: RunName,
        why: CorruptRun,
    },
    /// It is not there any more.
    Missing {
        slice: Slice,
        name: RunName,
    },
}

/// See the module's page.
pub(crate) struct Loader {
    pub(crate) store: Rc<dyn Store>,
    /// Those of one tick together.
    pub(crate) requests: mpsc::Receiver<Vec<LoadRequest>>,
    pub(crate) replies: mpsc::Sender<LoadReply>,
    pub(crate) health: HealthPart,
}

/// Why it serves no longer.
enum End {
    /// It was told to, or nobody waits for its replies.
    Stopped,
    Failed(Error),
}

/// What was asked of each kind, as the store is asked.
#[derive(Default)]
struct StoreCalls<'a> {
    tails: Vec<(&'a LoadRequest, Timestamp, Tail)>,
    lists: Vec<(&'a LoadRequest, List)>,
    fetches: Vec<(&'a LoadRequest, FetchBounds, Fetch)>,
}

/// What of the runs that are fetched is wanted.
#[derive(Clone, Copy)]
pub(crate) struct FetchBounds {
    pub(crate) bytes_max: usize,
    pub(crate) keep_until: Timestamp,
    pub(crate) taken: Progress,
}

impl Loader {
    /// Serves until the requests' channel is closed, or `give_up` is cancelled: a timer that hands its shards over serves them meanwhile.
    pub(crate) async fn serve(mut self, give_up: CancellationToken) -> Result<(), Error> {
        let mut decoder = RunDecoder::new();
        loop {
            // Both arms are safe to drop: what was not received stays in the channel.
            let mut batch = tokio::select! {
                biased;
                () = give_up.cancelled() => return Ok(()),
                requests = self.requests.recv() => match requests {
                    Some(requests) => requests,
                    None => return Ok(()),
                },
            };
            while batch.len() < LOADER_BATCH_MAX
                && let Ok(more) = self.requests.try_recv()
            {
                batch.extend(more);
            }
            for some in batch.chunks(LOADER_BATCH_MAX) {
                match self.serve_batch(some, &mut decoder, &give_up).await {
                    Ok(()) => {}
                    Err(End::Stopped) => return Ok(()),
                    Err(End::Failed(error)) => return Err(error),
                }
            }
        }
    }

    /// Asks the store until it answers.
    async fn retry_until_answered<T>(
        &self,
        give_up: &CancellationToken,
        ask: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, End> {
        let mut wait = STORE_RETRY_DELAY_MIN;
        loop {
            // Dropped, it has changed nothing: it only reads.
            let outcome = tokio::select! {
                biased;
                () = give_up.cancelled() => return Err(End::Stopped),
                outcome = ask() => outcome,
            };
            match outcome {
                Ok(answer) => {
                    self.health.set_ready();
                    return Ok(answer);
                }
                Err(error) if error.is_transient() => {
                    self.health
                        .set_not_ready(format!("what waits cannot be read: {error}"));
                    tokio::select! {
                        biased;
                        () = give_up.cancelled() => return Err(End::Stopped),
                        () = tokio::time::sleep(wait) => wait = (wait * 2).min(STORE_RETRY_DELAY_MAX),
                    }
                }
                Err(error) => return Err(End::Failed(error)),
            }
        }
    }

    async fn reply(&self, request: &LoadRequest, answer: LoadResult) -> Result<(), End> {
        let reply = LoadReply {
            shard: request.shard.clone(),
            tag: request.tag,
            result: answer,
        };
        self.replies.send(reply).await.map_err(|_| End::Stopped)
    }

    /// Shards whose tail nothing was appended to, among those of which nothing else is expected, with their histories.
    async fn unchanged_shards(
        &self,
        batch: &[LoadRequest],
    ) -> Result<BTreeMap<ShardId, Lineage>, Error> {
        let unexpected = batch.iter().filter_map(|request| match request.load {
            Load::Tail {
                after,
                hinted: false,
                ..
            } => Some((request.shard.clone(), after)),
            _ => None,
        });
        let (shards, afters): (Vec<_>, Vec<_>) = unexpected.unzip();
        if shards.is_empty() {
            return Ok(BTreeMap::new());
        }
        let glances = self.store.positions(&shards).await?;
        let is_quiet = |glance: &ShardPosition, after| {
            glance.watermark == after || fault!(TimerAssumesIdleShard)
        };
        let quiet = |(glance, after): (Option<ShardPosition>, Watermark)| {
            Some(glance.filter(|glance| is_quiet(glance, after))?.lineage)
        };
        let looked = shards.into_iter().zip(glances.into_iter().zip(afters));
        Ok(looked
            .filter_map(|(shard, look)| Some((shard, quiet(look)?)))
            .collect())
    }

    /// Of the requests that wait, tails go before lists: a run that is appended in between is then in the list, or past the tail's end.
    async fn serve_batch(
        &self,
        batch: &[LoadRequest],
        decoder: &mut RunDecoder,
        give_up: &CancellationToken,
    ) -> Result<(), End> {
        let quiet = self
            .retry_until_answered(give_up, || self.unchanged_shards(batch))
            .await?;
        let StoreCalls {
            tails,
            lists,
            fetches,
        } = self.store_calls(batch, &quiet).await?;
        if !tails.is_empty() {
            let calls: Vec<_> = tails.iter().map(|(.., call)| call.clone()).collect();
            let tailed = self
                .retry_until_answered(give_up, || self.store.tail(&calls))
                .await?;
            for ((request, keep, _), tailed) in tails.into_iter().zip(tailed) {
                self.reply(request, tail_result(tailed, keep, decoder))
                    .await?;
            }
        }
        if !lists.is_empty() {
            let calls: Vec<_> = lists.iter().map(|(_, call)| call.clone()).collect();
            let listed = self
                .retry_until_answered(give_up, || self.store.list(&calls))
                .await?;
            for ((request, _), listed) in lists.into_iter().zip(listed) {
                let answer = match listed {
                    Listed::Runs {
                        watermark,
                        lineage: history,
                        runs,
                        has_more: more,
                    } => LoadResult::List {
                        watermark,
                        history,
                        runs,
                        more,
                    },
                    Listed::Unknown => LoadResult::UnknownShard,
                };
                self.reply(request, answer).await?;
            }
        }
        let mut rest = &fetches[..];
        while !rest.is_empty() {
            let (some, after) = rest.split_at(fetches_per_call(rest));
            let calls: Vec<_> = some.iter().map(|(.., call)| call.clone()).collect();
            let fetched = self
                .retry_until_answered(give_up, || self.store.fetch(&calls))
                .await?;
            for ((request, wanted, call), blobs) in some.iter().zip(fetched) {
                self.reply(request, fetch_result(&call.runs, blobs, *wanted, decoder))
                    .await?;
            }
            rest = after;
        }
        Ok(())
    }

    /// What the store is to be asked; of tails that are quiet nothing, they are answered.
    async fn store_calls<'a>(
        &self,
        batch: &'a [LoadRequest],
        quiet: &BTreeMap<ShardId, Lineage>,
    ) -> Result<StoreCalls<'a>, End> {
        let mut calls = StoreCalls::default();
        for request in batch {
            let shard = request.shard.clone();
            match &request.load {
                Load::Tail {
                    after,
                    until,
                    keep_until: keep,
                    limit,
                    ..
                } => {
                    if let Some(&history) = quiet.get(&shard) {
                        let answer = LoadResult::Tail {
                            watermark: *after,
                            seen: *after,
                            history,
                            runs: Vec::new(),
                        };
                        self.reply(request, answer).await?;
                        continue;
                    }
                    calls.tails.push((
                        request,
                        *keep,
                        Tail {
                            shard,
                            after: *after,
                            until: *until,
                            limit: *limit,
                        },
                    ));
                }
                Load::List { from, until, limit } => calls.lists.push((
                    request,
                    List {
                        shard,
                        from: *from,
                        until: *until,
                        limit: *limit,
                    },
                )),
                Load::Fetch {
                    runs,
                    bytes,
                    keep_until: keep,
                    taken,
                } => {
                    let wanted = FetchBounds {
                        bytes_max: *bytes,
                        keep_until: *keep,
                        taken: *taken,
                    };
                    calls.fetches.push((
                        request,
                        wanted,
                        Fetch {
                            shard,
                            runs: runs.clone(),
                        },
                    ));
                }
            }
        }
        Ok(calls)
    }
}

/// How many of the fetches go in one call: few enough that what they bring is bounded, and one at least.
fn fetches_per_call(fetches: &[(&LoadRequest, FetchBounds, Fetch)]) -> usize {
    let mut bytes = 0;
    let fits = fetches.iter().take_while(|(_, wanted, _)| {
        let fits = bytes == 0 || bytes + wanted.bytes_max <= FETCH_BYTES_MAX;
        bytes += wanted.bytes_max;
        fits
    });
    fits.count()
}

fn tail_result(tailed: Tailed, keep: Timestamp, decoder: &mut RunDecoder) -> LoadResult {
    match tailed {
        Tailed::Runs {
            watermark,
            complete_to: seen,
            lineage: history,
            runs,
        } => {
            let wanted = runs
                .into_iter()
                .filter_map(|run| run.bytes.map(|bytes| (run.entry, bytes)));
            let reads = wanted.map(|(RunEntry { slice, name, .. }, bytes)| {
                decode_run(slice, &name, Some(&bytes), (keep, Progress::START), decoder)
            });
            LoadResult::Tail {
                watermark,
                seen,
                history,
                runs: reads.collect(),
            }
        }
        Tailed::OutOfRange { watermark } => LoadResult::TailGap { watermark },
        Tailed::Unknown => LoadResult::UnknownShard,
    }
}

/// Decodes as many of the runs as fit into the bytes that are kept for them.
pub(crate) fn fetch_result(
    runs: &[(Slice, RunName)],
    blobs: Vec<Option<Bytes>>,
    wanted: FetchBounds,
    decoder: &mut RunDecoder,
) -> LoadResult {
    let (mut reads, mut left, mut held) = (Vec::new(), Vec::new(), 0);
    for ((slice, name), blob) in runs.iter().zip(blobs) {
        let size = blob.as_ref().map_or(0, |bytes| decoded_size(bytes));
        if !left.is_empty() || held + size > wanted.bytes_max {
            left.push(size);
            continue;
        }
        held += size;
        reads.push(decode_run(
            *slice,
            name,
            blob.as_ref(),
            (wanted.keep_until, wanted.taken),
            decoder,
        ));
    }
    LoadResult::Fetch { reads, left }
}

pub(crate) fn decode_run(
    slice: Slice,
    name: &RunName,
    bytes: Option<&Bytes>,
    (keep, taken): (Timestamp, Progress),
    decoder: &mut RunDecoder,
) -> ReadOutcome {
    let Some(bytes) = bytes else {
        return ReadOutcome::Missing {
            slice,
            name: name.clone(),
        };
    };
    match decoder.decode(name.clone(), slice, bytes) {
        Ok(mut run) => {
            run.drop_after(keep);
            run.drop_leading(|place| taken.covers(place));
            ReadOutcome::Loaded(run)
        }
        Err(why) => ReadOutcome::Corrupt {
            slice,
            name: name.clone(),
            why,
        },
    }
}
