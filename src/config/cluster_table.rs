//! The table of a cluster, of any kind of broker.

use super::check::At;
use crate::broker::Cluster;

pub(crate) trait ClusterTable {
    fn check(&self, at: &At<'_>);

    /// The addresses of its servers, without a login: host and port, after a scheme if there is one.
    fn addresses(&self) -> Vec<String>;

    /// The cluster as its adapter takes it.
    fn cluster(&self, name: &str, deployment: &str) -> Box<dyn Cluster>;
}
