//! Sends outcome records: what became of each message, for an audit.
//!
//! A record is sent once its message is acknowledged or passed, or is part of a committed transaction. No message
//! waits for it. The records have clients of their own, so they take no room from messages. If their topic does not take
//! them, they are dropped and counted.

use super::in_flight::ClaimedBatch;
use super::outcome::ShardContext;
use super::record::{Destination, original_due};
use crate::broker::{DeliveryReport, OutgoingRecord, SendResult, Target};
use crate::model::{
    Disposition, Effect, Fate, Headers, OutcomeRecord, header_name, records_of_request,
};
use crate::timer::RouteOptions;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The clients for outcome records, by cluster.
#[derive(Default)]
pub(crate) struct OutcomeRecords {
    pub(super) targets: BTreeMap<String, Box<dyn Target>>,
    unreported_max: usize,
    /// By the numbers of the routes.
    routes: BTreeMap<u16, RouteRecords>,
    /// Records that a client has accepted and not reported on.
    unreported: usize,
    /// Records that a client has accepted.
    sent: u64,
}

/// The part of one route.
struct RouteRecords {
    route: Rc<RouteOptions>,
    unreported: usize,
}

impl OutcomeRecords {
    /// `targets` must have the target cluster of each route with outcome records, and room for `unreported_max`
    /// records each.
    pub(crate) fn new(targets: BTreeMap<String, Box<dyn Target>>, unreported_max: usize) -> Self {
        Self {
            targets,
            unreported_max,
            ..Self::default()
        }
    }

    pub(super) fn are_unreported(&self) -> bool {
        self.unreported > 0
    }

    /// Sends the records of a message or request whose fate is known, if its route has an outcome topic.
    pub(crate) fn send(&mut self, context: &ShardContext, batch: &ClaimedBatch, index: usize) {
        let Some(topic) = context.outcomes() else {
            return;
        };
        for record in context.outcome_records(batch, index).into_iter().flatten() {
            self.send_record(context, topic, &record);
        }
    }

    fn send_record(&mut self, context: &ShardContext, topic: &str, record: &OutcomeRecord) {
        let route = &context.route;
        let records = (self.routes.entry(route.number)).or_insert_with(|| RouteRecords {
            route: route.clone(),
            unreported: 0,
        });
        // A route may use three times what it leaves for the others, so one topic does not stop all records.
        if records.unreported >= 3 * (self.unreported_max - self.unreported) {
            return on_dropped(route, 1, "too many records wait for their acknowledgement");
        }
        let (id, json) = (record.record_id(), record.to_json());
        let outgoing = OutgoingRecord {
            topic,
            partition: None,
            key: Some(record.origin.as_bytes()),
            payload: Some(&json),
            headers: Headers::default(),
            keep_header: |_| false,
            extra_headers: &[(header_name::OUTCOME, id.as_bytes())],
        };
        let target = (self.targets.get_mut(&route.target_cluster))
            .expect("the wiring makes a client for each cluster with an outcome topic");
        // The lower bits tell the route of a report.
        let ticket = self.sent << 16 | u64::from(route.number);
        match target.send(&outgoing, ticket) {
            SendResult::Accepted => {
                self.sent += 1;
                records.unreported += 1;
                self.unreported += 1;
            }
            SendResult::QueueFull => on_dropped(route, 1, "the queue of the client is full"),
            SendResult::Failed(failure) => on_dropped(route, 1, &failure.detail),
        }
    }

    pub(crate) fn on_reports(&mut self, reports: &[DeliveryReport]) {
        for report in reports {
            let Some(RouteRecords { route, unreported }) =
                self.routes.get_mut(&(report.ticket as u16))
            else {
                continue;
            };
            *unreported -= 1;
            self.unreported -= 1;
            match &report.outcome {
                Ok(()) => route.metric.outcome_records.increment(1),
                Err(failure) => on_dropped(route, 1, &failure.detail),
            }
        }
    }

    /// The timer ends, and its clients with it.
    pub(crate) fn drop_unreported(&mut self) {
        for RouteRecords { route, unreported } in self.routes.values_mut() {
            if *unreported > 0 {
                on_dropped(
                    route,
                    *unreported,
                    "the timer stops before their acknowledgement",
                );
                *unreported = 0;
            }
        }
        self.unreported = 0;
    }
}

fn on_dropped(route: &RouteOptions, count: usize, why: &str) {
    let missing = &route.metric.outcome_records_missing;
    missing.increment(count as u64);
    let topic = route.rules.outcomes().unwrap_or_default();
    route.alerts.on_record_dropped(topic, why);
}

impl ShardContext {
    fn outcomes(&self) -> Option<&str> {
        self.route.rules.outcomes()
    }

