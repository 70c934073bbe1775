//! Writes the results to a JSON file and an HTML page in the build folder.

mod chart;
mod page;
mod svg;
mod tile;

use std::path::{Path, PathBuf};

use serde::Serialize;
use time::OffsetDateTime;

use crate::asked::Asked;
use crate::compare::{Comparison, compare};
use crate::env::now_ms;
use crate::held::{Held, held};
use crate::row::{self, Row};
use crate::workload::Workload;

/// All results and their conditions.
#[derive(Serialize)]
pub(crate) struct Results {
    version: &'static str,
    /// Time of writing, in UTC.
    finished: String,
    machine: String,
    workload: Workload,
    /// The median of each figure over all runs.
    pub(crate) rows: Vec<Row>,
    /// Comparisons of Postdate with its rivals.
    pub(crate) comparisons: Vec<Comparison>,
    /// Comparisons between measurements of Postdate.
    pub(crate) held: Vec<Held>,
    pub(crate) runs: Vec<Vec<Row>>,
}

impl Results {
    pub(crate) fn new(asked: &Asked, runs: Vec<Vec<Row>>) -> Results {
        let rows = row::medians(&runs);
        let (comparisons, held) = (compare(&rows, &runs), held(&rows, &runs));
        let (version, workload) = (env!("CARGO_PKG_VERSION"), asked.load.clone());
        Results {
            version,
            finished: now(),
            machine: machine(),
            workload,
            rows,
            comparisons,
            held,
            runs,
        }
    }

    pub(crate) fn are_kept(&self) -> bool {
        self.runs.iter().flatten().all(|row| row.verdict.is_kept())
    }

    /// Describes the conditions that a reader needs to compare the figures.
    pub(crate) fn conditions(&self) -> String {
        let Workload {
            count,
            partitions,
            message,
            ..
        } = &self.workload;
        let keys = message
            .distinct_keys
            .map_or_else(String::new, |distinct| format!(" ({distinct} different)"));
        format!(
            "{count} messages of {} bytes, {} bytes of key{keys} and {} headers, over {partitions} partitions; acks=all, idempotent{}.\n\
             The service is a process of its own, built as it is shipped; it shares this machine with load, broker and Redis: {}.",
            message.payload_bytes,
            message.key_bytes,
            message.headers.len() + 1,
            if self.runs.len() > 1 {
                format!("; medians of {} runs", self.runs.len())
            } else {
                String::new()
            },
            self.machine
        )
    }

    pub(crate) fn write(&self) {
        let write = |path: PathBuf, text: String| {
            std::fs::write(path, text).expect("the build's folder can be written to");
        };
        let (page, results) = paths();
        write(
            results,
            serde_json::to_string_pretty(self).expect("plain data"),
        );
        write(page, page::page(self));
    }
}

/// Prints the paths of the files.
pub(crate) fn tell() {
    let (page, results) = paths();
    println!(
        "As a page with plots: {}\nFor programs: {}\n",
        page.display(),
        results.display()
    );
}

/// Paths of the HTML page and of the JSON file.
fn paths() -> (PathBuf, PathBuf) {
    (folder().join("report.html"), folder().join("results.json"))
}

/// A folder next to cargo's own ones in the target folder.
pub(crate) fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    std::fs::create_dir_all(&folder).expect("the build's folder can be written to");
    folder
}

fn now() -> String {
    let now = OffsetDateTime::from_unix_timestamp(now_ms() / 1_000).expect("a time of this age");
    format!(
        "{}-{:02}-{:02} {:02}:{:02} UTC",
        now.year(),
        u8::from(now.month()),
        now.day(),
        now.hour(),
        now.minute()
    )
}

fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("an unknown CPU", |(_, model)| model);
    format!(
        "{} x {model}",
        std::thread::available_parallelism().map_or(1, usize::from)
    )
}

pub(crate) const LEGEND: &str = "\
Speeds depend on the machine's day, and on what else it does: compare ratios, and only of one run. Before a copy, an ingress, a drain, a
burst and what a rival stores a gigabyte of memory is taken and given back: on a virtual machine its host may have to find it first, and that
would count as theirs.
- copy: consume, produce, nothing else, as fast as the client's Rust crate lets (poll and send), and as fast as librdkafka can (batches from
  its queue, a topic's handle, headers unparsed): the floor.
