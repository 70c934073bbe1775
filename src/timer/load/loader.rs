//! Reads runs from the store for the dispatcher, and decodes them.
//!
//! The loader has its own thread and store connection, so that a large run never delays messages
//! that are due. It keeps no state. It sends each reply before the next store call, so it holds the
//! result of one call at most.

use crate::health::HealthPart;
use crate::limit::{FETCH_BYTES_MAX, LOADER_BATCH_MAX};
use crate::model::{Progress, ShardId, Slice, Timestamp, Watermark};
use crate::retry::until_store_answers;
use crate::run::{CorruptRun, LoadedRun, RunDecoder, RunName, decoded_size};
use crate::store::{Error, Fetch, Lineage, List, Listed, RunEntry, Store, Tail, Tailed};
use bytes::Bytes;
use std::rc::Rc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A request of the dispatcher for one shard. The reply carries the same `tag`.
#[derive(Debug)]
pub(crate) struct LoadRequest {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    pub(crate) load: Load,
}

/// The data to read.
#[derive(Debug)]
pub(crate) enum Load {
    /// The runs that were appended after `after`. Runs that begin after `until` stay in the store.
    /// Unless `hinted`, the loader first makes a position check, which costs the store less.
    Tail {
        after: Watermark,
        until: Timestamp,
        keep_until: Timestamp,
        limit: usize,
        hinted: bool,
    },
    /// The names of the runs that begin in `from..=until`.
    List {
        from: Timestamp,
        until: Timestamp,
        limit: usize,
    },
    /// Runs by name, as many as fit into `bytes` of memory. Messages due after `keep_until` are not
    /// kept, nor are leading messages that `taken` covers.
    Fetch {
        runs: Vec<(Slice, RunName)>,
        bytes: usize,
        keep_until: Timestamp,
        taken: Progress,
    },
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct LoadReply {
    pub(crate) shard: ShardId,
    pub(crate) tag: u64,
    pub(crate) result: LoadResult,
}

/// The data that was read.
#[derive(Debug)]
pub(crate) enum LoadResult {
    Tail {
        watermark: Watermark,
        /// The runs cover all offsets before this one.
        complete_to: Watermark,
        lineage: Lineage,
        runs: Vec<ReadOutcome>,
    },
    /// The tail does not reach back to `after`, or the store was rolled back: load everything
    /// again.
    TailGap {
        watermark: Watermark,
    },
    List {
        watermark: Watermark,
        lineage: Lineage,
        runs: Vec<RunEntry>,
        has_more: bool,
    },
    Fetch {
        /// The first of the requested runs.
        reads: Vec<ReadOutcome>,
        /// The memory in bytes that each of the other runs would take.
        left: Vec<usize>,
    },
    UnknownShard,
}

/// The result for one run.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    Loaded(LoadedRun),
    Corrupt {
        slice: Slice,
        name: RunName,
        why: CorruptRun,
    },
    /// The run is no longer in the store.
    Missing {
        slice: Slice,
        name: RunName,
    },
}

/// The loader loop of one timer.
pub(crate) struct Loader {
    pub(crate) store: Rc<dyn Store>,
    /// Each message holds the requests of one tick.
    pub(crate) requests: mpsc::Receiver<Vec<LoadRequest>>,
    pub(crate) replies: mpsc::Sender<LoadReply>,
    pub(crate) health: HealthPart,
}

/// Why the loop ends.
enum End {
    /// The loader was cancelled, or the receiver of its replies is gone.
    Stopped,
    Failed(Error),
}

/// A tail request and its store call.
struct TailCall<'a> {
    request: &'a LoadRequest,
    keep_until: Timestamp,
    hinted: bool,
    call: Tail,
}

impl<'a> TailCall<'a> {
    fn new(request: &'a LoadRequest) -> Option<Self> {
        let Load::Tail {
            after,
            until,
            keep_until,
            limit,
            hinted,
        } = request.load
        else {
            return None;
        };
        let call = Tail {
            shard: request.shard.clone(),
            after,
            until,
            limit,
        };
        Some(Self {
            request,
            keep_until,
            hinted,
            call,
        })
    }
}

/// A fetch request and its store call.
struct FetchCall<'a> {
    request: &'a LoadRequest,
    bounds: FetchBounds,
    call: Fetch,
}

