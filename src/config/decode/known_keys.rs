//! Lists the keys that the tables decode from, and finds the key that was meant by an unknown one.

use super::path::Path;
use crate::config::{LogTable, RootTable, TimerTable, admin, kafka, nats, route, store, traces};
use figment::error::Kind;
use figment::value::{Dict, Value};
use serde::de::DeserializeOwned;

/// All tables with their keys. `*` is any name that the user chooses.
pub(in crate::config) fn tables() -> Vec<(&'static str, &'static [&'static str])> {
    vec![
        ("store.redis", keys::<store::RedisTable>()),
        ("store.embedded", keys::<store::EmbeddedTable>()),
        ("store", keys::<store::StoreTable>()),
        ("kafka.*", keys::<kafka::KafkaTable>()),
        ("nats.*", keys::<nats::NatsTable>()),
        ("route.*.source", keys::<route::SourceTable>()),
        ("route.*.target", keys::<route::DestinationTable>()),
        ("route.*.dead_letter", keys::<route::DestinationTable>()),
        ("route.*.retry", keys::<route::RetryTable>()),
        ("route.*", keys::<route::RouteTable>()),
        ("timer", keys::<TimerTable>()),
        ("admin", keys::<admin::AdminTable>()),
        ("log", keys::<LogTable>()),
        ("traces", keys::<traces::TracesTable>()),
        ("", keys::<RootTable>()),
    ]
}

/// The keys that `T` decodes from: serde lists them when it rejects another one.
fn keys<T: DeserializeOwned>() -> &'static [&'static str] {
    let probe = Value::from(Dict::from([(String::new(), Value::from(""))]));
    match T::deserialize(&probe).map_err(|error| error.kind) {
        Err(Kind::UnknownField(_, keys)) => keys,
        _ => &[],
    }
}

/// Advises about an unknown key: write the nearest of the keys that its table has, move it to
/// its table, or remove it.
pub(super) fn advice(path: &Path, known_here: &[&'static str]) -> String {
    let name = path.name();
    if let Some(nearest) = nearest(name, known_here.iter().copied()) {
        return format!("did you mean `{nearest}`?");
    }
    match tables().iter().find(|(_, keys)| keys.contains(&name)) {
        Some(("", _)) => {
            return format!("`{name}` belongs at the top of the file, before the first [table]");
        }
        Some((table, _)) => {
            return format!(
                "`{name}` belongs in [{}]; move it there",
                table.replace('*', "<name>")
            );
        }
        None => {}
    }
    let begins_with = |table: &str| {
        name.strip_prefix(table)
            .is_some_and(|rest| rest.starts_with('_'))
    };
    if path.segments().len() == 1 && known_here.iter().any(|table| begins_with(table)) {
        return "write two underscores for each dot, as in POSTDATE_ROUTE__ORDERS__MAX_DELAY"
            .to_owned();
    }
    let mut known_here = known_here.to_vec();
    known_here.sort_unstable();
    format!("remove it; the keys here are: {}", known_here.join(", "))
}

/// The candidate that `text` was probably meant to be.
pub(in crate::config) fn nearest<'a>(
    text: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let text = text.to_lowercase().replace('-', "_");
    let distance =
        |candidate: &str| strsim::damerau_levenshtein(&text, &candidate.replace('-', "_"));
    let near = candidates
        .into_iter()
        .map(|candidate| (distance(candidate), candidate))
        .min()?;
    (near.0 <= near.1.len().div_ceil(3)).then_some(near.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_lists_its_keys() {
        for (table, keys) in tables() {
            assert!(!keys.is_empty(), "[{table}]");
        }
    }

    #[test]
    fn only_a_similar_key_is_suggested() {
        for name in ["max_dealy", "max-delay"] {
            assert_eq!(nearest(name, ["max_delay", "retry"]), Some("max_delay"));
        }
        assert_eq!(nearest("colour", ["max_delay", "retry"]), None);
    }
}
