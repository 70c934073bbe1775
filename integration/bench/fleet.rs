//! Measures the lateness of a steady load while timers join, stop and crash, as a `read_committed`
//! consumer sees it.

use std::ops::Range;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::ends::Feed as _;
use crate::env::{Postdate, now_ms};
use crate::feeder::{Feeder, steadily};
use crate::route::{Route, wait_for};
use crate::row::{Delivery, Event, Lateness, Row, Stage, System};
use crate::stage::{Bench, LOOK, millis, stop};
use crate::watch::Watch;
use crate::workload::Steady;

/// Messages per second. The rate is so low that no message waits for another.
const RATE: usize = 1_000;

/// Time between two events. It is longer than a lease plus the takeover after its expiry.
const APART: Duration = Duration::from_secs(12);

/// Messages due this shortly before the next event are left out, because that event may delay them.
const MARGIN: Duration = Duration::from_millis(500);

impl Bench<'_> {
    pub(crate) fn fleet(&self) -> Vec<Row> {
        Delivery::BOTH
            .into_iter()
            .flat_map(|delivery| self.moves(delivery))
            .collect()
    }

    /// Measures the events of one delivery guarantee.
    fn moves(&self, delivery: Delivery) -> Vec<Row> {
        self.progress
            .step(&format!("timers come and go, {}", delivery.name()));
        let events = events_of(delivery);
        let route = self.route().delivering(delivery.name());
        let mut ingress = route.serve(&["ingress"]);
        let mut fleet = Fleet {
            timers: vec![route.serve(&["timer"])],
            ending: None,
            events: Vec::new(),
            route,
        };
        ingress.wait_until_ready();
        fleet.timers[0].wait_until_ready();
        let watch = Watch::start(self.ends, &fleet.route.target);
        let (start, feeder) = (
            self.meter.read(ingress.cpu()),
            Feeder::new(self.ends.addr(), &fleet.route.source, &self.load.message),
        );
        // The load starts one `APART` before the first event, so that messages are already due when
        // it happens.
        let steady = Steady {
            lasts: APART * (events.len() as u32 + 2),
            ..self.load.steady.clone()
        };
        let began = now_ms();
        let dues = steadily(
            RATE,
            &steady,
            |number, due| feeder.send(number, ("postdate-at", due)),
            |_| {
                feeder.serve();
                let due = fleet.events.len();
                if due < events.len() && now_ms() >= began + millis(APART * (due as u32 + 1)) {
                    fleet.meet(events[due]);
                }
            },
        );
        feeder.finish();
        wait_for(self.progress, dues.len(), LOOK, || watch.count());
        let usage = start.until(self.meter.read(ingress.cpu()));
        let (dead, met) = (fleet.route.dead(), fleet.end());
        stop(ingress);
        let seen = watch.end();
        let verdict = seen.judge(dues.len(), dead, |number| dues[number]);
        let kinds = events
            .iter()
            .enumerate()
            .filter(|(at, event)| !events[..*at].contains(event))
            .map(|(_, event)| *event);
        kinds
            .map(|event| {
                let spans = spans_after(event, &met);
                let lateness = seen.lateness_of(|number| {
                    Some(dues[number]).filter(|due| spans.iter().any(|span| span.contains(due)))
                });
                let row = Row::service(
                    System::Postdate,
                    Stage::Moved(delivery, event),
                    &usage,
                    verdict,
                );
                Row {
                    redis_cpu_us: None,
                    lateness_ms: Lateness::of(&lateness),
                    ..row.of_redis_alone()
                }
            })
            .collect()
    }
}

/// The events of a measurement, in order. A timer is killed only with exactly-once, because
/// at-least-once may deliver duplicates after it.
fn events_of(delivery: Delivery) -> &'static [Event] {
    match delivery {
        Delivery::AtLeastOnce => &[Event::Joined, Event::Asked],
        Delivery::ExactlyOnce => &[Event::Joined, Event::Asked, Event::Joined, Event::Killed],
    }
}

/// The spans of epoch milliseconds that begin with this event. Each ends at most `APART` later, and
/// `MARGIN` before the next event.
fn spans_after(event: Event, met: &[(Event, i64)]) -> Vec<Range<i64>> {
    let ends = met
        .iter()
        .skip(1)
        .map(|(_, next)| next - millis(MARGIN))
        .chain([i64::MAX]);
    let spans = met.iter().zip(ends).filter(|((kind, _), _)| *kind == event);
    spans
        .map(|((_, at), end)| *at..end.min(at + millis(APART)))
        .collect()
}

struct Fleet<'a> {
    route: Route<'a>,
    /// The oldest first.
    timers: Vec<Postdate>,
    ending: Option<JoinHandle<()>>,
    /// The events so far, each with its time in epoch milliseconds.
    events: Vec<(Event, i64)>,
}

impl Fleet<'_> {
    fn meet(&mut self, event: Event) {
        self.events.push((event, now_ms()));
        match event {
            Event::Joined => self.timers.push(self.route.serve(&["timer"])),
            Event::Asked => {
                let oldest = self.timers.remove(0);
                self.ending = Some(std::thread::spawn(move || stop(oldest)));
            }
            Event::Killed => self.timers.remove(0).kill(),
        }
    }

    fn end(self) -> Vec<(Event, i64)> {
        self.ending
            .into_iter()
            .for_each(|ending| ending.join().expect("it ends as it is asked"));
        self.timers.into_iter().for_each(stop);
        self.events
    }
}
