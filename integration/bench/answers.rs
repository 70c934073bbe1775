//! Measures cancels with answers beside a steady load: the time from a cancel to its answer, and the
//! lateness of the other messages.
//!
//! The messages to cancel are stored before, and are due in an hour.

use std::cell::RefCell;
use std::time::Duration;

use serde_json::Value;

use crate::ends::{Ends as _, Feed as _};
use crate::env::now_ms;
use crate::feeder::{Feeder, steadily};
use crate::ledger::Verdict;
use crate::route::{Route, wait_for};
use crate::row::{Lateness, Row, Stage, System};
use crate::stage::{Bench, LOOK, millis, stop};
use crate::workload::Steady;

/// One cancel for this number of messages of the load.
const LOAD_PER_CANCEL: usize = 5;
/// The due time of the messages to cancel, after the measurement.
const CANCELLED_AFTER: Duration = Duration::from_hours(1);

impl Bench<'_> {
    /// The greatest rate of the steady load, and a fifth of it in cancels.
    pub(crate) fn answers(&self) -> Vec<Row> {
        let rate = self.load.steady.rates.iter().copied().max().unwrap_or(0);
        let cancels = rate / LOAD_PER_CANCEL;
        self.progress.step(&format!("answers: {cancels}/s"));
        let answers = self.ends.make("answers");
        let options = format!("allow_replies = [\"{answers}\"]");
        let route = self.route().with_options(options);
        let mut service = route.serve(&["ingress", "timer"]);
        service.wait_until_ready();
        let count = cancels * self.load.steady.lasts.as_secs() as usize;
        self.store_cancelled(&route, count);
        let mut dues = Vec::new();
        let (addr, load) = (self.ends.addr(), self.load);
        let (sent, flow) = std::thread::scope(|scope| {
            let cancelling = scope.spawn(|| {
                let feeder = Feeder::new(addr, &route.source, &load.message);
                cancel(feeder, &answers, cancels, &load.steady)
            });
            let flow = self.flow(rate, &self.load.steady, (&route, &service), &mut dues);
            (cancelling.join().expect("the cancels are sent"), flow)
        });
        wait_for(self.progress, sent.len(), LOOK, || self.ends.held(&answers));
        stop(service);
        let arrivals = self.judge_arrived(&route, dues.len(), |number| dues[number]);
        let (verdict, times) = self.judge_answers(&answers, &sent);
        let row = |stage, verdict| Row::service(System::Postdate, stage, &flow.usage, verdict);
        vec![
            Row {
                lateness_ms: Lateness::of(&arrivals.lateness(|number| Some(dues[number]))),
                ..row(Stage::BesideCancels(rate), arrivals.verdict)
            },
            Row {
                lateness_ms: Lateness::of(&times),
                redis_cpu_us: None,
                ..row(Stage::Answers(cancels), verdict).of_redis_alone()
            },
        ]
    }

    /// Stores the messages to cancel. Their id is their key.
    fn store_cancelled(&self, route: &Route<'_>, count: usize) {
        self.progress.phase("answers: storing what is cancelled");
        let feeder = Feeder::new(self.ends.addr(), &route.source, &self.load.message);
        let due = (now_ms() + millis(CANCELLED_AFTER)).to_string();
        for number in 0..count {
            let id = number.to_string();
            let headers = [("postdate-at", &*due), ("postdate-id", &*id)];
            feeder.send_headers(None, number, &headers);
        }
        feeder.finish();
        let mut stored = route.stored(self.redis);
        wait_for(self.progress, count, LOOK, || stored.records().unwrap_or(0));
    }

    /// Checks that each cancel has one answer, `cancelled`. Returns the times from the cancel to the answer in
    /// milliseconds, ascending.
    fn judge_answers(&self, topic: &str, sent: &[i64]) -> (Verdict, Vec<i64>) {
        let mut verdict = Verdict {
            count: sent.len(),
            ..Verdict::default()
        };
        let mut times = vec![None; sent.len()];
        self.ends.read(topic, |arrived| {
            let answer: Value = serde_json::from_slice(arrived.payload).unwrap_or_default();
            let number = answer["request_id"].as_str().and_then(|it| it.parse().ok());
            let number = number.filter(|number: &usize| *number < sent.len());
            match number {
                Some(number) if answer["outcome"] == "cancelled" => {
                    let time = arrived.stamp - sent[number];
                    verdict.doubled += usize::from(times[number].replace(time).is_some());
                }
                _ => verdict.changed += 1,
            }
        });
        verdict.lost = times.iter().filter(|time| time.is_none()).count();
        verdict.lost = verdict.lost.saturating_sub(verdict.changed);
        let mut times: Vec<i64> = times.into_iter().flatten().collect();
        times.sort_unstable();
        (verdict, times)
    }
}

/// Cancels one message after the other. Returns the time of each cancel.
fn cancel(feeder: Feeder<'_>, answers: &str, rate: usize, steady: &Steady) -> Vec<i64> {
    let sent = RefCell::new(Vec::new());
    let send = |number: usize, _| {
        let id = number.to_string();
        let headers = [
            ("postdate-op", "cancel"),
            ("postdate-id", &*id),
            ("postdate-request-id", &*id),
            ("postdate-reply-to", answers),
        ];
        sent.borrow_mut().push(now_ms());
        feeder.send_headers(None, number, &headers);
    };
    steadily(rate, steady, send, |_| feeder.serve());
    feeder.finish();
    sent.into_inner()
}
