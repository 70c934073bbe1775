//! Fetches the bytes of the runs of a tail, within the bound of the request.

use super::{Error, Fetch, ShardStore, Tail, TailRun, Tailed};
use crate::limit::{FETCH_RUNS_MAX, TAIL_FIRST_FETCH_RUNS_MAX};
use crate::run::decoded_size;
use bytes::Bytes;

/// Adds the bytes of the runs that are due by the request's horizon. Fetches a few runs at a time,
/// because a name does not tell the size of a run. `read_tail` answers a request without bytes.
pub(super) async fn fill_tails(
    store: &impl ShardStore,
    requests: &[Tail],
    mut tails: Vec<Tailed>,
    read_tail: impl AsyncFn(Tail) -> Result<Tailed, Error>,
) -> Result<Vec<Tailed>, Error> {
    let mut fills: Vec<TailFill<'_>> = Vec::new();
    for (request, tail) in requests.iter().zip(&mut tails) {
        if let Tailed::Runs { runs, .. } = tail {
            fills.push(TailFill::new(request, runs));
        }
    }
    fetch_until_full(store, &mut fills).await?;
    let cuts: Vec<Option<usize>> = fills.iter().map(TailFill::cut_at).collect();
    let mut cuts = cuts.into_iter();
    for (request, tail) in requests.iter().zip(&mut tails) {
        if let Tailed::Runs { runs, .. } = tail
            && let Some(limit) = cuts.next().flatten()
        {
            let known = std::mem::take(runs);
            *tail = cut_tail(store, request, known, limit, &read_tail).await?;
        }
    }
    Ok(tails)
}

async fn fetch_until_full(
    store: &impl ShardStore,
    fills: &mut [TailFill<'_>],
) -> Result<(), Error> {
    loop {
        let fetches: Vec<Fetch> = fills.iter().map(TailFill::next_fetch).collect();
        if fetches.iter().all(|fetch| fetch.runs.is_empty()) {
            return Ok(());
        }
        let found = store.fetch(&fetches).await?;
        for ((fill, fetch), found) in fills.iter_mut().zip(&fetches).zip(found) {
            fill.fill(fetch.runs.len(), found);
        }
    }
}

/// Reads the tail again with the number of runs that fit. So the store cuts it to whole batches. A
/// first batch that does not fit is fetched whole.
async fn cut_tail(
    store: &impl ShardStore,
    request: &Tail,
    known: Vec<TailRun>,
    limit: usize,
    read_tail: &impl AsyncFn(Tail) -> Result<Tailed, Error>,
) -> Result<Tailed, Error> {
    let unlimited = Tail {
        limit,
        bytes_max: usize::MAX,
        ..request.clone()
    };
    let mut tail = read_tail(unlimited.clone()).await?;
    if let Tailed::Runs { runs, .. } = &mut tail {
        for (run, known) in runs.iter_mut().zip(known) {
            if run.entry.name == known.entry.name {
                run.bytes = known.bytes;
            }
        }
        fetch_until_full(store, &mut [TailFill::new(&unlimited, runs)]).await?;
    }
    Ok(tail)
}

/// Memory of a run for the bound of a request. Unreadable bytes count as they are.
pub(crate) fn run_memory(bytes: &Bytes) -> usize {
    decoded_size(bytes).max(bytes.len())
}

/// A tail whose runs are being fetched.
struct TailFill<'a> {
    request: &'a Tail,
    runs: &'a mut [TailRun],
    /// The runs before this one have bytes, or need none.
    next: usize,
    /// Number and decoded size of the fetched runs.
    fetched: usize,
    bytes: usize,
}

impl<'a> TailFill<'a> {
    fn new(request: &'a Tail, runs: &'a mut [TailRun]) -> Self {
        let (next, fetched, bytes) = (0, 0, 0);
        let mut fill = Self {
            request,
            runs,
            next,
            fetched,
            bytes,
        };
        fill.skip();
        fill
    }

    /// Skips runs that need no bytes.
    fn skip(&mut self) {
        let until = self.request.until;
        let needs_bytes = |run: &TailRun| run.bytes.is_none() && run.entry.least_due <= until;
        let rest = &self.runs[self.next..];
        self.next += rest.iter().position(needs_bytes).unwrap_or(rest.len());
    }

    fn next_fetch(&self) -> Fetch {
        let room = self.request.bytes_max.saturating_sub(self.bytes);
        let count = match self.bytes.checked_div(self.fetched) {
            _ if room == 0 => 0,
            None => TAIL_FIRST_FETCH_RUNS_MAX,
            Some(mean) => (room / mean.max(1)).clamp(1, FETCH_RUNS_MAX),
        };
        let until = self.request.until;
        let rest = self.runs[self.next..].iter();
        let due = rest.filter(|run| run.bytes.is_none() && run.entry.least_due <= until);
        let names = due.map(|run| (run.entry.slice, run.entry.name.clone()));
        Fetch {
            shard: self.request.shard.clone(),
            runs: names.take(count).collect(),
        }
    }

    /// Adds the result of the last fetch, which asked for `count` runs, up to the bound.
    fn fill(&mut self, count: usize, found: Vec<Option<Bytes>>) {
        for bytes in found.into_iter().take(count) {
            if self.bytes >= self.request.bytes_max {
                return;
            }
            self.bytes += bytes.as_ref().map_or(0, run_memory);
            self.fetched += 1;
            self.runs[self.next].bytes = bytes;
            self.next += 1;
            self.skip();
        }
    }

    /// The number of runs before the first one that did not fit.
    fn cut_at(&self) -> Option<usize> {
        (self.next < self.runs.len()).then_some(self.next)
    }
}
