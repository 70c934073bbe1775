//! Divides the memory of a process among its parts (G6).
//!
//! Each part has a bound of its own and never waits for memory of another part. So delivery never
//! waits for an ingress, and the parts cannot block each other. A part that holds nothing accepts
//! one message of any size.
//!
//! The bounds count bytes of messages. Where code copies a message, each copy has its share: a call
//! of Redis holds the bytes of its runs three times. An eighth is left for small records, which need
//! more memory than their bytes.

use super::{
    COMPACT_BYTES_MAX, EMBEDDED_CACHE_BYTES, EMBEDDED_INDEX_MEMTABLE_BYTES,
    EMBEDDED_RUNS_MEMTABLE_BYTES,
};

/// Resident memory that a process may take beside its budget: code, threads, clients, and memory
/// that the allocator has not returned yet.
pub(crate) const MEMORY_BESIDE_BUDGET_BYTES: u64 = 64 * 1024 * 1024;

/// The same for the embedded store, while it writes large messages.
pub(crate) const MEMORY_BESIDE_EMBEDDED_BYTES: u64 = 128 * 1024 * 1024;

/// Bytes of one response of one broker: some milliseconds of reading. Decompression makes them more,
/// by a factor that only the producer knows.
const SOURCE_FETCH_BYTES_MAX: usize = 1024 * 1024;
/// A response to a client of many routes has the parts of this number of routes. One of them may get all.
const SOURCE_FETCH_ROUTES_MAX: usize = 2;

/// The parts of a process that use memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryUsers {
    /// Sources that the process reads: one for each route.
    pub(crate) sources: usize,
    pub(crate) has_timer: bool,
    /// Producers of the timer. The transactional producers of one cluster count as one.
    pub(crate) producers: usize,
    pub(crate) has_embedded_store: bool,
}

/// The bytes that each part of a process may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    pub(crate) source: SourceMemory,
    pub(crate) ingress: IngressMemory,
    /// Loaded messages of all shards, those in flight included.
    pub(crate) loaded: usize,
    /// Records of one producer that are not acknowledged.
    pub(crate) producer: usize,
    /// Decoded runs of one compaction.
    pub(crate) compaction: usize,
    pub(crate) embedded: EmbeddedMemory,
}

/// Bounds of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceMemory {
    /// Records that the client holds in advance. With more it requests nothing.
    pub(crate) prefetch: usize,
    /// Its part of the response of one broker, before decompression. The first batch of a response may
    /// exceed it.
    pub(crate) fetch: usize,
    /// Records that wait for the ingress.
    pub(crate) queue: usize,
}

impl SourceMemory {
    /// Divides the memory of one source and its ingress.
    pub(crate) const fn of(bytes: usize) -> Self {
        Self {
            prefetch: bytes / 16,
            fetch: if bytes / 64 < SOURCE_FETCH_BYTES_MAX {
                bytes / 64
            } else {
                SOURCE_FETCH_BYTES_MAX
            },
            queue: bytes / 16,
        }
    }

    /// Records that a client for this number of routes holds in advance, for each route. With several, a
    /// route whose queue is full after a response is left out of the next fetch, which may wait. So the
    /// queue has room for more than a response of small records: the row `routes` of the bench.
    pub(crate) fn prefetch_bytes(self, routes: usize) -> usize {
        match routes {
            0 | 1 => self.prefetch,
            _ => 6 * self.prefetch,
        }
    }

    /// Bytes of one response to a client that reads this number of routes. A route gets all of it at
    /// most, if its queue has room. The responses of three brokers still fit into the memory of the route
    /// and its ingress.
    pub(crate) fn fetch_bytes(self, routes: usize) -> usize {
        let parts = self.fetch * routes.min(SOURCE_FETCH_ROUTES_MAX);
        parts.min(SOURCE_FETCH_BYTES_MAX)
    }

    /// All of it, if three brokers answer at once.
    pub(crate) const fn total(self) -> usize {
        self.prefetch + 3 * self.fetch + self.queue
    }
}

/// Bounds of the ingress of one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IngressMemory {
    /// Batches, and appends that the store has not answered.
    pub(crate) unstored: usize,
    /// Appends of one call of the store.
    pub(crate) call: usize,
}

/// Memory of the embedded store. A folder keeps the sizes of memtables that it was created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EmbeddedMemory {
    pub(crate) index_memtable: u64,
    pub(crate) runs_memtable: u64,
    pub(crate) cache: u64,
}