/// The part of the fetched runs that is kept.
#[derive(Clone, Copy)]
pub(crate) struct FetchBounds {
    pub(crate) bytes_max: usize,
    pub(crate) keep_until: Timestamp,
    pub(crate) taken: Progress,
}

impl<'a> FetchCall<'a> {
    fn new(request: &'a LoadRequest) -> Option<Self> {
        let Load::Fetch {
            runs,
            bytes,
            keep_until,
            taken,
        } = &request.load
        else {
            return None;
        };
        let bounds = FetchBounds {
            bytes_max: *bytes,
            keep_until: *keep_until,
            taken: *taken,
        };
        let call = Fetch {
            shard: request.shard.clone(),
            runs: runs.clone(),
        };
        Some(Self {
            request,
            bounds,
            call,
        })
    }
}

impl Loader {
    /// Serves until the request channel is closed or `give_up` is cancelled. A timer that is
    /// handing its shards over still needs its loader.
    pub(crate) async fn serve(mut self, give_up: CancellationToken) -> Result<(), Error> {
        let mut decoder = RunDecoder::new();
        loop {
            // safe to drop because a request that was not received stays in the channel
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
            for part in batch.chunks(LOADER_BATCH_MAX) {
                match self.serve_batch(part, &mut decoder, &give_up).await {
                    Ok(()) => {}
                    Err(End::Stopped) => return Ok(()),
                    Err(End::Failed(error)) => return Err(error),
                }
            }
        }
    }

    /// Serves tails before lists. A run that is appended in between is then in the list, or after
    /// the tail's end.
    async fn serve_batch(
        &self,
        batch: &[LoadRequest],
        decoder: &mut RunDecoder,
        give_up: &CancellationToken,
    ) -> Result<(), End> {
        self.load_tails(batch, decoder, give_up).await?;
        self.load_lists(batch, give_up).await?;
        self.load_runs(batch, decoder, give_up).await
    }

    async fn load_tails(
        &self,
        batch: &[LoadRequest],
        decoder: &mut RunDecoder,
        give_up: &CancellationToken,
    ) -> Result<(), End> {
        let (mut tails, unhinted): (Vec<_>, Vec<_>) = batch
            .iter()
            .filter_map(TailCall::new)
            .partition(|tail| tail.hinted);
        tails.extend(self.changed_tails(unhinted, give_up).await?);
        if tails.is_empty() {
            return Ok(());
        }
        let calls: Vec<_> = tails.iter().map(|tail| tail.call.clone()).collect();
        let answers = self.answer(give_up, || self.store.tail(&calls)).await?;
        for (tail, answer) in tails.iter().zip(answers) {
            let result = tail_result(answer, tail.keep_until, decoder);
            self.reply(tail.request, result).await?;
        }
        Ok(())
    }

