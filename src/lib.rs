//! # Start here
//!
//! Postdate adds delayed delivery to Kafka and NATS. A producer sends a record to a source topic
//! with a header such as `postdate-after: 30m`. The message waits in the store, which is Redis or a
//! local folder. At its due time it is sent to its target topic.
//!
//! ## The life of a message
//! ```text
//!  source: Kafka topic or NATS stream                   target: Kafka topic or NATS subject
//!       |  broker/{kafka,nats}                                 broker/{kafka,nats}  ^
//!       v                                                                           |
//!  +- ingress --------------------------+   +- timer ------------------------------------------+
//!  | parse     headers -> due time, or  |   | lease       the shards that this worker delivers |
//!  |           a rejection with reason  |   | load        runs -> memory, before their time    |
//!  | batch     messages -> runs         |   | compactor   merges small runs, splits large ones |
//!  | appender  compare-and-append (I2)  |   | schedule    the next messages, as a pair (C, W)  |
//!  | commit    stored offsets only (I1) |   | dispatcher  claim -> wait until due -> send ->   |
//!  |                                    |   |             delivered (I4), retry or dead letter |
//!  +-----------------|------------------+   +--------------------^-----------------------------+
//!                    |   store/redis with lua/, store/embedded   |
//!                    +--------> runs, W, claimed, delivered -----+
//! ```
//! A *shard* is the set of waiting messages of one source partition. Its state is in one Redis hash
//! slot: the *watermark* W (next source offset that the store accepts), *runs* of messages by
//! *slice* (period of due times), and two pairs of *cursor* and watermark, (C, W): *claimed* is
//! written before messages are sent, *delivered* after. **A message is done if and only if its
//! offset is below W and its (due, offset) is at most C, both of the delivered pair.** The source
//! log is the truth: a store that lost data is filled from it again.
//!
//! Any number of workers share the work: `membership` decides which of them reads a shard and which
//! delivers it, and a lease protects the delivery. A consumer group only keeps commits. An exactly-once
//! route writes the delivered pair inside the transaction of the broker, so its store only saves work.
//!
//! `docs/internals/protocol.md` explains the protocol, and `docs/internals/glossary.md` the words.
//!
//! ## Invariants and promises
//! Code cites the invariants I1-I6 of `docs/internals/protocol.md` and the promises G1-G7 of
//! `docs/promises.md` by number. Some things are absent on purpose: the ingress never sends to a
//! broker, and only `config`, `role` and `command` name concrete stores and brokers. No message has
//! its own task, lock or store call. A message is logged only for an audit or an error. Only `clock`
//! reads the time of day.
//!
//! ## Threads
//! `TaskGroup` starts the threads of each role's loops; the lease loop and the dispatcher share the
//! thread `timer`. `role/mod.rs` has the table. Broker clients and the embedded store start further threads in their adapters.
//! Channels between threads are bounded.
//!
//! ## Layers: a file imports its own folder and lower rows
//! | row | modules |
//! |---|---|
//! | shell | `cli` `config` `role` `command` `telemetry` `testing` |
//! | roles | `ingress` `timer` `admin` |
//! | membership | `membership` |
//! | adapters | `store::redis` `store::embedded` `broker::kafka` `broker::nats` |
//! | ports | `store` `broker` `task` `metric` `trace` `health` `clock` `client_thread` `http_client` `retry` |
//! | algorithms | `encryption` `run` `wheel` `schedule` |
//! | domain | `model` `limit` |
//!
//! `integration/tidy.rs` checks this. Exceptions: roles import no adapters, and a few modules import
//! another one of their row.
//!
//! ## Reading path
//! 1. `role/mod.rs`: the threads and their parts.
//! 2. `ingress/mod.rs`, `ingress/read_loop.rs`, `model/parsing/parse_record.rs`: from a record to
//!    an append.
//! 3. `store/mod.rs` and `lua/append.lua`: the store port, and its most important script.
//! 4. `timer/shard/load.rs` (new runs, from the tail) and `timer/shard/prefetch.rs` (lists and
//!    fetches stored runs): from the store into memory.
//! 5. `schedule/mod.rs`: which messages come next.
//! 6. `timer/dispatcher.rs`, `timer/claim_call.rs`, `timer/delivery/send.rs` and `lua/advance.lua`:
//!    from a claim to a delivery.
//!
//! `fault!(Name)` in this code is `false` outside tests: see `testing/fault_injection.rs`.
//!
//! `CONTRIBUTING.md` lists what a new broker, store or control header changes. The contract suites in
//! `testing` tell when a broker or a store is complete.

#[macro_use]
mod testing;

mod admin;
mod broker;
mod cli;
mod client_thread;
mod clock;
mod command;
mod config;
mod encryption;
mod health;
mod http_client;
mod ingress;
mod limit;
mod membership;
mod metric;
mod model;
mod retry;
mod role;
mod run;
mod schedule;
mod store;
mod task;
mod telemetry;
mod timer;
mod trace;
mod wheel;

pub use cli::{
    AuditArgs, CancelOneArgs, CheckArgs, Cli, Command, CompletionArgs, DemoArgs, InitArgs,
    LedgerArgs, MessagesArgs, PauseArgs, PendingArgs, PurgeArgs, QuarantineArgs, RedriveArgs,
    RescheduleArgs, ResetArgs, RunArgs, SchedulesArgs, SendArgs, ServiceArgs, StoreAction,
    StoreArgs, StoreCopyArgs, WorkersArgs,
};
pub use command::{
    Access, Outcome, Refused, audit, check, complete, demo, init, ledger, messages, pause, pending,
    purge, quarantine, redrive, reset, resume, schedules, send, store_copy, workers,
};
pub use config::{Config, Error as ConfigError};
pub use role::serve as run;
pub use telemetry::Telemetry;

/// Contract suites for the integration tests, which run them on real servers.
#[cfg(feature = "test-support")]
pub mod test_support {
    pub use crate::broker::kafka::{kafka_contract, kafka_outage_contract};
    pub use crate::broker::nats::{nats_contract, nats_outage_contract};
}
