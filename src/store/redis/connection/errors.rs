//! The meaning of errors: of the client, and of the server.

use crate::store::Error;
use redis::{ServerError, Value};
use std::fmt::Display;

pub(super) fn client_error(address: impl Display, error: &redis::RedisError) -> Error {
    match error.kind() {
        redis::ErrorKind::InvalidClientConfig => Error::Unusable(format!("{address}: {error}")),
        _ if error.is_timeout() => Error::Unavailable(format!("{address} did not answer in time")),
        _ => Error::Unavailable(format!("{address}: {error}")),
    }
}

pub(super) fn missing_permission(address: impl Display, detail: &str) -> Error {
    Error::Unusable(format!(
        "{address} denies its user a permission that Postdate needs ({detail}): grant it what deploy/redis/users.acl has, or more broadly \
         `~pd:* &pd:* +@read +@write +@scripting +info +time +select +publish +subscribe +pubsub`"
    ))
}

/// Translates an error of the server.
pub(super) fn server_error(address: &str, error: &ServerError) -> Error {
    let code = error.code();
    let detail = error.details().unwrap_or_default();
    match code {
        "OOM" => Error::Full,
        "NOAUTH" => Error::Unusable(format!(
            "{address} demands a password: set store.redis.password or password_file"
        )),
        "WRONGPASS" => Error::Unusable(format!(
            "{address} refuses the user or the password: check store.redis.username and store.redis.password or password_file"
        )),
        "NOPERM" => missing_permission(address, detail),
        // A command inside a script was denied. Only `ACL LOG` names the command.
        "ERR" if detail.contains("can't run this command") => missing_permission(address, detail),
        "MOVED" | "ASK" | "CROSSSLOT" => Error::Unusable(format!(
            "{address} is a node of a Redis Cluster, which this version of Postdate cannot use ({code} {detail})"
        )),
        "LOADING" | "MASTERDOWN" | "READONLY" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" | "MISCONF"
        | "NOREPLICAS" => Error::Unavailable(format!("{address}: {code} {detail}")),
        "ERR" if detail.starts_with("max number of clients") => {
            Error::Unavailable(format!("{address}: {detail}"))
        }
        _ => Error::Unusable(format!("{address}: {code} {detail}")),
    }
}

pub(in crate::store::redis) fn is_error(value: &Value, code: &str) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == code)
}

/// The error in a value, unless it concerns only one key or script.
pub(super) fn fatal_error(value: &Value) -> Option<&ServerError> {
    match value {
        Value::ServerError(error) if !matches!(error.code(), "WRONGTYPE" | "NOSCRIPT") => {
            Some(error)
        }
        _ => None,
    }
}

/// True if the same connection would fail again: the server is a replica now, has lost its
/// replicas, or needs a login.
pub(super) fn needs_reconnect(error: &ServerError) -> bool {
    matches!(
        error.code(),
        "READONLY" | "MASTERDOWN" | "NOREPLICAS" | "NOAUTH"
    )
}
