//! Builds the broker clients of the demo's own loops: one sends to the source, one watches the
//! target.

use super::venue::Venue;
use crate::broker::{Source, Target};
use crate::config::Config;
use crate::health::HealthPart;
use crate::limit::DEMO_IN_FLIGHT_MAX;
use crate::model::Dialects;
use crate::role::{Cluster, SourceOptions, TargetOptions, TargetPurpose};
use anyhow::Result;

/// The configuration and clusters of the demo's clients.
#[derive(Clone)]
pub(super) struct Clients {
    config: Config,
    source_cluster: String,
    target_cluster: String,
}

impl Clients {
    pub(super) fn of(venue: &Venue) -> Self {
        let route = &venue.config.routes[&venue.route];
        Self {
            config: venue.config.clone(),
            source_cluster: route.source.cluster.clone(),
            target_cluster: route.target_cluster().to_owned(),
        }
    }

    /// The client that sends to the source. `run` is a name that no other demo has.
    pub(super) fn target(&self, run: &str, health: HealthPart) -> Result<Box<dyn Target>> {
        let options = TargetOptions {
            purpose: TargetPurpose::Fast,
            in_flight_max: DEMO_IN_FLIGHT_MAX,
            sender: run.to_owned(),
        };
        Cluster::of(&self.config, &self.source_cluster).target(options, health)
    }

    /// The client that watches `topics` of the target, as the only member of `group`.
    pub(super) fn source(
        &self,
        group: String,
        topics: Vec<String>,
        health: HealthPart,
    ) -> Result<Box<dyn Source>> {
        let options = SourceOptions {
            group,
            member: "watcher".to_owned(),
            topics,
            dialects: Dialects::default(),
        };
        Cluster::of(&self.config, &self.target_cluster).source(options, health)
    }
}
