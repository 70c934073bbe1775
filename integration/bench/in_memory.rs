//! Measures a steady load whose messages this process holds in memory until they are due: the floor
//! of the lateness. It uses the same client library as the service. A crash would lose the messages.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::TopicPartitionList;

use crate::copy::{consumer_config, producer_config};
use crate::ends::{Ends as _, Feed as _};
use crate::env::now_ms;
use crate::feeder::{Feeder, steadily};
use crate::raw::{Detached, Reader, Sender};
use crate::route::wait_for;
use crate::row::{Lateness, Row, Stage, System};
use crate::stage::{Bench, LOOK};

impl Bench<'_> {
    pub(crate) fn in_memory(&self, rate: usize) -> Row {
        self.progress
            .step(&format!("steady load in memory: {rate}/s"));
        let (source, target) = (self.ends.make("held-from"), self.ends.make("held-to"));
        let (steady, is_over) = (&self.load.steady, AtomicBool::new(false));
        let (addr, partitions) = (self.ends.addr(), self.ends.all_of(&source));
        let start = self.meter.read(Duration::ZERO);
        let (dues, usage) = std::thread::scope(|scope| {
            let (target, is_over) = (&target, &is_over);
            scope.spawn(move || hold(addr, &partitions, target, is_over));
            let feeder = Feeder::new(addr, &source, &self.load.message);
            let send = |number, due| feeder.send(number, ("postdate-at", due));
            let dues = steadily(rate, steady, send, |_| feeder.serve());
            feeder.finish();
            wait_for(self.progress, dues.len(), LOOK, || self.ends.held(target));
            is_over.store(true, Ordering::Relaxed);
            (dues, start.until(self.meter.read(Duration::ZERO)))
        });
        let arrivals = self.judge_target(&target, dues.len(), |number| dues[number]);
        let lateness = arrivals.lateness(|number| Some(dues[number]));
        let stage = Stage::Steady(rate);
        let row = Row::service(System::InMemory, stage, &usage, arrivals.verdict);
        Row {
            lateness_ms: Lateness::of(&lateness),
            redis_cpu_us: None,
            ..row.of_redis_alone()
        }
    }
}

/// Sends each message of the source partitions to the target when it is due.
fn hold(addr: &str, source: &TopicPartitionList, target: &str, is_over: &AtomicBool) {
    let mut reader = Reader::new(&consumer_config(addr), source);
    let sender = Sender::new(&producer_config(addr), target);
    let mut waiting: BTreeMap<i64, Vec<Detached>> = BTreeMap::new();
    while !is_over.load(Ordering::Relaxed) {
        reader.read(Duration::from_millis(1), |message| {
            let message = message.detach();
            let due = message.number(c"postdate-at").expect("a due time");
            waiting.entry(due).or_default().push(message);
        });
        let now = now_ms();
        while let Some(due) = waiting.first_entry().filter(|due| *due.key() <= now) {
            let messages = due.remove();
            messages
                .into_iter()
                .for_each(|message| sender.send(message));
        }
        sender.serve(Duration::ZERO);
    }
}
