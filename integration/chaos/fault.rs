//! Lists the faults that a chaos run injects, with their targets and durations.

use std::ops::Range;

use rand::RngExt as _;
use rand::rngs::StdRng;

use crate::asked::{Asked, Topology};

/// A fault. It starts, lasts for a random time, and is then repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    KillTimer,
    FreezeTimer,
    StopTimer,
    AddTimer,
    KillIngress,
    FreezeIngress,
    StopIngress,
    KillAll,
    KillRedis,
    FreezeRedis,
    RollBackRedis,
    EmptyRedis,
    KillBroker,
    FreezeBroker,
    StopBroker,
}

/// The part of the system that a fault hits. Two faults at the same time hit different subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Timers,
    Ingresses,
    Redis,
    Broker,
}

impl Fault {
    pub(crate) const ALL: [Self; 15] = [
        Self::KillTimer,
        Self::FreezeTimer,
        Self::StopTimer,
        Self::AddTimer,
        Self::KillIngress,
        Self::FreezeIngress,
        Self::StopIngress,
        Self::KillAll,
        Self::KillRedis,
        Self::FreezeRedis,
        Self::RollBackRedis,
        Self::EmptyRedis,
        Self::KillBroker,
        Self::FreezeBroker,
        Self::StopBroker,
    ];

    /// Picks one fault, or sometimes two that hit different subjects. With `only`, each fault hits
    /// this subject.
    pub(crate) fn some(random: &mut StdRng, only: Option<Subject>) -> Vec<Self> {
        let faults: Vec<Self> = Self::ALL
            .into_iter()
            .filter(|fault| only.is_none_or(|subject| fault.subjects() == [subject]))
            .collect();
        let mut pick = || faults[random.random_range(0..faults.len())];
        let (first, second) = (pick(), pick());
        let apart = first
            .subjects()
            .iter()
            .all(|subject| !second.subjects().contains(subject));
        if apart && random.random_bool(0.3) {
            vec![first, second]
        } else {
            vec![first]
        }
    }

    pub(crate) fn subjects(self) -> &'static [Subject] {
        match self {
            Self::KillTimer | Self::FreezeTimer | Self::StopTimer | Self::AddTimer => {
                &[Subject::Timers]
            }
            Self::KillIngress | Self::FreezeIngress | Self::StopIngress => &[Subject::Ingresses],
            Self::KillAll => &[Subject::Timers, Subject::Ingresses],
            Self::KillRedis | Self::FreezeRedis | Self::RollBackRedis | Self::EmptyRedis => {
                &[Subject::Redis]
            }
            Self::KillBroker | Self::FreezeBroker | Self::StopBroker => &[Subject::Broker],
        }
    }

    /// The range of the duration, in milliseconds. A frozen worker usually stays frozen longer than
    /// its lease lasts.
    pub(crate) fn length(self) -> Range<u64> {
        match self {
            Self::FreezeTimer | Self::FreezeIngress => 2_000..14_000,
            Self::RollBackRedis | Self::EmptyRedis => 100..200,
            Self::FreezeRedis | Self::FreezeBroker => 500..8_000,
            Self::AddTimer => 4_000..12_000,
            _ => 200..9_000,
        }
    }

    /// Another Redis server becomes the primary, if there is one.
    pub(crate) fn causes_failover(self) -> bool {
        matches!(
            self,
            Self::KillRedis | Self::FreezeRedis | Self::RollBackRedis
        )
    }

    pub(crate) fn words(self, asked: &Asked) -> String {
        let broker = asked.broker;
        let words = match self {
            Self::KillTimer => "a timer killed (kill -9)",
            Self::FreezeTimer => "a timer frozen (SIGSTOP), woken 2 to 14 s later",
            Self::StopTimer => "a timer asked to end (SIGTERM), started again",
            Self::AddTimer => "a timer added, later asked to end",
            Self::KillIngress => "an ingress killed (kill -9)",
            Self::FreezeIngress => "an ingress frozen (SIGSTOP), woken 2 to 14 s later",
            Self::StopIngress => "an ingress asked to end (SIGTERM), started again",
            Self::KillAll => "all processes of Postdate killed at once (kill -9)",
            Self::KillRedis => "Redis killed (kill -9)",
            Self::FreezeRedis => "Redis frozen (SIGSTOP)",
            Self::RollBackRedis if asked.redis != Topology::Single => {
                "Redis killed while its replica was 2 s behind"
            }
            Self::RollBackRedis => "Redis killed and put back to an older copy",
            Self::EmptyRedis => "Redis emptied (FLUSHALL)",
            Self::KillBroker => return format!("{broker} killed (kill -9)"),
            Self::FreezeBroker => return format!("{broker} frozen (SIGSTOP)"),
            Self::StopBroker => return format!("{broker} asked to end, started again"),
        };
        words.to_owned()
    }
}
