//! The Kafka adapter, built on librdkafka.
//!
//! | file | duty |
//! |---|---|
//! | `options` | client options: defaults, limits, and the properties that Postdate enforces |
//! | `error` | maps librdkafka's results to the ports' results |
//! | `health` | tracks whether the cluster responds, and reports it to readiness |
//! | `topic_name` | the rules for topic names |
//! | `topic_handles` | the topic handles of one producer |
//! | `partition_list` | partition lists with offsets, as librdkafka takes them |
//! | `source/` | the [`Source`](super::Source) port: two consumers on one thread |
//! | `producer/` | the [`Target`](super::Target) port: a producer that is replaced after a fatal error |
//! | `transactions/` | the [`TransactionalProducers`](super::TransactionalProducers) port |
//! | `hanging_txn/` | finds and ends transactions that a broker left open |
//! | `admin/` | the [`Catalog`](super::Catalog) and [`ClusterDescriber`](super::describe::ClusterDescriber) ports |
//! | `mock` | a Kafka broker inside this process, for the demo |
//! | `contract` | runs the broker contract against a real Kafka, for the integration tests |
//! | `ffi/` | the librdkafka calls that the `rdkafka` crate has no safe form of |

mod admin;
#[cfg(feature = "test-support")]
mod contract;
mod error;
mod ffi;
mod hanging_txn;
mod health;
mod mock;
mod options;
mod partition_list;
mod producer;
mod source;
mod topic_handles;
mod topic_name;
mod transactions;

pub(crate) use admin::KafkaCatalog;
#[cfg(feature = "test-support")]
pub use contract::{kafka_contract, kafka_outage_contract};
pub(crate) use mock::InProcessKafka;
pub(crate) use options::Cluster;
pub(crate) use producer::KafkaTarget;
pub(crate) use source::KafkaSource;
pub(crate) use transactions::KafkaTransactionalProducers;