    /// Makes a position check. Replies for the shards without new messages, and returns the others.
    async fn changed_tails<'a>(
        &self,
        tails: Vec<TailCall<'a>>,
        give_up: &CancellationToken,
    ) -> Result<Vec<TailCall<'a>>, End> {
        if tails.is_empty() {
            return Ok(tails);
        }
        let shards: Vec<_> = tails.iter().map(|tail| tail.call.shard.clone()).collect();
        let positions = self
            .answer(give_up, || self.store.positions(&shards))
            .await?;
        let mut changed = Vec::new();
        for (tail, position) in tails.into_iter().zip(positions) {
            let after = tail.call.after;
            let unchanged = position
                .filter(|position| position.watermark == after || fault!(TimerAssumesIdleShard));
            let Some(position) = unchanged else {
                changed.push(tail);
                continue;
            };
            let result = LoadResult::Tail {
                watermark: after,
                complete_to: after,
                lineage: position.lineage,
                runs: Vec::new(),
            };
            self.reply(tail.request, result).await?;
        }
        Ok(changed)
    }

    async fn load_lists(
        &self,
        batch: &[LoadRequest],
        give_up: &CancellationToken,
    ) -> Result<(), End> {
        let mut requests = Vec::new();
        let mut calls = Vec::new();
        for request in batch {
            if let Load::List { from, until, limit } = request.load {
                requests.push(request);
                calls.push(List {
                    shard: request.shard.clone(),
                    from,
                    until,
                    limit,
                });
            }
        }
        if calls.is_empty() {
            return Ok(());
        }
        let answers = self.answer(give_up, || self.store.list(&calls)).await?;
        for (request, answer) in requests.into_iter().zip(answers) {
            let result = match answer {
                Listed::Runs {
                    watermark,
                    lineage,
                    runs,
                    has_more,
                } => LoadResult::List {
                    watermark,
                    lineage,
                    runs,
                    has_more,
                },
                Listed::Unknown => LoadResult::UnknownShard,
            };
            self.reply(request, result).await?;
        }
        Ok(())
    }

    async fn load_runs(
        &self,
        batch: &[LoadRequest],
        decoder: &mut RunDecoder,
        give_up: &CancellationToken,
    ) -> Result<(), End> {
        let fetches: Vec<_> = batch.iter().filter_map(FetchCall::new).collect();
        let mut rest = &fetches[..];
        while !rest.is_empty() {
            let (part, after) = rest.split_at(fetches_per_call(rest));
            let calls: Vec<_> = part.iter().map(|fetch| fetch.call.clone()).collect();
            let answers = self.answer(give_up, || self.store.fetch(&calls)).await?;
            for (fetch, blobs) in part.iter().zip(answers) {
                let result = fetch_result(&fetch.call.runs, blobs, fetch.bounds, decoder);
                self.reply(fetch.request, result).await?;
            }
            rest = after;
        }
        Ok(())
    }

    /// Repeats a store call until the store answers. Safe, because the loader only reads.
    async fn answer<T>(
        &self,
        give_up: &CancellationToken,
        call: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, End> {
        until_store_answers(
            &self.health,
            "stored messages cannot be read",
            give_up,
            call,
        )
        .await
        .map_err(End::Failed)?
        .ok_or(End::Stopped)
    }

    async fn reply(&self, request: &LoadRequest, result: LoadResult) -> Result<(), End> {
        let reply = LoadReply {
            shard: request.shard.clone(),
            tag: request.tag,
            result,
        };
        self.replies.send(reply).await.map_err(|_| End::Stopped)
    }
}

/// The number of fetches to send in one call: at least one, and as many as fit into
/// `FETCH_BYTES_MAX`.
fn fetches_per_call(fetches: &[FetchCall<'_>]) -> usize {
    let mut bytes = 0;
    fetches
        .iter()
        .take_while(|fetch| {
            let fits = bytes == 0 || bytes + fetch.bounds.bytes_max <= FETCH_BYTES_MAX;
            bytes += fetch.bounds.bytes_max;
            fits
        })
        .count()
}

fn tail_result(answer: Tailed, keep_until: Timestamp, decoder: &mut RunDecoder) -> LoadResult {
    match answer {
        Tailed::Runs {
            watermark,
            complete_to,
            lineage,
            runs,
        } => {
            let mut reads = Vec::new();
            for run in runs {
                let Some(bytes) = run.bytes else { continue };
                let RunEntry { slice, name, .. } = run.entry;
                reads.push(decode_run(
                    slice,
                    &name,
                    Some(&bytes),
                    keep_until,
                    Progress::START,
                    decoder,
                ));
            }
            LoadResult::Tail {
                watermark,
                complete_to,
                lineage,
                runs: reads,
            }
        }
        Tailed::OutOfRange { watermark } => LoadResult::TailGap { watermark },
        Tailed::Unknown => LoadResult::UnknownShard,
    }
}

/// Decodes as many of the runs as fit into `bounds.bytes_max`.
pub(crate) fn fetch_result(
    runs: &[(Slice, RunName)],
    blobs: Vec<Option<Bytes>>,
    bounds: FetchBounds,
    decoder: &mut RunDecoder,
) -> LoadResult {
    let mut reads = Vec::new();
    let mut left = Vec::new();
    let mut used = 0;
    for ((slice, name), blob) in runs.iter().zip(blobs) {
        let size = blob.as_ref().map_or(0, |bytes| decoded_size(bytes));
        if !left.is_empty() || used + size > bounds.bytes_max {
            left.push(size);
            continue;
        }
        used += size;
        reads.push(decode_run(
            *slice,
            name,
            blob.as_ref(),
            bounds.keep_until,
            bounds.taken,
            decoder,
        ));
    }
    LoadResult::Fetch { reads, left }
}

pub(crate) fn decode_run(
    slice: Slice,
    name: &RunName,
    bytes: Option<&Bytes>,
    keep_until: Timestamp,
    taken: Progress,
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
            run.drop_after(keep_until);
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
