//! Reads without a script: positions, lists and fetches. A script must get its keys with the call,
//! and only `counts` tells which slices a shard has.

use super::key::{self, Key, Keys, Keyspace};
use super::reply::{Reply, text, texts};
use super::script::{Call, SliceKey};
use super::{Redis, codec};
use crate::limit::REQUESTED_RUNS_MAX;
use crate::model::{Offset, Progress, ShardId, Slice, Timestamp, Watermark};
use crate::run::RunName;
use crate::store::{Error, Fetch, Lineage, List, Listed, RunEntry, ShardPosition};
use bytes::Bytes;
use redis::{Pipeline, Value};
use std::cmp::Reverse;

/// Slices that a list reads in one round. It stops as soon as later slices cannot change the answer.
const SLICES_PER_ROUND: usize = 8;

impl Redis {
    pub(super) async fn read_positions(
        &self,
        shards: &[ShardId],
    ) -> Result<Vec<Option<ShardPosition>>, Error> {
        let mut pipeline = Pipeline::new();
        for shard in shards {
            request_meta(&mut pipeline, &self.keyspace.shard_keys(shard));
            pipeline.arg("delivered");
        }
        let values = self.connection.send(&pipeline).await?;
        Ok(values.into_iter().map(parse_position).collect())
    }

    /// Reads slices in the order of their least due, a few per round, until no other slice can hold
    /// a requested run.
    pub(super) async fn list_runs(&self, requests: &[List]) -> Result<Vec<Listed>, Error> {
        let mut scans = self.start_scans(requests).await?;
        while scans.iter().flatten().any(|scan| !scan.is_done()) {
            let mut pipeline = Pipeline::new();
            for scan in scans.iter_mut().flatten() {
                scan.request_slices(&mut pipeline);
            }
            let mut values = self.connection.send(&pipeline).await?.into_iter();
            let mut foreign = Vec::new();
            for scan in &mut scans {
                let is_lost = scan
                    .as_mut()
                    .is_some_and(|open| !open.read(&mut values, &mut foreign));
                if is_lost {
                    *scan = None;
                }
            }
            self.rename_foreign(&foreign).await?;
        }
        let listed = scans
            .into_iter()
            .map(|scan| scan.map_or(Listed::Unknown, ListScan::finish));
        Ok(listed.collect())
    }

    /// Reads watermark, lineage and slices of each shard. `None`: unknown shard.
    async fn start_scans<'a>(
        &self,
        requests: &'a [List],
    ) -> Result<Vec<Option<ListScan<'a>>>, Error> {
        let state = |keyspace: &Keyspace, list: &List| Call::state(keyspace, &list.shard);
        let states = self
            .call_each(requests, state, Reply::state_and_lineage)
            .await?;
        let scans = requests.iter().zip(states).map(|(request, state)| {
            let keys = self.keyspace.shard_keys(&request.shard);
            let (state, lineage) = state?;
            let slices = state.slices.iter().map(|count| count.slice).collect();
            Some(ListScan::new(
                request,
                keys,
                state.watermark,
                lineage,
                slices,
            ))
        });
        Ok(scans.collect())
    }

    pub(super) async fn fetch_runs(
        &self,
        requests: &[Fetch],
    ) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        let shards: Vec<(Keys, &Fetch)> = requests
            .iter()
            .map(|request| (self.keyspace.shard_keys(&request.shard), request))
            .collect();
        let runs = || {
            shards.iter().flat_map(|(keys, request)| {
                let runs = request.runs.iter();
                runs.map(move |(slice, name)| (keys, *slice, name))
            })
        };
        let mut pipeline = Pipeline::new();
        for (keys, slice, name) in runs() {
            pipeline
                .cmd("HGET")
                .arg(keys.pool(slice))
                .arg(name.as_str());
        }
        let values = self.connection.send(&pipeline).await?.into_iter();
        // A pool of another type counts as empty.
        let mut fetched: Vec<Option<Bytes>> = values
            .map(|value| match value {
                Value::BulkString(bytes) => Some(Bytes::from(bytes)),
                _ => None,
            })
            .collect();

        // A run without bytes is gone, or it is lost: then the index still lists it. A lost run
        // gets empty bytes, so that the timer quarantines it instead of fetching it again.
        let mut pipeline = Pipeline::new();
        for ((keys, slice, name), _) in runs().zip(&fetched).filter(|(_, bytes)| bytes.is_none()) {
            pipeline
                .cmd("ZSCORE")
                .arg(keys.slice(slice))
                .arg(codec::index_member(name));
        }
        let scores = self.connection.send(&pipeline).await?;
        let missing = fetched.iter_mut().filter(|bytes| bytes.is_none());
        for (bytes, score) in missing.zip(scores) {
            *bytes = matches!(score, Value::BulkString(_)).then(Bytes::new);
        }
        let mut fetched = fetched.into_iter();
        let answers = requests
            .iter()
            .map(|request| fetched.by_ref().take(request.runs.len()).collect());
        Ok(answers.collect())
    }
}

