//! Reads runs from the store for the dispatcher, and decodes them.
//!
//! The loader has its own thread and store connection, so that a large run never delays messages
//! that are due. It serves each part of the store on its own, so a part that does not answer delays
//! no other part. It sends each reply before the next store call of the part, so it holds the result
//! of one call per part at most.

use crate::encryption::KeyRing;
use crate::health::HealthPart;
use crate::limit::LOADER_BATCH_MAX;
use crate::model::{Pause, Progress, ShardId, Slice, Timestamp, Watermark};
use crate::retry::{PartReadiness, PartsReadiness, until_store_answers};
use crate::run::{LoadedRun, RunDecoder, RunError, RunName, decoded_size};
use crate::store::{
    Error, Fetch, Hold, Lineage, List, Listed, RunEntry, Store, StorePart, Tail, Tailed,
};
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A request of the dispatcher. The reply carries the same `tag`.
#[derive(Debug)]
pub(crate) struct LoadRequest {
    pub(crate) tag: u64,
    pub(crate) load: Load,
}

/// The data to read for one shard.
#[derive(Debug)]
pub(crate) enum Load {
    Tail(TailLoad),
    List(List),
    Fetch(FetchLoad),
}

impl Load {
    fn shard(&self) -> &ShardId {
        match self {
            Self::Tail(tail) => &tail.call.shard,
            Self::List(list) => &list.shard,
            Self::Fetch(fetch) => &fetch.call.shard,
        }
    }
}

#[derive(Debug)]
pub(crate) struct TailLoad {
    pub(crate) call: Tail,
    /// Messages that are due later are not kept.
    pub(crate) keep_until: Timestamp,
    /// If false, the loader first makes a position check, which costs the store less (benchmark
    /// `idle`).
    pub(crate) hinted: bool,
}

#[derive(Debug)]
pub(crate) struct FetchLoad {
    pub(crate) call: Fetch,
    /// Runs that need more bytes of memory together are left out.
    pub(crate) bytes_max: usize,
    /// Messages that are due later are not kept.
    pub(crate) keep_until: Timestamp,
    /// Leading messages that this pair covers are not kept.
    pub(crate) taken: Progress,
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
        /// The runs cover all offsets before this one.
        complete_to: Watermark,
        lineage: Lineage,
        /// `None`: the same as before.
        hold: Option<Hold>,
        /// `None`: the same as before, or never paused.
        pause: Option<Pause>,
        runs: Vec<ReadOutcome>,
    },
    /// The tail does not reach back far enough, or the store was rolled back: load all again.
    TailGap {
        watermark: Watermark,
    },
    List(Listed),
    Fetch {
        /// The first of the requested runs.
        reads: Vec<ReadOutcome>,
        /// The memory in bytes that each of the other runs would take.
        left: Vec<usize>,
        /// The first of the other runs, if this process cannot read it, and it is not damaged.
        newer: Option<BlockedRun>,
    },
    /// The tail has a run that this process cannot read, and that is not damaged.
    BlockedTail(BlockedRun),
    UnknownShard,
}

#[derive(Debug)]
pub(crate) enum ReadOutcome {
    Loaded(LoadedRun),
    Corrupt {
        slice: Slice,
        name: RunName,
        why: RunError,
    },
    /// The run is no longer in the store.
    Missing(RunName),
}

/// A run that a newer version wrote, or whose key is missing. The shard waits in front of it.
#[derive(Debug)]
pub(crate) struct BlockedRun {
    pub(crate) name: RunName,
    pub(crate) why: RunError,
}

pub(crate) struct Loader {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) keys: KeyRing,
    /// Each message holds the requests of one tick.
    pub(crate) requests: mpsc::Receiver<Vec<LoadRequest>>,
    pub(crate) replies: mpsc::Sender<LoadReply>,
    pub(crate) health: HealthPart,
    /// Bytes of memory for the runs of the calls that run, as far as known in advance.
    pub(crate) fetch_bytes_max: usize,
    /// Ends the loop. A timer that hands its shards over still needs its loader.
    pub(crate) give_up: CancellationToken,
}

