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
The speed of a machine changes within hours, and with its other work. Compare ratios of one run only. On a virtual machine, new memory may
come from the host first. So each measurement at full speed first allocates a gigabyte and frees it again.
- copy: consume and produce, nothing else. *poll and send* uses the API of the Rust crate. *in batches* uses the fastest API of librdkafka; it
  is the floor of the ratios.
- ingress: a process with the role `ingress`. It is measured from the creation of the shards until the store has all messages. The delays
  are those of the workload, usually up to 24 hours.
- drain: a process with the role `timer`, started when all messages are overdue. It is measured from its leases to the last message.
- through: the whole service, started when the source has all messages. It reads and delivers at the same time. It is measured from the first
  message to the last one. *overdue*: the due times passed before, and are shuffled. *without delay*: due when they were sent.
- embedded: the same as ingress and drain, with the embedded store. Each batch is on the disk (fsync) before it counts. The bytes are those
  of the folder's files, with the journal.
- steady: the whole service. The delays are those of the workload, usually 2 to 10 seconds. Lateness is the broker's timestamp (LogAppendTime)
  minus the due time. A load of 30 seconds before it is not measured, because a new JVM still compiles its code then. If the p50 of the
  last fifth is much greater than the p50, the lateness grows.
- held in memory: the same load. This process keeps the messages in memory until they are due: the floor of the lateness.
- burst: all messages of all partitions but the last are due in one millisecond. They are stored while the service runs. The measurement lasts
  from that millisecond to the last message. The last partition has a steady load of 1000/s; its lateness is that of the messages that
  were due meanwhile.
- answers: the greatest steady load, and one cancel with an answer for every fifth message of it. The time of an answer is from the cancel
  to the broker's timestamp of the answer.
- seen: measured by a consumer that reads only committed messages, when it receives them.
- timers: 1000/s while a timer joins, one is stopped with SIGTERM, and one is killed with SIGKILL, twelve seconds apart. The row has the
  messages that were due in the twelve seconds after it.
- idle: the whole service with 64 partitions without messages: one minute, after ten seconds.
- many: the whole service with 256 and 1024 partitions, and 1000/s with delays of 0.5 to 5 seconds. The load begins as soon as the service is
  ready. *the start*: the messages of the first 8 seconds.
- routes: the same load over 200 routes of two partitions in one process, and the same process without messages. *backlog*: messages arrive for
  one route while the process is frozen for three seconds, and are due in an hour. It is measured from the end of the freeze until all are stored:
  with the 200 routes, and in a process with one route.
- flood: one route gets as many messages as one producer can send, with delays of 0.5 to 5 seconds. Another route of the same process has a
  steady load. Its rows have the messages that were due while the flood was delivered, and the three seconds with the greatest p99 of them.
- deep (only `STAGES=deep`): a steady load on an empty store. Then messages are stored that wait for days, usually 10 million over 30 days. Then
  the service restarts, and the same load runs beside them: first while compaction works, and again when it has finished. Start-up lasts until
  the service is ready and holds all leases. *most memory* is the peak of the process (VmHWM).
- per-message layout: a scheduler as one would write it on Redis: one sorted-set member and one hash field for each message, a queue for
  each partition. It writes pipelines of 500, and asks for 500 due messages every 5 ms. It has no Kafka, leases, retries or cancels, and two
  processes would deliver a message twice. Its processor time includes the load and is not shown.
- asynq, Redisson, BullMQ: libraries in Go, Java and Node.js, each in a process of its own, with the same messages (at most 100000 in the first
  two stages). Their handler checks the message and drops it, so they have no Kafka. The time of the process includes the load.
- asynq: 64 workers and 64 requests in flight. It has no bulk request. It asks for due messages every 100 ms (its default: 5 s) and for work every
  5 ms (its default: 1 s). It counts whole seconds, so due times are rounded up.
- Redisson: 4 queues (`RDelayedQueue`) and the default pool of 64 connections, with 256 requests in flight, because its batches (`RBatch`) have no delayed
  queues. Each queue has two workers. They wait in a blocking request, and then take up to 500 messages in the next one. A message is bytes
  without a codec. Redisson moves 100 due messages at once, and searches a list for each one. It has no acknowledgements, and its delayed
  queue is deprecated for one of the commercial edition.
- BullMQ: bulks of 500 (`addBulk`), two in flight. Two threads with a worker each take jobs, 64 at once. Completed jobs are removed. The payload is
  part of the job's JSON.
- Before their measurements, Redisson and BullMQ move 20000 messages through another queue, because Java and Node.js compile code while it runs.
- per-message layout, asynq, Redisson and BullMQ use the same Redis in the same run. Their lateness ends at the handler, that of Postdate at the
  broker. A rate that one of them cannot reach is left out.
- NATS (only `STAGES=nats`): from stream to stream of one server, with files on the disk and the same messages. *reading*: one consumer
  of the whole stream, without acknowledgements. *copy*: each message is also published and confirmed, with 8000 in flight. Postdate's own
  messages have a `Nats-Msg-Id`; the copy *each with an id* has one, too. Ingress is compared with reading, everything else with the copy.
- NATS schedules: those of the server. Each message has a subject of its own and the header `Nats-Schedule`. They have no retries, dead letters
  or order. A rate that could not be stored is left out.
- CPU: user and system time in microseconds for each message, of the copy or the service, from /proc/PID/stat. The time of Redis does not
  include the child that rewrites its file. *bytes stored*: the growth of used_memory, or of the folder, for each waiting message.
  *others' CPU*: the share of all cores that other programs used.
- arrived: the check of each message: none lost, doubled, changed, dead-lettered, or before its due time.";