/// One list in progress. Each round reads some slices.
struct ListScan<'a> {
    request: &'a List,
    keys: Keys,
    watermark: Watermark,
    lineage: Lineage,
    /// Slices that were not read yet; the one with the least due is last.
    remaining: Vec<Slice>,
    /// Slices of the current round.
    requested: Vec<Slice>,
    /// Rows per slice that a round requests: enough for the list. All rows, if foreign rows took
    /// the place of runs.
    rows_requested: usize,
    found: Vec<RunEntry>,
}

impl<'a> ListScan<'a> {
    fn new(
        request: &'a List,
        keys: Keys,
        watermark: Watermark,
        lineage: Lineage,
        mut slices: Vec<Slice>,
    ) -> Self {
        slices.retain(|slice| may_hold(*slice, request));
        slices.sort_by_key(|slice| Reverse((slice.least_due(), *slice)));
        Self {
            request,
            keys,
            watermark,
            lineage,
            remaining: slices,
            requested: Vec::new(),
            // One row more than the limit tells whether there are more.
            rows_requested: request.limit.min(REQUESTED_RUNS_MAX) + 1,
            found: Vec::new(),
        }
    }

    /// True if no remaining slice can hold one of the first `limit` runs.
    fn is_done(&self) -> bool {
        let Some(next) = self.remaining.last() else {
            return true;
        };
        self.found.len() > self.request.limit
            && self.found[..self.request.limit]
                .last()
                .is_none_or(|last| last.least_due < next.least_due())
    }

    /// Adds the commands of the next round to the pipeline.
    fn request_slices(&mut self, pipeline: &mut Pipeline) {
        if self.is_done() {
            return;
        }
        let first = self.remaining.len().saturating_sub(SLICES_PER_ROUND);
        self.requested = self.remaining.split_off(first);
        request_meta(pipeline, &self.keys);
        for slice in &self.requested {
            pipeline
                .cmd("ZRANGEBYSCORE")
                .arg(self.keys.slice(*slice))
                .arg(codec::due_score(self.request.from))
                .arg(codec::due_score(self.request.until))
                .arg("WITHSCORES")
                .arg("LIMIT")
                .arg(0)
                .arg(self.rows_requested);
        }
    }

    /// Reads the replies to [`ListScan::request_slices`]. Returns whether the shard still exists.
    fn read(
        &mut self,
        values: &mut impl Iterator<Item = Value>,
        foreign: &mut Vec<SliceKey>,
    ) -> bool {
        if self.requested.is_empty() {
            return true;
        }
        let meta = values.next().and_then(parse_meta);
        for slice in std::mem::take(&mut self.requested) {
            match values.next().and_then(texts) {
                Some(rows) => self.read_slice(slice, &rows),
                None => foreign.push(SliceKey {
                    name: self.keys.slice(slice),
                    expected_type: key::INDEX_TYPE,
                }),
            }
        }
        self.found.sort_by(|a, b| order(a).cmp(&order(b)));
        let Some(meta) = meta else {
            return false;
        };
        // Meta is read before the names of each round. If the store rolls back between two rounds,
        // only the lower watermark is true, and only the last lineage shows the rollback.
        self.watermark = self.watermark.min(meta.watermark);
        self.lineage = meta.lineage;
        true
    }

    fn read_slice(&mut self, slice: Slice, rows: &[String]) {
        let row_count = rows.len() / 2;
        let runs: Vec<RunEntry> = rows
            .chunks_exact(2)
            .filter_map(|row| run_entry(slice, &row[0], &row[1]))
            .collect();
        let is_cut = row_count == self.rows_requested && row_count <= REQUESTED_RUNS_MAX;
        if runs.len() < row_count && is_cut {
            self.rows_requested = REQUESTED_RUNS_MAX + 1;
            self.remaining.push(slice);
        } else {
            self.found.extend(runs);
        }
    }

    fn finish(mut self) -> Listed {
        let has_more = self.found.len() > self.request.limit;
        self.found.truncate(self.request.limit);
        Listed::Runs {
            watermark: self.watermark,
            lineage: self.lineage,
            runs: self.found,
            has_more,
        }
    }
}

fn order(run: &RunEntry) -> (Timestamp, Offset, &RunName) {
    (run.least_due, run.name.least_offset(), &run.name)
}

/// `None`: a foreign row.
fn run_entry(slice: Slice, member: &str, score: &str) -> Option<RunEntry> {
    Some(RunEntry {
        slice,
        name: codec::parse_index_member(member)?,
        least_due: codec::parse_score(score)?,
    })
}

fn may_hold(slice: Slice, request: &List) -> bool {
    let is_over = slice.end().is_some_and(|end| end <= request.from);
    slice.least_due() <= request.until && !is_over
}

/// Fields of meta that reads outside of scripts need.
struct Meta {
    watermark: Watermark,
    lineage: Lineage,
    /// The value of a further requested field.
    further: Option<Value>,
}

