//! The Kafka adapter, built on librdkafka.
//!
//! | file | duty |
//! |---|---|
//! | `options` | Client options: defaults, limits and enforced properties. |
//! | `cluster` | The [`Cluster`](super::Cluster) port, which opens all clients. |
//! | `rights` | The ACLs that the service needs. |
//! | `facts` | The configuration keys and texts of its clusters. |
//! | `error` | Maps librdkafka's results to the ports' results. |
//! | `login` | Logins with tokens, which it renews. |
//! | `password` | Passwords, which a reload of the configuration changes. |
//! | `health` | Tracks whether the cluster responds, for readiness. |
//! | `limit` | Buffers and times. |
//! | `group_offsets/` | Offsets of many groups, by one client. |
//! | `end_reader` | Reads the new records of a topic, for a command. |
//! | `producer_client` | The caller's side of a producer: sends, retires, closes. |
//! | `partition_list` | Partition lists with offsets, as librdkafka takes them. |
//! | `source/` | The [`Source`](super::Source) port: one consumer for many routes. |
//! | `stored_records` | The [`StoredRecords`](super::StoredRecords) port. |
//! | `producer/` | The [`Target`](super::Target) port, with failover after a fatal error. |
//! | `transactions/` | The [`TransactionalProducers`](super::TransactionalProducers) port. |
//! | `admin/` | The [`Catalog`](super::Catalog) and `Inspector` ports. |
//! | `contract` | Runs the broker contract against a real Kafka. |
//! | `ffi/` | The librdkafka calls that the `rdkafka` crate has no safe form of. |

mod admin;
mod cluster;
#[cfg(feature = "test-support")]
mod contract;
mod end_reader;
mod error;
mod facts;
mod ffi;
mod group_offsets;
mod health;
mod limit;
mod login;
mod options;
mod partition_list;
mod password;
mod producer;
mod producer_client;
mod rights;
mod source;
mod stored_records;
mod transactions;

use admin::KafkaCatalog;
#[cfg(feature = "test-support")]
pub use contract::{kafka_contract, kafka_outage_contract};
use end_reader::EndReader;
pub(crate) use facts::FACTS;
pub(crate) use ffi::InProcessKafka;
pub(crate) use options::Cluster;
use producer::KafkaTarget;
use source::KafkaSource;
use stored_records::KafkaStoredRecords;
use transactions::KafkaTransactionalProducers;
