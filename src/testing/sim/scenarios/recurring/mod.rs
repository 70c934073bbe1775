//! Recurring schedules on the real roles.

mod intervals;
mod zones;

use crate::testing::sim::world::{DEAD, TARGET, World};
use std::collections::{BTreeMap, BTreeSet};

/// The planned times that arrived, as deliveries or as dead letters of a missing target.
fn arrived(world: &World) -> BTreeMap<String, BTreeSet<i64>> {
    let mut arrived = BTreeMap::<_, BTreeSet<i64>>::new();
    for topic in [TARGET, DEAD] {
        for record in world.cluster().records(topic) {
            let value = |wanted: &str| {
                let mut headers = record.headers.iter();
                let (_, value) = headers.find(|(name, _)| name == wanted.as_bytes())?;
                Some(String::from_utf8_lossy(value.as_deref()?).into_owned())
            };
            let due = value("postdate-due").and_then(|due| due.parse().ok());
            let schedule = value("postdate-schedule");
            let (due, schedule) = due.zip(schedule).expect("an occurrence");
            arrived.entry(schedule).or_default().insert(due);
        }
    }
    arrived
}
