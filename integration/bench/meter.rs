//! Measures the wall time and the processor time of each process, as the kernel counts it.

use std::time::{Duration, Instant};

use crate::env::{Redis, cpu_of};

/// The broker and Redis, whose processor time is measured separately.
#[derive(Clone, Copy)]
pub(crate) struct Meter<'a> {
    pub(crate) broker: &'a dyn Fn() -> Duration,
    pub(crate) redis: &'a Redis,
}

/// All clocks at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    at: Instant,
    /// Processor time of this process, which runs the load or a copy.
    here: Duration,
    service: Duration,
    redis: Duration,
    broker: Duration,
    machine: Duration,
}

/// The differences between two readings.
#[derive(Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) wall: Duration,
    pub(crate) here: Duration,
    pub(crate) service: Duration,
    pub(crate) redis: Duration,
    pub(crate) broker: Duration,
    /// Share of all cores that programs outside this run used, from 0 to 1. A high value makes the
    /// wall time unreliable.
    pub(crate) others: f64,
}

impl Meter<'_> {
    /// Reads all clocks. `service` is the processor time of the measured process, or zero if that
    /// is this process.
    pub(crate) fn read(&self, service: Duration) -> Reading {
        Reading {
            at: Instant::now(),
            here: cpu_of(std::process::id()),
            service,
            redis: self.redis.cpu(),
            broker: (self.broker)(),
            machine: machine(),
        }
    }
}

impl Reading {
    pub(crate) fn until(self, end: Reading) -> Usage {
        let (wall, here) = (end.at - self.at, end.here - self.here);
        let (redis, broker) = (
            end.redis - self.redis,
            end.broker.saturating_sub(self.broker),
        );
        let service = end.service.saturating_sub(self.service);
        let ours = here + service + redis + broker;
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let others = (end.machine - self.machine)
            .saturating_sub(ours)
            .as_secs_f64()
            / (wall.as_secs_f64() * cores);
        Usage {
            wall,
            here,
            service,
            redis,
            broker,
            others,
        }
    }
}

/// The busy time of all cores, including the time that the host of this machine took away (steal).
fn machine() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").expect("Linux tells");
    let ticks = stat
        .lines()
        .next()
        .into_iter()
        .flat_map(|line| line.split_whitespace().skip(1))
        .enumerate();
    // Order of the columns: user nice system idle iowait irq softirq steal guest guest_nice. The
    // first two columns already include the last two.
    let busy = ticks.filter(|(at, _)| ![3, 4, 8, 9].contains(at));
    Duration::from_millis(
        busy.map(|(_, ticks)| ticks.parse::<u64>().expect("a number") * 10)
            .sum(),
    )
}
