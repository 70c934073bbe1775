//! Reads without a script: positions, lists and fetches. A script must get its keys with the call,
//! and only `counts` tells which slices a shard has.

use super::key::{self, Key, Keys};
use super::reply::text;
use super::script::{Call, SliceKey};
use super::{Redis, codec, connection};
use crate::limit::{LIST_SLICES_PER_CALL, REQUESTED_RUNS_MAX};
use crate::model::{Offset, Progress, ShardId, Slice, Timestamp, Watermark};
use crate::run::RunName;
use crate::store::{Error, Fetch, Lineage, List, Listed, RunEntry, ShardPosition};
use bytes::Bytes;
use redis::{Pipeline, Value};
use std::cmp::Reverse;
use std::collections::BTreeMap;

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
        let calls = requests
            .iter()
            .map(|request| Call::state(&self.keyspace, &request.shard));
        let replies = self.run(calls.collect()).await?;
        let scans = requests.iter().zip(replies).map(|(request, reply)| {
            let keys = self.keyspace.shard_keys(&request.shard);
            let parts = reply.slices()?;
            Ok(parts.map(|(watermark, lineage, slices)| {
                ListScan::new(request, keys, watermark, lineage, slices)
            }))
        });
        scans.collect()
    }

    pub(super) async fn fetch_runs(
        &self,
        requests: &[Fetch],
    ) -> Result<Vec<Vec<Option<Bytes>>>, Error> {
        let groups: Vec<BTreeMap<Slice, Vec<usize>>> = requests
            .iter()
            .map(|request| by_slice(&request.runs))
            .collect();
        let mut pipeline = Pipeline::new();
        for (request, group) in requests.iter().zip(&groups) {
            let keys = self.keyspace.shard_keys(&request.shard);
            for (slice, places) in group {
                let names: Vec<&str> = places
                    .iter()
                    .map(|&at| request.runs[at].1.as_str())
                    .collect();
                pipeline.cmd("HMGET").arg(keys.pool(*slice)).arg(names);
            }
        }
        let mut values = self.connection.send(&pipeline).await?.into_iter();
        let mut fetched: Vec<Vec<Option<Bytes>>> = requests
            .iter()
            .map(|request| vec![None; request.runs.len()])
            .collect();
        for (group, runs) in groups.iter().zip(&mut fetched) {
            for places in group.values() {
                // A pool of another type counts as empty.
                let Some(Value::Array(found)) = values.next() else {
                    continue;
                };
                for (&at, value) in places.iter().zip(found) {
                    if let Value::BulkString(bytes) = value {
                        runs[at] = Some(Bytes::from(bytes));
                    }
                }
            }
        }
        self.mark_lost_runs(requests, &mut fetched).await?;
        Ok(fetched)
    }

    /// A run without bytes is gone, or it is lost: then the index still lists it. A lost run gets
    /// empty bytes, so that the timer quarantines it instead of fetching it again and again.
    async fn mark_lost_runs(
        &self,
        requests: &[Fetch],
        fetched: &mut [Vec<Option<Bytes>>],
    ) -> Result<(), Error> {
        let mut pipeline = Pipeline::new();
        for (request, runs) in requests.iter().zip(&*fetched) {
            let keys = self.keyspace.shard_keys(&request.shard);
            let missing = request
                .runs
                .iter()
                .zip(runs)
                .filter(|(_, bytes)| bytes.is_none());
            for ((slice, name), _) in missing {
                pipeline
                    .cmd("ZSCORE")
                    .arg(keys.slice(*slice))
                    .arg(codec::index_member(name));
            }
        }
        let scores = self.connection.send(&pipeline).await?;
        let missing = fetched.iter_mut().flatten().filter(|bytes| bytes.is_none());
        for (bytes, score) in missing.zip(scores) {
            if matches!(score, Value::BulkString(_)) {
                *bytes = Some(Bytes::new());
            }
        }
        Ok(())
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
    /// Slices of the next round. Doubles with each round: often the first few slices are enough,
    /// and a slice may have many rows.
    slices_per_round: usize,
    /// Runs per slice that this round needs, and rows per slice that it requests.
    runs_wanted: usize,
    rows_requested: usize,
    /// Foreign rows seen so far. The next request asks for as many rows more.
    foreign_rows: usize,
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
            slices_per_round: *LIST_SLICES_PER_CALL.start(),
            runs_wanted: 0,
            rows_requested: 0,
            foreign_rows: 0,
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
        self.runs_wanted = self.runs_needed().min(REQUESTED_RUNS_MAX + 1);
        self.rows_requested = (self.runs_wanted + self.foreign_rows).min(REQUESTED_RUNS_MAX + 1);
        let first = self.remaining.len().saturating_sub(self.slices_per_round);
        self.requested = self.remaining.split_off(first);
        self.slices_per_round = (2 * self.slices_per_round).min(*LIST_SLICES_PER_CALL.end());
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

    /// Runs that the remaining slices can contribute at most. Runs found before all of them are
    /// certain. One run more than the limit tells whether there are more.
    fn runs_needed(&self) -> usize {
        let certain = self.remaining.last().map_or(0, |next| {
            self.found
                .partition_point(|run| run.least_due < next.least_due())
        });
        self.request.limit.saturating_add(1) - certain.min(self.request.limit)
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

    /// If foreign rows took the place of wanted runs, reads the slice again with more rows. The
    /// number of additional rows at least doubles each time.
    fn read_slice(&mut self, slice: Slice, rows: &[String]) {
        let runs: Vec<RunEntry> = rows
            .chunks_exact(2)
            .filter_map(|row| run_entry(slice, &row[0], &row[1]))
            .collect();
        let row_count = rows.len() / 2;
        let is_cut = row_count == self.rows_requested && row_count <= REQUESTED_RUNS_MAX;
        if runs.len() < self.runs_wanted && is_cut {
            self.foreign_rows += row_count - runs.len();
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

fn by_slice(runs: &[(Slice, RunName)]) -> BTreeMap<Slice, Vec<usize>> {
    let mut groups: BTreeMap<Slice, Vec<usize>> = BTreeMap::new();
    for (at, (slice, _)) in runs.iter().enumerate() {
        groups.entry(*slice).or_default().push(at);
    }
    groups
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

/// A list of strings. `None`: another value, or a string is missing.
fn texts(value: Value) -> Option<Vec<String>> {
    match value {
        Value::Array(values) => values.into_iter().map(text).collect(),
        _ => None,
    }
}

/// The fields of a hash; empty if the value is no hash.
pub(super) fn fields(value: Value) -> Vec<String> {
    texts(value).unwrap_or_default()
}

pub(super) fn is_wrong_type(value: &Value) -> bool {
    connection::is_error(value, "WRONGTYPE")
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
