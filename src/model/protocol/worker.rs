//! Workers, their sessions, and what a session tells the other workers.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Identifies a worker by its name: a worker that restarts under the same name has the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WorkerId(pub(crate) u128);

impl WorkerId {
    /// FNV-1a. Written here because workers of two versions must agree, so a library update must
    /// not change it.
    pub(crate) fn of_name(name: &str) -> Self {
        let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
        let prime = 0x0000_0000_0100_0000_0000_0000_0000_013b_u128;
        let add = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(prime);
        Self(name.bytes().fold(start, add))
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A session of a worker. The number is random, because the store may have lost a counter. A
/// session that has ended never comes back: the worker begins another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId {
    pub(crate) worker: WorkerId,
    pub(crate) number: u64,
}

impl SessionId {
    /// The first session of a process. `process` is a random number that no other process has.
    pub(crate) fn first(worker: WorkerId, process: u32) -> Self {
        let number = u64::from(process) << 32;
        Self { worker, number }
    }

    /// Names the process: all its sessions have the same upper half of the number.
    pub(crate) fn process(self) -> String {
        format!("{}-{:08x}", self.worker, self.number >> 32)
    }

    pub(crate) fn is_of_process_of(self, other: Self) -> bool {
        self.worker == other.worker && self.number >> 32 == other.number >> 32
    }

    /// Parses the text that `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (worker, number) = text.split_once('-')?;
        let id = Self {
            worker: WorkerId(u128::from_str_radix(worker, 16).ok()?),
            number: u64::from_str_radix(number, 16).ok()?,
        };
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.worker, self.number)
    }
}

/// The work that a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    Ingress,
    Timer,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Timer => "timer",
        }
    }
}

/// What a session tells the other workers. A field that another version does not write has its
/// default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WorkerEntry {
    /// The name, from which the id follows.
    pub(crate) name: String,
    /// Identifies the lock that proves the name: two holders of the name with the same lock follow
    /// each other, so the later one replaces the session of the earlier one at once.
    pub(crate) lock_id: String,
    /// Empty: the worker is leaving, and gets no work.
    pub(crate) roles: BTreeSet<Role>,
    pub(crate) routes: BTreeSet<Box<str>>,
    /// The ids of the clusters that the worker reads from.
    pub(crate) clusters: BTreeSet<Box<str>>,
    /// The greatest format level that the worker reads.
    pub(crate) format: u32,
}

impl WorkerEntry {
    pub(crate) fn id(&self) -> WorkerId {
        WorkerId::of_name(&self.name)
    }

    /// A worker that does all work for the route `r`.
    #[cfg(test)]
    pub(crate) fn for_test(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            roles: [Role::Ingress, Role::Timer].into(),
            routes: ["r".into()].into(),
            ..Self::default()
        }
    }

    /// True if the worker does this work for the route.
    pub(crate) fn serves(&self, role: Role, route: &str) -> bool {
        self.roles.contains(&role) && self.routes.contains(route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_session_id_reads_back_from_its_text_and_foreign_text_is_rejected(worker: u128, number: u64, text: String) {
            let id = SessionId { worker: WorkerId(worker), number };
            prop_assert_eq!(SessionId::parse(&id.to_string()), Some(id));
            prop_assert!(SessionId::parse(&text).is_none_or(|id| id.to_string() == text));
            prop_assert_eq!(&id.to_string()[..41], id.process());
        }
    }

    /// Workers of two versions must agree.
    #[test]
    fn the_id_of_a_name_never_changes() {
        let id = WorkerId::of_name("postdate-0");
        assert_eq!(id.to_string(), "d834abe91a08791da28b7e762d39b98e");
    }

    #[test]
    fn an_entry_of_another_version_is_read_with_defaults() {
        let entry: WorkerEntry = serde_json::from_str(r#"{"name":"a","later":7}"#).unwrap();
        assert_eq!((entry.name.as_str(), entry.format), ("a", 0));
    }
}
