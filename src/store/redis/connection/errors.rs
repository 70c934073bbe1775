//! The meaning of errors: of the client, and of the server.

use super::CLUSTER_FORM;
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
         `~pd:* &pd:* +@read +@write +@scripting +info +time +select +publish +subscribe +pubsub`; a Redis Cluster also needs `+cluster|info +cluster|slots`"
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
        "MOVED" | "ASK" => Error::Unusable(format!(
            "{address} is a node of a Redis Cluster ({code} {detail}): {CLUSTER_FORM}"
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

/// The error in a value, unless it concerns only one key or script, or one slot of a cluster.
pub(super) fn fatal_error(value: &Value, in_cluster: bool) -> Option<&ServerError> {
    let Value::ServerError(error) = value else {
        return None;
    };
    let concerns_one = match error.code() {
        "WRONGTYPE" | "NOSCRIPT" => true,
        "MOVED" | "ASK" | "TRYAGAIN" => in_cluster,
        _ => false,
    };
    (!concerns_one).then_some(error)
}

/// The error if no server has answered as it should. An operator must act only if no server may
/// answer differently later.
pub(super) fn no_answer(what: &str, errors: &[Error]) -> Error {
    let reason = |error: &Error| match error {
        Error::Unavailable(text) | Error::Unusable(text) | Error::Refused(text) => text.clone(),
        Error::Full => error.to_string(),
    };
    let reasons: Vec<String> = errors.iter().map(reason).collect();
    let text = format!("{what}: {}", reasons.join("; "));
    if errors.iter().any(Error::is_transient) {
        Error::Unavailable(text)
    } else {
        Error::Unusable(text)
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