impl Loader {
    /// Serves until the request channel is closed or `give_up` is cancelled.
    pub(crate) async fn serve(self) -> Result<(), Error> {
        let Self {
            store,
            keys,
            mut requests,
            replies,
            health,
            fetch_bytes_max,
            give_up,
        } = self;
        let readiness = PartsReadiness::new(health);
        // A shard has one request at a time, so the number of shards bounds the waiting requests.
        let mut parts: BTreeMap<StorePart, PartQueue> = BTreeMap::new();
        let mut running = FuturesUnordered::new();
        loop {
            let count = parts.len().max(1);
            for (part, queue) in &mut parts {
                if fault!(LoadFromOnePartAtATime) && !running.is_empty() {
                    break;
                }
                let idle = queue.loader.take_if(|_| !queue.waiting.is_empty());
                let Some(loader) = idle else { continue };
                let size = queue.waiting.len().min(LOADER_BATCH_MAX);
                let batch: Vec<_> = queue.waiting.drain(..size).collect();
                let part = *part;
                running.push(async move {
                    let mut loader = loader;
                    let served = loader.serve_batch(&batch, fetch_bytes_max / count).await;
                    (part, loader, served)
                });
            }
            // Safe to drop: a request that was not received stays in the channel.
            tokio::select! {
                biased;
                () = give_up.cancelled() => return Ok(()),
                Some((part, loader, served)) = running.next() => {
                    served?;
                    if let Some(queue) = parts.get_mut(&part) {
                        queue.loader = Some(loader);
                    }
                }
                batch = requests.recv() => {
                    let Some(batch) = batch else { return Ok(()) };
                    for request in batch {
                        let part = store.part_of(request.load.shard());
                        let new = || PartQueue {
                            waiting: Vec::new(),
                            loader: Some(PartLoader {
                                store: store.clone(),
                                decoder: RunDecoder::new(keys.clone()),
                                replies: replies.clone(),
                                readiness: readiness.of(part),
                                give_up: give_up.clone(),
                            }),
                        };
                        parts.entry(part).or_insert_with(new).waiting.push(request);
                    }
                }
            }
        }
    }
}

/// The requests for the shards of one part of the store.
struct PartQueue {
    waiting: Vec<LoadRequest>,
    /// `None`: it serves a batch.
    loader: Option<PartLoader>,
}

/// Serves the requests for one part of the store, one batch at a time.
struct PartLoader {
    store: Rc<dyn Store>,
    decoder: RunDecoder,
    replies: mpsc::Sender<LoadReply>,
    readiness: PartReadiness,
    give_up: CancellationToken,
}

impl PartLoader {
    /// Serves tails before lists. A run that is appended in between is then in the list, or after
    /// the tail's end.
    async fn serve_batch(&mut self, batch: &[LoadRequest], bytes_max: usize) -> Result<(), Error> {
        let (mut tails, mut lists, mut fetches) = (Vec::new(), Vec::new(), Vec::new());
        for LoadRequest { tag, load } in batch {
            match load {
                Load::Tail(tail) => tails.push((*tag, tail)),
                Load::List(list) => lists.push((*tag, list)),
                Load::Fetch(fetch) => fetches.push((*tag, fetch)),
            }
        }
        self.load_tails(tails, bytes_max).await?;
        self.load_lists(lists).await?;
        self.load_runs(&fetches, bytes_max).await
    }

    async fn load_tails(
        &mut self,
        tails: Vec<(u64, &TailLoad)>,
        bytes_max: usize,
    ) -> Result<(), Error> {
        let (mut tails, unhinted): (Vec<_>, Vec<_>) =
            tails.into_iter().partition(|(_, tail)| tail.hinted);
        tails.extend(self.changed_tails(unhinted).await?);
        let mut tails = &tails[..];
        while !tails.is_empty() {
            let sizes = tails.iter().map(|(_, tail)| tail.call.bytes_max);
            let (part, rest) = tails.split_at(loads_per_call(sizes, bytes_max));
            let calls: Vec<_> = part.iter().map(|(_, tail)| tail.call.clone()).collect();
            let answers = self.ask(&calls, async |calls| self.store.tail(calls).await);
            for ((tag, tail), answer) in part.iter().zip(answers.await?) {
                let result = tail_result(answer, tail, &mut self.decoder);
                self.reply(&tail.call.shard, *tag, result).await;
            }
            tails = rest;
        }
        Ok(())
    }