/// Requests the fields of [`Meta`]. The caller may add one more field as an argument.
fn request_meta(pipeline: &mut Pipeline, keys: &Keys) {
    pipeline
        .cmd("HMGET")
        .arg(keys.name(Key::Meta))
        .arg("version")
        .arg("watermark")
        .arg("history");
}

/// `None`: no shard that this layout version can read.
fn parse_meta(value: Value) -> Option<Meta> {
    let Value::Array(values) = value else {
        return None;
    };
    let mut values = values.into_iter();
    let version = text(values.next()?)?;
    let watermark = text(values.next()?)?;
    let lineage = text(values.next()?);
    if version != key::LAYOUT_VERSION {
        return None;
    }
    Some(Meta {
        watermark: codec::parse_watermark(&watermark)?,
        lineage: lineage.map_or_else(Lineage::default, |text| codec::parse_lineage(&text)),
        further: values.next(),
    })
}

fn parse_position(value: Value) -> Option<ShardPosition> {
    let meta = parse_meta(value)?;
    Some(ShardPosition {
        watermark: meta.watermark,
        delivered: Progress::from_hex(&text(meta.further?)?)?,
        lineage: meta.lineage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Level, Partition};
    use crate::store::redis::key::Keyspace;

    const SLICE: Slice = Slice {
        level: Level::Hour,
        start: 1,
    };

    fn shard() -> ShardId {
        ShardId::new("route", Partition::new("topic", 0))
    }

    fn keys() -> Keys {
        Keyspace::new("test").shard_keys(&shard())
    }

    fn list_all(limit: usize) -> List {
        List {
            shard: shard(),
            from: Timestamp::AT_ONCE,
            until: Timestamp::MAX,
            limit,
        }
    }

    fn string(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn meta(watermark: &str, lineage: Value) -> Value {
        Value::Array(vec![
            string(key::LAYOUT_VERSION),
            string(watermark),
            lineage,
        ])
    }

    #[test]
    fn a_list_answers_the_lower_watermark_and_the_later_lineage_of_two_reads() {
        let request = list_all(9);
        let before = codec::parse_lineage("0-0 0-0 0000000000000000 3");
        let after = "7-1 0-0 0000000000000005 2";
        // The store rolled back, or moved on, between the two reads.
        for (watermark, expected) in [("0000000000000005", 5), ("000000000000000c", 10)] {
            let mut scan = ListScan::new(&request, keys(), Watermark(10), before, vec![SLICE]);
            scan.request_slices(&mut Pipeline::new());
            let replies = [meta(watermark, string(after)), Value::Array(vec![])];
            assert!(scan.read(&mut replies.into_iter(), &mut Vec::new()));
            assert_eq!(
                scan.finish(),
                Listed::Runs {
                    watermark: Watermark(expected),
                    lineage: codec::parse_lineage(after),
                    runs: vec![],
                    has_more: false
                }
            );
        }
    }

    #[test]
    fn a_list_of_a_shard_that_was_lost_meanwhile_answers_that_it_is_gone() {
        let request = list_all(9);
        let lineage = Lineage::default();
        let mut scan = ListScan::new(&request, keys(), Watermark(10), lineage, vec![SLICE]);
        scan.request_slices(&mut Pipeline::new());
        let lost = Value::Array(vec![Value::Nil, Value::Nil, Value::Nil]);
        let replies = [lost, Value::Array(vec![])];
        assert!(!scan.read(&mut replies.into_iter(), &mut Vec::new()));
    }

    #[test]
    fn foreign_rows_in_a_slice_cost_few_rounds() {
        let request = list_all(3);
        for (foreign, rounds_max) in [(0, 1), (1, 2), (2, 2), (40, 6), (1_000, 10)] {
            let member = |row: usize| {
                if row < foreign {
                    format!("foreign{row}")
                } else {
                    format!("{row:016x} 1-{row:x}-1-{row:x}")
                }
            };
            let lineage = Lineage::default();
            let mut scan = ListScan::new(&request, keys(), Watermark(5), lineage, vec![SLICE]);
            let mut rounds = 0;
            while !scan.is_done() {
                scan.request_slices(&mut Pipeline::new());
                let rows = (0..scan.rows_requested.min(foreign + 10_000))
                    .flat_map(|row| [string(&member(row)), string(&row.to_string())]);
                let replies = [
                    meta("0000000000000005", Value::Nil),
                    Value::Array(rows.collect()),
                ];
                assert!(scan.read(&mut replies.into_iter(), &mut Vec::new()));
                rounds += 1;
            }
            let Listed::Runs { runs, has_more, .. } = scan.finish() else {
                panic!("the shard exists")
            };
            let offsets: Vec<u64> = runs.iter().map(|run| run.name.least_offset().0).collect();
            let expected: Vec<u64> = (foreign as u64..).take(3).collect();
            assert_eq!((offsets, has_more), (expected, true));
            assert!(
                rounds <= rounds_max,
                "{rounds} rounds for {foreign} foreign rows"
            );
        }
    }
}
