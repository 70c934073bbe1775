//! Sends outcome records: what became of each message, for an audit.
//!
//! The ingress and the timer give a record to the [`OutcomeTopic`] of its route once the fate of a message is
//! known. They never wait for it. The [`OutcomeSender`] sends the records with clients of its own, so they take no
//! room from messages. If their topic does not take them, they are dropped and counted.

mod sender;

use crate::limit::DELIVERY_ALERT_INTERVAL;
use crate::metric::RouteMetrics;
use crate::model::OutcomeRecord;
pub(crate) use sender::OutcomeSender;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The outcome topic of a route.
#[derive(Clone)]
pub(crate) struct OutcomeTopic {
    deployment: Arc<str>,
    route: Arc<OutcomeRoute>,
    records: mpsc::Sender<Queued>,
}

/// A record, and the number of its route.
pub(crate) struct Queued {
    route: u16,
    record: OutcomeRecord,
}

/// A route with outcome records.
pub(crate) struct OutcomeRoute {
    name: String,
    /// Identifies the route in the tickets of records.
    number: u16,
    cluster: String,
    topic: String,
    metric: RouteMetrics,
    next_log: Mutex<Option<Instant>>,
}

/// The outcome topics of these routes by their names. Also the routes for the [`OutcomeSender`], and its queue of this
/// many records. `routes` has names, clusters and topics.
pub(crate) fn outcome_topics(
    deployment: &str,
    routes: impl IntoIterator<Item = (String, String, String)>,
    queue: usize,
) -> (
    BTreeMap<String, OutcomeTopic>,
    Vec<Arc<OutcomeRoute>>,
    mpsc::Receiver<Queued>,
) {
    let (records, receiver) = mpsc::channel(queue);
    let deployment: Arc<str> = deployment.into();
    let routes = (0..)
        .zip(routes)
        .map(|(number, (name, cluster, topic))| OutcomeRoute {
            metric: RouteMetrics::new(&name),
            name,
            number,
            cluster,
            topic,
            next_log: Mutex::default(),
        });
    let routes: Vec<_> = routes.map(Arc::new).collect();
    let topics = routes.iter().map(|route| {
        let topic = OutcomeTopic {
            deployment: deployment.clone(),
            route: route.clone(),
            records: records.clone(),
        };
        (route.name.clone(), topic)
    });
    (topics.collect(), routes, receiver)
}

impl OutcomeTopic {
    pub(crate) fn deployment(&self) -> &str {
        &self.deployment
    }

    /// Sends a record, or drops it if too many wait.
    pub(crate) fn send(&self, record: OutcomeRecord) {
        let route = self.route.number;
        if self.records.try_send(Queued { route, record }).is_err() {
            self.route
                .drop_records(1, "too many records wait to be sent");
        }
    }

    /// This number of records cannot be made.
    pub(crate) fn lose(&self, count: usize, why: &str) {
        self.route.drop_records(count, why);
    }
}

impl OutcomeRoute {
    /// Counts dropped records. Logs one reason per interval, as an example.
    fn drop_records(&self, count: usize, why: &str) {
        self.metric.outcome_records_missing.increment(count as u64);
        let now = Instant::now();
        let mut next = self.next_log.lock().unwrap_or_else(PoisonError::into_inner);
        if next.is_none_or(|next| next <= now) {
            *next = Some(now + DELIVERY_ALERT_INTERVAL);
            let (route, topic, interval) =
                (&self.name, &self.topic, DELIVERY_ALERT_INTERVAL.as_secs());
            tracing::warn!(
                route,
                topic,
                "an outcome record is dropped: {why} (others within {interval} s are only counted)"
            );
        }
    }
}
