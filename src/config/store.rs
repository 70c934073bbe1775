//! `[store]`: which store messages wait in, and where the embedded one lies. What Redis needs stands in `redis`.

use super::read::Table;
use super::redis::{self, Redis};
use std::path::PathBuf;

/// One of the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Redis(Redis),
    Embedded(Embedded),
}

/// A folder of this process' own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Embedded {
    pub(crate) path: PathBuf,
}

const PATH: &str = "./postdate-data";

/// Without any table it is the embedded one.
pub(super) fn read(store: &Table<'_>) -> Store {
    let (redis, embedded) = (store.table("redis"), store.table("embedded"));
    if !redis.is_there() {
        return Store::Embedded(Embedded {
            path: path(&embedded),
        });
    }
    if let Some(field) = store.field("embedded") {
        let what = "there is a [store.redis] too, and messages wait in one store only";
        field.refuse(
            what,
            "remove one of the two: what waits in a store is not moved to the other",
        );
    }
    Store::Redis(redis::read(&redis))
}

fn path(table: &Table<'_>) -> PathBuf {
    let field = table.field("path");
    let text = field.as_ref().and_then(|field| {
        let text = field.text()?;
        if text.is_empty() {
            field.refuse(
                "the path is empty",
                format!("name a folder, which need not exist, or remove it for \"{PATH}\""),
            );
        }
        Some(text)
    });
    PathBuf::from(text.unwrap_or(PATH))
}
