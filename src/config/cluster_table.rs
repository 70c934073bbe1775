//! The table of a cluster, of any kind of broker.

use super::broker_kind::BrokerKind;
use super::check::At;
use crate::broker::Cluster;

pub(crate) trait ClusterTable {
    fn kind(&self) -> BrokerKind;

    fn check(&self, at: &At<'_>);

    /// The addresses of its servers, without a login.
    fn addresses(&self) -> Vec<String>;

    /// Host and port of its servers.
    fn host_ports(&self) -> Vec<String>;

    /// The cluster as its adapter takes it.
    fn cluster(&self, name: &str, deployment: &str) -> Box<dyn Cluster>;
}