    /// Makes a position check. Replies for the shards without new messages, and returns the others.
    async fn changed_tails<'a>(
        &self,
        tails: Vec<(u64, &'a TailLoad)>,
    ) -> Result<Vec<(u64, &'a TailLoad)>, Error> {
        let shards: Vec<_> = tails
            .iter()
            .map(|(_, tail)| tail.call.shard.clone())
            .collect();
        let positions = self.ask(&shards, async |shards| self.store.positions(shards).await);
        let mut changed = Vec::new();
        for ((tag, tail), position) in tails.into_iter().zip(positions.await?) {
            let after = tail.call.after;
            let unchanged = position
                .filter(|position| position.watermark == after || fault!(TimerAssumesIdleShard));
            let Some(position) = unchanged else {
                changed.push((tag, tail));
                continue;
            };
            let result = LoadResult::Tail {
                watermark: after,
                complete_to: after,
                lineage: position.lineage,
                hold: None,
                pause: None,
                runs: Vec::new(),
            };
            self.reply(&tail.call.shard, tag, result).await;
        }
        Ok(changed)
    }

    async fn load_lists(&self, lists: Vec<(u64, &List)>) -> Result<(), Error> {
        let calls: Vec<_> = lists.iter().map(|(_, list)| (*list).clone()).collect();
        let answers = self.ask(&calls, async |calls| self.store.list(calls).await);
        for ((tag, list), answer) in lists.into_iter().zip(answers.await?) {
            self.reply(&list.shard, tag, LoadResult::List(answer)).await;
        }
        Ok(())
    }

    async fn load_runs(
        &mut self,
        mut fetches: &[(u64, &FetchLoad)],
        bytes_max: usize,
    ) -> Result<(), Error> {
        while !fetches.is_empty() {
            let sizes = fetches.iter().map(|(_, fetch)| fetch.bytes_max);
            let (part, rest) = fetches.split_at(loads_per_call(sizes, bytes_max));
            let calls: Vec<_> = part.iter().map(|(_, fetch)| fetch.call.clone()).collect();
            let answers = self.ask(&calls, async |calls| self.store.fetch(calls).await);
            for ((tag, fetch), blobs) in part.iter().zip(answers.await?) {
                let result = fetch_result(fetch, blobs, &mut self.decoder);
                self.reply(&fetch.call.shard, *tag, result).await;
            }
            fetches = rest;
        }
        Ok(())
    }

    /// Makes a store call, and repeats it until the store answers. Safe, because the loader only
    /// reads. Returns no answers if there are no calls, or if the loader gives up.
    async fn ask<C, T>(
        &self,
        calls: &[C],
        call: impl AsyncFn(&[C]) -> Result<Vec<T>, Error>,
    ) -> Result<Vec<T>, Error> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let consequence = "stored messages cannot be read";
        let call = async || call(calls).await;
        let answers =
            until_store_answers(&self.readiness, consequence, &self.give_up, call).await?;
        Ok(answers.unwrap_or_default())
    }

    /// Without a receiver the request channel is closed, too, which ends the loop.
    async fn reply(&self, shard: &ShardId, tag: u64, result: LoadResult) {
        let shard = shard.clone();
        _ = self.replies.send(LoadReply { shard, tag, result }).await;
    }
}

/// The number of loads of these sizes to send in one call: at least one, and as many as fit.
fn loads_per_call(sizes: impl Iterator<Item = usize>, bytes_max: usize) -> usize {
    let mut bytes = 0_usize;
    let fits = |size: &usize| {
        bytes = bytes.saturating_add(*size);
        bytes <= bytes_max
    };
    sizes.take_while(fits).count().max(1)
}

fn tail_result(answer: Tailed, tail: &TailLoad, decoder: &mut RunDecoder) -> LoadResult {
    let (shard, keep_until) = (&tail.call.shard, tail.keep_until);
    match answer {
        Tailed::Runs {
            watermark,
            complete_to,
            lineage,
            hold,
            pause,
            runs,
        } => {
            let mut reads = Vec::new();
            for run in runs {
                let Some(bytes) = run.bytes else { continue };
                let RunEntry { slice, name, .. } = run.entry;
                let run = StoredRun {
                    shard,
                    slice,
                    name: &name,
                    bytes: &bytes,
                };
                match decode_run(run, keep_until, Progress::START, decoder) {
                    Ok(read) => reads.push(read),
                    Err(newer) => return LoadResult::BlockedTail(newer),
                }
            }
            LoadResult::Tail {
                watermark,
                complete_to,
                lineage,
                hold: Some(hold),
                pause,
                runs: reads,
            }
        }
        Tailed::OutOfRange { watermark } => LoadResult::TailGap { watermark },
        Tailed::Unknown => LoadResult::UnknownShard,
    }
}

