//! Tests many routes in one configuration: they share clients and threads, and none stops another.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::env::{Outgoing, Postdate, Producer, Sink, eventually, kafka, redis, unique};
use crate::verdict::LIMIT;

const ROUTES: usize = 200;

/// For one broker.
const THREADS_MAX: usize = 60;
const DESCRIPTORS_MAX: usize = 300;

struct Routes {
    name: String,
    config: String,
}

impl Routes {
    /// Creates the topics. `more` are the lines of each route by its number, before its source.
    fn new(name: &str, count: usize, more: impl Fn(usize) -> &'static str) -> Routes {
        let name = unique(name);
        let broker = kafka();
        broker.create_topic(&format!("{name}.out"), 2, &[]);
        broker.create_topic(&format!("{name}.dead"), 1, &[]);
        let mut config = format!(
            "deployment = \"{name}\"\n[store.redis]\nurl = \"{}\"\n[kafka.main]\nbrokers = [\"{}\"]\n",
            redis().url(),
            broker.addr(),
        );
        for number in 0..count {
            broker.create_topic(&format!("{name}.in{number}"), 2, &[]);
            let topic = format!("{name}.in{number}");
            route(
                &mut config,
                &name,
                &format!("r{number}"),
                &topic,
                more(number),
            );
        }
        Routes { name, config }
    }

    fn source(&self, number: usize) -> String {
        format!("{}.in{number}", self.name)
    }

    fn sink(&self) -> Sink {
        Sink::start(kafka().addr(), &[&format!("{}.out", self.name)])
    }

    /// Sends a message to each of these routes, due after this number of milliseconds.
    fn send(&self, producer: &Producer, numbers: impl Iterator<Item = usize>, after: &str) {
        for number in numbers {
            let message = Outgoing::to(&self.source(number))
                .key(format!("{number}"))
                .header("postdate-after", after)
                .payload(format!("{number}"));
            producer.send(&message);
        }
        producer.flush();
    }
}

fn route(config: &mut String, name: &str, route: &str, topic: &str, more: &str) {
    writeln!(
        config,
        "[route.{route}]\n{more}source = {{ kafka = \"main\", topics = [\"{topic}\"] }}\n\
         target = {{ kafka = \"main\", topic = \"{name}.out\" }}\n\
         dead_letter = {{ kafka = \"main\", topic = \"{name}.dead\" }}"
    )
    .expect("a string takes everything");
}

/// How often each payload arrived.
fn counts(sink: &Sink) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for record in sink.records() {
        let payload = record.payload.unwrap_or_default();
        *counts
            .entry(String::from_utf8_lossy(&payload).into_owned())
            .or_default() += 1;
    }
    counts
}

#[test]
fn two_hundred_routes_share_threads_and_descriptors() {
    let routes = Routes::new("many", ROUTES, |_| "");
    let sink = routes.sink();
    let producer = Producer::start(kafka().addr());
    let postdate = Postdate::ready_with(&routes.config);
    for _ in 0..2 {
        routes.send(&producer, 0..ROUTES, "100ms");
    }
    sink.wait_for(2 * ROUTES, LIMIT);
    let found = counts(&sink);
    assert_eq!(found.len(), ROUTES);
    assert!(found.values().all(|count| *count == 2), "{found:?}");
    let (threads, descriptors) = (postdate.threads(), postdate.descriptors());
    assert!(threads.len() <= THREADS_MAX, "{threads:?}");
    assert!(descriptors <= DESCRIPTORS_MAX, "{descriptors}");
    for number in [0, ROUTES - 1] {
        let group = format!("{}.r{number}", routes.name);
        eventually("the offsets are committed", LIMIT, || {
            let lag = kafka().describe_group(&group);
            lag.contains(&routes.source(number)).then_some(())
        });
    }
}

#[test]
fn routes_that_read_one_topic_get_all_of_it() {
    let mut routes = Routes::new("twins", 2, |_| "");
    let topic = routes.source(0);
    route(&mut routes.config, &routes.name, "twin", &topic, "");
    let sink = routes.sink();
    let producer = Producer::start(kafka().addr());
    let _postdate = Postdate::ready_with(&routes.config);
    for _ in 0..10 {
        routes.send(&producer, 0..2, "50ms");
    }
    sink.wait_for(30, LIMIT);
    let found = counts(&sink);
    assert_eq!(found, [("0".to_owned(), 20), ("1".to_owned(), 10)].into());
}

#[test]
fn a_route_over_its_quota_stops_no_other_route() {
    let quota = "max_waiting = { messages = 10 }\n";
    let routes = Routes::new("stopped", 3, |number| if number == 1 { quota } else { "" });
    let sink = routes.sink();
    let producer = Producer::start(kafka().addr());
    let postdate = Postdate::ready_with(&routes.config);
    for _ in 0..20 {
        routes.send(&producer, 1..2, "1h");
    }
    eventually("the quota is used up", LIMIT, || {
        let used = postdate.metrics().sum("postdate_quota_used_ratio");
        (used >= 1.0).then_some(())
    });
    // More than the client and the queues of the stopped route hold.
    let payload = vec![b'x'; 100_000];
    for _ in 0..1_000 {
        let message = Outgoing::to(&routes.source(1))
            .header("postdate-after", "1h")
            .payload(&payload);
        producer.send(&message);
    }
    producer.flush();
    for _ in 0..10 {
        routes.send(&producer, [0, 2].into_iter(), "50ms");
    }
    sink.wait_for(20, LIMIT);
    let found = counts(&sink);
    assert_eq!(found, [("0".to_owned(), 10), ("2".to_owned(), 10)].into());
}
