//! The loop that sends the outcome records of all routes.

use super::{OutcomeRoute, Queued};
use crate::broker::{DeliveryReport, OutgoingRecord, SendResult, Target};
use crate::limit::{OUTCOME_RECORDS_FINISH_TIMEOUT, OUTCOME_RECORDS_PER_TURN};
use crate::model::{Headers, OutcomeRecord, header_name};
use futures_util::future::{join_all, pending, select_all};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub(crate) struct OutcomeSender {
    /// The clients by cluster. Each has room for `unreported_max` records.
    targets: BTreeMap<String, Box<dyn Target>>,
    /// By number.
    routes: Vec<RouteRecords>,
    unreported_max: usize,
    /// Records that a client has accepted and not reported on.
    unreported: usize,
    /// Records that a client has accepted.
    sent: u64,
}

struct RouteRecords {
    route: Arc<OutcomeRoute>,
    unreported: usize,
}

impl OutcomeSender {
    /// `targets` must have the cluster of each route, and room for `unreported_max` records each.
    pub(crate) fn new(
        targets: BTreeMap<String, Box<dyn Target>>,
        routes: Vec<Arc<OutcomeRoute>>,
        unreported_max: usize,
    ) -> Self {
        let routes = routes.into_iter().map(|route| RouteRecords {
            route,
            unreported: 0,
        });
        Self {
            targets,
            routes: routes.collect(),
            unreported_max,
            unreported: 0,
            sent: 0,
        }
    }

    /// Sends records until all topics are dropped. Then waits shortly for the reports on the last ones, unless
    /// `give_up` is cancelled.
    pub(crate) async fn serve(
        mut self,
        mut records: mpsc::Receiver<Queued>,
        give_up: CancellationToken,
    ) {
        let mut queued = Vec::new();
        loop {
            // Each arm is safe to drop: all keep everything that they have not returned.
            tokio::select! {
                biased;
                () = give_up.cancelled() => break,
                reports = next_reports(&mut self.targets) => self.on_reports(&reports),
                count = records.recv_many(&mut queued, OUTCOME_RECORDS_PER_TURN) => {
                    if count == 0 {
                        break;
                    }
                    for Queued { route, record } in queued.drain(..) {
                        self.send(usize::from(route), &record);
                    }
                }
            }
        }
        // A topic that does not answer must not delay the stop.
        let finished = timeout(OUTCOME_RECORDS_FINISH_TIMEOUT, self.finish());
        tokio::select! {
            biased;
            () = give_up.cancelled() => {}
            _ = finished => {}
        }
        self.drop_unreported();
        join_all(self.targets.values_mut().map(|target| target.close())).await;
    }

    async fn finish(&mut self) {
        while self.unreported > 0 {
            let reports = next_reports(&mut self.targets).await;
            self.on_reports(&reports);
        }
    }

    fn send(&mut self, number: usize, record: &OutcomeRecord) {
        let RouteRecords { route, unreported } = &mut self.routes[number];
        // A route may use three times what it leaves for the others, so one topic does not stop all records.
        if *unreported >= 3 * (self.unreported_max - self.unreported) {
            return route.drop_records(1, "too many records wait for their acknowledgement");
        }
        let (id, json) = (record.record_id(), record.to_json());
        let outgoing = OutgoingRecord {
            topic: &route.topic,
            partition: None,
            key: Some(record.origin.as_bytes()),
            payload: Some(&json),
            headers: Headers::default(),
            keep_header: |_| false,
            extra_headers: &[(header_name::OUTCOME, id.as_bytes())],
        };
        let target = (self.targets.get_mut(&route.cluster))
            .expect("there is a client for the cluster of each route");
        // The lower bits tell the route of a report.
        let ticket = self.sent << 16 | u64::from(route.number);
        match target.send(&outgoing, ticket) {
            SendResult::Accepted => {
                self.sent += 1;
                *unreported += 1;
                self.unreported += 1;
            }
            SendResult::QueueFull => route.drop_records(1, "the queue of the client is full"),
            SendResult::Failed(failure) => route.drop_records(1, &failure.detail),
        }
    }

    fn on_reports(&mut self, reports: &[DeliveryReport]) {
        for report in reports {
            let number = usize::from(report.ticket as u16);
            let RouteRecords { route, unreported } = &mut self.routes[number];
            *unreported -= 1;
            self.unreported -= 1;
            match &report.outcome {
                Ok(()) => route.metric.outcome_records.increment(1),
                Err(failure) => route.drop_records(1, &failure.detail),
            }
        }
    }