/// Decodes as many of the runs as fit into `bytes_max`, up to one for which the shard must wait.
pub(crate) fn fetch_result(
    fetch: &FetchLoad,
    blobs: Vec<Option<Bytes>>,
    decoder: &mut RunDecoder,
) -> LoadResult {
    let mut reads = Vec::new();
    let mut left = Vec::new();
    let mut newer = None;
    let mut used = 0;
    for ((slice, name), blob) in fetch.call.runs.iter().zip(blobs) {
        let size = blob.as_ref().map_or(0, |bytes| decoded_size(bytes));
        if !left.is_empty() || used + size > fetch.bytes_max {
            left.push(size);
            continue;
        }
        let read = match blob {
            Some(bytes) => {
                let run = StoredRun {
                    shard: &fetch.call.shard,
                    slice: *slice,
                    name,
                    bytes: &bytes,
                };
                decode_run(run, fetch.keep_until, fetch.taken, decoder)
            }
            None => Ok(ReadOutcome::Missing(name.clone())),
        };
        match read {
            Ok(read) => {
                used += size;
                reads.push(read);
            }
            Err(run) => {
                left.push(size);
                newer = Some(run);
            }
        }
    }
    LoadResult::Fetch { reads, left, newer }
}

/// The bytes of a run, and where they are stored.
#[derive(Clone, Copy)]
pub(crate) struct StoredRun<'a> {
    pub(crate) shard: &'a ShardId,
    pub(crate) slice: Slice,
    pub(crate) name: &'a RunName,
    pub(crate) bytes: &'a Bytes,
}

pub(crate) fn decode_run(
    run: StoredRun<'_>,
    keep_until: Timestamp,
    taken: Progress,
    decoder: &mut RunDecoder,
) -> Result<ReadOutcome, BlockedRun> {
    let (slice, name) = (run.slice, run.name.clone());
    match decoder.decode(run.shard, name.clone(), slice, run.bytes) {
        Ok(mut run) => {
            run.drop_after(keep_until);
            run.drop_leading(|place| taken.covers(place));
            Ok(ReadOutcome::Loaded(run))
        }
        Err(why) if why.is_undamaged() => Err(BlockedRun { name, why }),
        Err(why) => Ok(ReadOutcome::Corrupt { slice, name, why }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Level, Offset};
    use crate::run::RunEncoder;
    use crate::run::test_messages::shard;
    use crate::store::TailRun;

    #[test]
    fn a_tail_with_a_run_of_a_newer_version_is_not_read() {
        let place = Cursor::new(Timestamp::AT_ONCE, Offset(1));
        let (_, bytes) = RunEncoder::new().encode([(place, &b""[..])].into_iter());
        let result = |version: u8| {
            let mut bytes = bytes.to_vec();
            bytes[4] = version;
            let entry = RunEntry {
                slice: Slice {
                    level: Level::Now,
                    start: 0,
                },
                name: RunName::new("1-1-1-1"),
                least_due: place.due,
            };
            let tail = Tailed::Runs {
                watermark: Watermark(2),
                complete_to: Watermark(2),
                lineage: Lineage::default(),
                hold: Hold::NoIds,
                pause: None,
                runs: vec![TailRun {
                    entry,
                    bytes: Some(bytes.into()),
                }],
            };
            let request = TailLoad {
                call: Tail {
                    shard: shard(),
                    after: Watermark(1),
                    until: Timestamp::MAX,
                    limit: 1,
                    bytes_max: 1,
                },
                keep_until: Timestamp::MAX,
                hinted: true,
            };
            tail_result(tail, &request, &mut RunDecoder::plain())
        };
        assert!(matches!(&result(1), LoadResult::Tail { runs, .. }
            if matches!(runs[..], [ReadOutcome::Loaded(_)])));
        assert!(matches!(result(3), LoadResult::BlockedTail(_)));
    }
}