- ingress: the service as `ingress` alone, dues spread as the workload says (usually over 24 hours); from the birth of the shards until the
  store's watermarks stand at the source's end. Judged by what the store counts as pending, and by a target where nothing may be yet.
- drain: the service as `timer` alone, started when everything is overdue; from its leases to the broker's stamp of the last record.
- embedded: the same with the embedded store, by the whole service in one process; every batch is on the disk (fsync) before it counts. Its
  bytes are those of the folder's files, journal and all.
- steady: the whole service, delays as the workload says (usually 2 to 10 seconds); its processor time includes all waiting. After its due: by
  the broker's stamp (LogAppendTime of the target) against the due that was sent. Before the first, half a minute of such a load goes
  unmeasured: until a fresh JVM has compiled what serves it, it takes a core more. The same before the first exactly-once one. In its last
  fifth: of what was due while the last fifth of the load was sent; far above the p50, the lateness grows.
- burst: all messages due in the same millisecond, in all partitions but the last, stored while the service runs; from that millisecond to the
  broker's stamp of the last of them. The last partition has 1000/s with the steady load's delays: of those that were due while the burst was
  delivered, their lateness.
- answers: the greatest steady load, and a cancel with an answer for every fifth message of it; the cancelled messages were stored before. From
  the cancel (this machine's clock) to the broker's stamp of its answer, and the lateness of the load beside it.
- seen: by a consumer that reads only what is committed, when it has it, by this machine's clock.
- timers (fleet): 1000/s, and a timer more, one that is asked to end (SIGTERM), one that is killed (kill -9; leases last 5 s), twelve seconds
  apart: of what was due in the twelve seconds after each, how late it is seen.
- idle: the whole service, 64 partitions that nobody writes to; a minute, after ten seconds.
- deep (only `STAGES=deep`): a steady load with nothing waiting; then messages that wait for days (usually 10 million over 30 days), through
  the source as fast as they come, the service at work; when all of it is on the disk a restart, and at once the same load beside them, in
  the same shards, while the rewriter merges what waits; and once more when it has nothing left to do. What waits is judged by the store's
  own count, and by a target that has none of it. Start-up: until it is ready and holds the lease of every shard. Most memory: VmHWM of the process, whose budget bounds only
  what messages that are loaded take of it.
- per-message layout: what is built by hand in Redis, as cheaply as it can be: a member of a sorted set and a field of a hash for each message,
  a queue for each partition, written in pipelines of 500 (HSET, ZADD), looked for by ZRANGEBYSCORE of 500 every 5 ms, fetched by HMGET, removed
  by a script. It does less than Postdate: it reads and writes no Kafka, has no leases, no retries, no cancelling, and two of it deliver a
  message twice. Its processor time is the load's, too, and not told.
- asynq: the Go library, by a program of its own that gets the same messages (at most 100000 of the same for the first two stages), with
  64 requests under way at once since it has none for several tasks, 64 workers, looks for what is due every 100 ms (usually 5 s) and for work
  every 5 ms (usually 1 s). Its handler drops the message: no Kafka. It counts in whole seconds, so that a due is rounded up to the next. It
  does what Postdate does not: tasks that are retried, timed out, prioritised and watched one by one.
- both: the same Redis, in the same run. Their lateness is that of the hand-over, Postdate's that of the broker's stamp, after Kafka has it.
  A rate that one of them cannot follow (less than in and out, one after the other, would take) is left out.
- NATS (only `STAGES=nats`): from stream to stream of a NATS server, files on the disk as it keeps them by default, the same messages (their keys as headers), as many
  filter subjects as there are partitions. Reading: one consumer of the whole stream that acknowledges nothing. Copy: that, and each message
  published to another stream and confirmed, 8000 of them under way, by one thread; once with a `Nats-Msg-Id` on each, as Postdate's own have,
  for which the server remembers two minutes of ids. Ingress is held against reading, all else against the copy without ids.
- NATS schedules: the server's own, each message with `Nats-Schedule` on a subject of its own, to a subject of the same stream. Bytes are those of
  the stream. They know no retries, dead letters or order; a rate that is more than could be stored is left out.
- CPU: of the copy or the service, microseconds a message, user and system, from /proc/PID/stat; Redis likewise, without the child that
  rewrites its file. Bytes: of Redis' used_memory with the messages less without, or of the folder, a waiting message. Others' CPU: the part of
  all cores that went to programs which are not of this run.
- arrived: by numbers in the payloads, none lost, doubled, changed, dead-lettered, or stamped before its due.";