    fn drop_unreported(&mut self) {
        for RouteRecords { route, unreported } in &mut self.routes {
            if *unreported > 0 {
                route.drop_records(
                    *unreported,
                    "the process stops before their acknowledgement",
                );
                *unreported = 0;
            }
        }
        self.unreported = 0;
    }
}

async fn next_reports(targets: &mut BTreeMap<String, Box<dyn Target>>) -> Vec<DeliveryReport> {
    let reports = targets.values_mut().map(|target| target.next_reports());
    let reports: Vec<_> = reports.collect();
    if reports.is_empty() {
        return pending().await;
    }
    select_all(reports).await.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::OUTCOME_RECORDS_MAX;
    use crate::metric::{Counter, RouteMetrics};
    use crate::model::Fate;
    use crate::outcomes::OutcomeTopic;
    use async_trait::async_trait;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Mutex;
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
        sender: OutcomeSender,
        topics: Vec<OutcomeTopic>,
        queue: mpsc::Receiver<Queued>,
        tickets: Rc<RefCell<Vec<u64>>>,
        missing: Vec<Arc<AtomicU64>>,
    }

    fn record() -> OutcomeRecord {
        OutcomeRecord::new(Fate::Delivered, "o".to_owned(), None, 0, None)
    }

    impl Scene {
        fn with_routes(count: u16) -> Self {
            let tickets: Rc<RefCell<Vec<u64>>> = Rc::default();
            let target: Box<dyn Target> = Box::new(Silent(tickets.clone()));
            let targets = BTreeMap::from([("main".to_owned(), target)]);
            let (records, queue) = mpsc::channel(4);
            let (mut routes, mut topics, mut missing) = (Vec::new(), Vec::new(), Vec::new());
            for number in 0..count {
                let counter: Arc<AtomicU64> = Arc::default();
                let metric = RouteMetrics {
                    outcome_records_missing: Counter::from_arc(counter.clone()),
                    ..RouteMetrics::new("r")
                };
                let route = Arc::new(OutcomeRoute {
                    name: "r".to_owned(),
                    number,
                    cluster: "main".to_owned(),
                    topic: "audit".to_owned(),
                    metric,
                    next_log: Mutex::default(),
                });
                topics.push(OutcomeTopic {
                    deployment: "d".into(),
                    route: route.clone(),
                    records: records.clone(),
                });
                routes.push(route);
                missing.push(counter);
            }
            Self {
                sender: OutcomeSender::new(targets, routes, OUTCOME_RECORDS_MAX),
                topics,
                queue,
                tickets,
                missing,
            }
        }

        fn missing(&self) -> Vec<u64> {
            let missing = self.missing.iter();
            missing.map(|it| it.load(Ordering::Relaxed)).collect()
        }

        /// Sends so many records of a route. Returns how many are dropped.
        fn send(&mut self, route: usize, count: usize) -> u64 {
            let before = self.missing()[route];
            (0..count).for_each(|_| self.sender.send(route, &record()));
            self.missing()[route] - before
        }

        /// Acknowledges all records that the client has.
        fn acknowledge(&mut self) {
            let tickets = self.tickets.take();
            let reports = tickets.into_iter().map(|ticket| DeliveryReport {
                ticket,
                position: None,
                outcome: Ok(()),
            });
            self.sender.on_reports(&reports.collect::<Vec<_>>());
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
        assert_eq!(scene.sender.unreported, 0);
        assert_eq!(scene.send(1, most), 0);
    }

    #[test]
    fn each_record_has_another_ticket() {
        let mut scene = Scene::with_routes(2);
        assert_eq!((scene.send(0, 3), scene.send(1, 2)), (0, 0));
        let mut tickets = scene.tickets.take();
        tickets.sort_unstable();
        tickets.dedup();
        assert_eq!(tickets.len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_shortly_and_counts_the_records_without_an_acknowledgement() {
        let scene = Scene::with_routes(2);
        for (topic, count) in scene.topics.iter().zip([3, 1]) {
            (0..count).for_each(|_| topic.send(record()));
        }
        // The queue is full.
        scene.topics[1].send(record());
        assert_eq!(scene.missing(), [0, 1]);
        let Scene {
            sender,
            topics,
            queue,
            missing,
            tickets,
        } = scene;
        drop(topics);
        sender.serve(queue, CancellationToken::new()).await;
        assert_eq!(tickets.borrow().len(), 4);
        let missing = missing.iter().map(|it| it.load(Ordering::Relaxed));
        assert_eq!(missing.collect::<Vec<_>>(), [3, 2]);
    }
}
