//! Recurring schedules on the real roles.

mod intervals;
mod zones;

use crate::testing::sim::world::{DEAD, TARGET, World};
use std::collections::{BTreeMap, BTreeSet};

/// A world with these guarantees, in which each delivery of a schedule fits its target.
fn world(is_exactly_once: bool) -> World {
    let world = World::new().with_recurring();
    if !is_exactly_once {
        return world;
    }
    let world = world.with_exactly_once();
    world.cluster().limit_record_size(TARGET, None);
    world
}

/// The planned times that arrived.
fn arrived(world: &World) -> BTreeMap<String, BTreeSet<i64>> {
    let mut arrived = BTreeMap::<_, BTreeSet<i64>>::new();
    for (schedule, due) in arrivals(world) {
        arrived.entry(schedule).or_default().insert(due);
    }
    arrived
}

/// What arrived twice, although the delivery is exactly once.
fn repeats(world: &World) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let arrivals = arrivals(world).into_iter();
    let repeated = arrivals.filter(|arrival| !seen.insert(arrival.clone()));
    repeated
        .filter(|_| world.is_exactly_once())
        .map(|(schedule, due)| format!("schedule {schedule} has delivered {due} twice"))
        .collect()
}

/// The schedule and the planned time of each occurrence that arrived, as a delivery or as the dead
/// letter of a missing target.
fn arrivals(world: &World) -> Vec<(String, i64)> {
    let mut arrivals = Vec::new();
    for topic in [TARGET, DEAD] {
        for record in world.cluster().records(topic) {
            let value = |wanted: &str| {
                let mut headers = record.headers.iter();
                let (_, value) = headers.find(|(name, _)| name == wanted.as_bytes())?;
                Some(String::from_utf8_lossy(value.as_deref()?).into_owned())
            };
            let due = value("postdate-due").and_then(|due| due.parse().ok());
            let schedule = value("postdate-schedule");
            // A rejected definition has neither.
            arrivals.extend(schedule.zip(due));
        }
    }
    arrivals
}