    /// The outcome records of a message or request whose fate is known.
    fn outcome_records(&self, batch: &ClaimedBatch, index: usize) -> [Option<OutcomeRecord>; 2] {
        let Some(message) = batch.message(index) else {
            return [None, None];
        };
        let partition = self.shard.partition.index;
        let due = match message.body.disposition {
            // The request has told it.
            _ if batch.is_cancelled(message.place) => return [None, None],
            Disposition::Answer(answer) => {
                let effect = batch.effect(index).unwrap_or(Effect::None);
                let offset = message.place.offset;
                return records_of_request(&answer, effect, offset, partition, &self.origins);
            }
            Disposition::RetriedAnswer(_) => return [None, None],
            Disposition::Relay { .. } => None,
            _ => original_due(&message),
        };
        let (mut code, mut attempt) = (None, None);
        let reroute = batch.reroutes.get(&index);
        let fate = match reroute.filter(|_| !fault!(TellAllAsDelivered)) {
            None => Fate::Delivered,
            Some(reroute) => {
                code = Some(reroute.reason.code());
                match reroute.destination {
                    // The request has told it.
                    Destination::Reschedule { .. } => return [None, None],
                    Destination::RetryViaSource {
                        attempt: failed, ..
                    } => {
                        attempt = Some(failed);
                        Fate::Retried
                    }
                    Destination::Dropped => Fate::Expired,
                    _ => Fate::DeadLettered,
                }
            }
        };
        let mut origin = String::new();
        self.append_origin(&message, &mut origin);
        let record = OutcomeRecord {
            code,
            attempt,
            ..OutcomeRecord::new(fate, origin, message.body.id, partition, due)
        };
        [Some(record), None]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::OUTCOME_RECORDS_MAX;
    use crate::model::{Naming, Partition, ReplyRules, ShardId, TargetRules};
    use async_trait::async_trait;
    use metrics::Counter;
    use std::cell::RefCell;
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Accepts all records, and never reports.
    struct Silent(Rc<RefCell<Vec<u64>>>);

    #[async_trait(?Send)]
    impl Target for Silent {
        fn send(&mut self, _: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
            self.0.borrow_mut().push(ticket);
            SendResult::Accepted
        }

        async fn next_reports(&mut self) -> Vec<DeliveryReport> {
            pending().await
        }

        async fn close(&mut self) {}
    }

    struct Scene {
        records: OutcomeRecords,
        tickets: Rc<RefCell<Vec<u64>>>,
        contexts: Vec<ShardContext>,
        missing: Vec<Arc<AtomicU64>>,
    }

    impl Scene {
        fn with_routes(count: u16) -> Self {
            let tickets: Rc<RefCell<Vec<u64>>> = Rc::default();
            let target: Box<dyn Target> = Box::new(Silent(tickets.clone()));
            let targets = BTreeMap::from([("main".to_owned(), target)]);
            let mut scene = Self {
                records: OutcomeRecords::new(targets, OUTCOME_RECORDS_MAX),
                tickets,
                contexts: Vec::new(),
                missing: Vec::new(),
            };
            for number in 0..count {
                let shard = ShardId::new("r", Partition::new("t", 0));
                let mut context = ShardContext::for_test(shard);
                let missing: Arc<AtomicU64> = Arc::default();
                let route = Rc::get_mut(&mut context.route).expect("one owner");
                route.number = number;
                route.metric.outcome_records_missing = Counter::from_arc(missing.clone());
                route.rules.replies = Some(ReplyRules {
                    targets: TargetRules::replies(Naming::Topic, [""; 0], [""; 0]),
                    outcomes: Some("audit".to_owned()),
                    is_exactly_once: false,
                });
                scene.contexts.push(context);
                scene.missing.push(missing);
            }
            scene
        }

        /// Sends so many records of a route. Returns how many are dropped.
        fn send(&mut self, route: usize, count: usize) -> u64 {
            let before = self.missing[route].load(Ordering::Relaxed);
            let context = &self.contexts[route];
            let topic = context.outcomes().expect("the route has a topic");
            let record = OutcomeRecord::new(Fate::Delivered, "o".to_owned(), None, 0, None);
            for _ in 0..count {
                self.records.send_record(context, topic, &record);
            }
            self.missing[route].load(Ordering::Relaxed) - before
        }

        /// Acknowledges all records that the client has.
        fn acknowledge(&mut self) {
            let tickets = self.tickets.take();
            let reports = tickets.into_iter().map(|ticket| DeliveryReport {
                ticket,
                position: None,
                outcome: Ok(()),
            });
            self.records.on_reports(&reports.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_topic_that_does_not_answer_leaves_room_for_the_records_of_other_routes() {
        let mut scene = Scene::with_routes(3);
        let most = OUTCOME_RECORDS_MAX / 4 * 3;
        assert_eq!(scene.send(0, most), 0);
        assert_eq!(scene.send(0, 10), 10, "it has three quarters of the room");
        assert_eq!(scene.send(1, most / 4), 0);
        assert_eq!(scene.send(1, 10), 10, "it has three quarters of the rest");
        assert_eq!(scene.send(2, 100), 0);
        scene.acknowledge();
        assert!(!scene.records.are_unreported());
        assert_eq!(scene.send(1, most), 0);
    }

    #[test]
    fn each_record_has_another_ticket_and_those_that_a_stop_drops_are_counted() {
        let mut scene = Scene::with_routes(2);
        assert_eq!((scene.send(0, 3), scene.send(1, 2)), (0, 0));
        let mut tickets = scene.tickets.borrow().clone();
        tickets.dedup();
        assert_eq!(tickets.len(), 5);
        scene.records.drop_unreported();
        let missing = |it: &Arc<AtomicU64>| it.load(Ordering::Relaxed);
        assert_eq!(
            scene.missing.iter().map(missing).collect::<Vec<_>>(),
            [3, 2]
        );
        assert!(!scene.records.are_unreported());
    }
}