impl EmbeddedMemory {
    pub(crate) const fn of(budget: u64) -> Self {
        const fn least(a: u64, b: u64) -> u64 {
            if a < b { a } else { b }
        }
        Self {
            index_memtable: least(budget / 128, EMBEDDED_INDEX_MEMTABLE_BYTES),
            runs_memtable: least(budget / 32, EMBEDDED_RUNS_MEMTABLE_BYTES),
            cache: least(budget / 64, EMBEDDED_CACHE_BYTES),
        }
    }

    /// The memtables are bounded together, to three of each table. A commit holds its rows, and the
    /// journal copies them.
    fn total(self) -> usize {
        let commits = 2 * super::EMBEDDED_COMMIT_BYTES_MAX as u64;
        let total = 3 * (self.index_memtable + self.runs_memtable) + self.cache + commits;
        total as usize
    }
}

impl MemoryPlan {
    pub(crate) fn new(budget: u64, users: MemoryUsers) -> Self {
        let embedded = EmbeddedMemory::of(budget);
        let budget = usize::try_from(budget).unwrap_or(usize::MAX);
        let store = if users.has_embedded_store {
            embedded.total()
        } else {
            0
        };
        let rest = budget - store.min(budget / 2);
        let ingress = match (users.sources, users.has_timer) {
            (0, _) => 0,
            (_, true) => rest / 8 * 3,
            (_, false) => rest,
        };
        let timer = rest - ingress;
        let route = ingress / users.sources.max(1);
        Self {
            source: SourceMemory::of(route),
            ingress: IngressMemory {
                unstored: route / 4,
                call: route / 16,
            },
            // A fetch takes a sixteenth of it, four times: the reply, its copy, and the runs twice.
            loaded: timer / 2,
            producer: timer / 4 / users.producers.max(1),
            compaction: (timer / 64).min(COMPACT_BYTES_MAX),
            embedded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn plan(
        budget: usize,
        sources: usize,
        has_timer: bool,
        has_embedded_store: bool,
    ) -> MemoryPlan {
        let users = MemoryUsers {
            sources,
            has_timer,
            producers: 2,
            has_embedded_store,
        };
        MemoryPlan::new(budget as u64, users)
    }

    /// The bytes of all parts, with the copies that the code makes of them. Three brokers answer a
    /// source at once.
    fn total(plan: &MemoryPlan, sources: usize, has_embedded_store: bool) -> usize {
        let route = plan.source.total() + plan.ingress.unstored + 3 * plan.ingress.call;
        let fetches = 4 * (plan.loaded / 16);
        let timer = plan.loaded + fetches + 2 * plan.producer + 6 * plan.compaction;
        let store = if has_embedded_store {
            plan.embedded.total()
        } else {
            0
        };
        sources * route + timer + store
    }

    #[test]
    fn the_parts_fit_into_the_budget_in_every_role_and_with_both_stores() {
        for budget in [96, 128, 256, 512, 1024, 64 * 1024] {
            for (sources, has_timer) in [(1, true), (3, true), (40, true), (1, false), (0, true)] {
                for embedded in [false, true] {
                    let plan = plan(budget * MIB, sources, has_timer, embedded);
                    let total = total(&plan, sources, embedded);
                    assert!(total <= budget * MIB, "{budget} {sources} {plan:?}");
                }
            }
        }
    }

    #[test]
    fn a_response_holds_the_parts_of_several_routes_and_fits_into_the_memory_of_one() {
        let fetch = |routes, budget| {
            let source = plan(budget * MIB, routes, true, false).source;
            (source.fetch, source.fetch_bytes(routes))
        };
        assert_eq!(fetch(1, 512), (MIB, MIB));
        assert_eq!(fetch(2, 512), (MIB, MIB));
        let (part, bytes) = fetch(200, 512);
        assert_eq!(bytes, SOURCE_FETCH_ROUTES_MAX * part);
        for (routes, budget) in [(2, 96), (20, 128), (200, 512), (1_000, 4_096)] {
            let plan = plan(budget * MIB, routes, true, false);
            let response = plan.source.fetch_bytes(routes);
            let prefetch = plan.source.prefetch_bytes(routes);
            let source = prefetch + 3 * response + plan.source.queue;
            let ingress = plan.ingress.unstored + 3 * plan.ingress.call;
            let route = budget * MIB / 8 * 3 / routes;
            assert!(source + ingress <= route, "{routes} {budget} {plan:?}");
        }
    }

    #[test]
    fn a_process_with_one_role_has_the_memory_of_both() {
        let both = plan(512 * MIB, 1, true, false);
        assert_eq!((both.loaded, both.producer), (160 * MIB, 40 * MIB));
        assert_eq!(both.ingress.unstored, 48 * MIB);
        assert_eq!(plan(512 * MIB, 0, true, false).loaded, 256 * MIB);
        assert_eq!(plan(512 * MIB, 1, false, false).ingress.unstored, 128 * MIB);
    }
}
