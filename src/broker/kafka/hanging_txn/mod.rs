//! Finds and ends transactions that a broker left open, before the next producer of the same
//! `transactional.id` begins.
//!
//! **The fault.** Kafka (seen with 4.3) treats a partition without a leader as deleted. When the
//! only replica's broker restarts or is fenced, the coordinator may complete a transaction without
//! writing its end to that partition. There the transaction hangs: `read_committed` consumers see
//! nothing behind it. The next transaction of the same producer in that partition ends it. If that
//! one is aborted, committed messages are lost.
//!
//! **The repair.** Before the next producer begins, the leaders of all partitions that the last
//! transaction may have written to list the open transactions of past producers. Each is ended as
//! the coordinator had decided (`history`), as `kafka-transactions.sh` does by hand. Repeating the
//! repair is harmless: a partition without an open transaction does not change.
//!
//! **A transaction behind a hanging one.** A broker that is stopping may still accept the start of
//! another transaction of the same producer, and even records (seen with 4.3: up to 16). In the
//! partitions of the hanging one, both then end together. So `transactions` closes a producer that
//! has sent records only after their commit. If its process crashed as well, the fence would abort
//! both. The offsets partition shows this case: its open transaction is not the one in progress.
//! Then the one in progress is committed before the fence, and its messages are delivered twice.
//!
//! The repair needs brokers without TLS and login (`protocol_client`).
//!
//! | file | duty |
//! |---|---|
//! | `recovery` | The repair and its log messages. |
//! | `detect` | Finds the last transaction and the hanging ones. Changes nothing. |
//! | `history` | The outcomes of the last transactions, and the decisions that follow. |
//! | `protocol_client` | Kafka protocol requests that librdkafka does not offer. |
//! | `offsets_partition` | The partition of `__consumer_offsets` that holds a group's offsets. |

mod detect;
mod history;
mod offsets_partition;
mod protocol_client;
mod recovery;

pub(super) use offsets_partition::colocated_group;
pub(super) use recovery::{Recovery, RecoveryFailed, RecoveryState};
