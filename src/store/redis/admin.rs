//! The audit list in Redis: a sorted set for each part, whose members have the order of their positions. Requests with an idempotency key:
//! a key each, and a sorted set of those that ended.

use super::Redis;
use super::connection::is_error;
use super::reads;
use super::reply::texts;
use crate::clock::{Clock as _, WallClock};
use crate::limit::AUDIT_LINES_MAX;
use crate::model::Timestamp;
use crate::store::{AdminStore, AuditPart, AuditPosition, AuditRow, Error, RequestName};
use async_trait::async_trait;
use bytes::Bytes;
use redis::{Pipeline, Value};
use std::time::Duration;

/// Requests that are over, and that one call removes from the sorted set.
const OVER_MAX: usize = 100;

#[async_trait(?Send)]
impl AdminStore for Redis {
    async fn add_audit_rows(&self, rows: &[AuditRow]) -> Result<(), Error> {
        for part in AuditPart::ALL {
            let mut rows = rows.iter().filter(|row| row.part == part).peekable();
            if rows.peek().is_none() {
                continue;
            }
            let key = self.keyspace.audit_key(part);
            let mut pipeline = Pipeline::new();
            let add = pipeline.cmd("ZADD").arg(&key);
            for row in rows {
                add.arg(0).arg(row.joined());
            }
            let oldest = -(AUDIT_LINES_MAX as i64) - 1;
            let trim = pipeline.cmd("ZREMRANGEBYRANK").arg(&key);
            trim.arg(0).arg(oldest);
            let values = self.connections.send(&pipeline).await?;
            check_type(&key, &values)?;
        }
        Ok(())
    }

    async fn begin_request(
        &self,
        name: &RequestName,
        state: &Bytes,
        kept_for: Duration,
    ) -> Result<Option<Bytes>, Error> {
        let key = self.keyspace.request_key(name.as_str());
        let mut pipeline = Pipeline::new();
        let set = pipeline.cmd("SET").arg(&key).arg(&**state);
        let kept_for = kept_for.as_millis() as u64;
        set.arg("NX").arg("GET").arg("PX").arg(kept_for);
        let mut values = self.connections.send(&pipeline).await?;
        check_type(&key, &values)?;
        Ok(values.pop().and_then(reads::bytes))
    }

    async fn end_request(
        &self,
        name: &RequestName,
        state: &Bytes,
        until: Timestamp,
        kept_max: usize,
    ) -> Result<(), Error> {
        let (key, until) = (self.keyspace.request_key(name.as_str()), until.as_millis());
        let ended = self.keyspace.ended_requests_key();
        let mut pipeline = Pipeline::new();
        let set = pipeline.cmd("SET").arg(&key).arg(&**state);
        set.arg("PXAT").arg(until);
        let add = pipeline.cmd("ZADD").arg(&ended).arg(until);
        add.arg(name.as_str());
        pipeline.cmd("PEXPIREAT").arg(&ended).arg(until);
        let now = WallClock.now().as_millis();
        let over = pipeline.cmd("ZRANGEBYSCORE").arg(&ended).arg("-inf");
        over.arg(now).arg("LIMIT").arg(0).arg(OVER_MAX);
        let oldest = -(kept_max as i64) - 1;
        pipeline.cmd("ZRANGE").arg(&ended).arg(0).arg(oldest);
        let mut values = self.connections.send(&pipeline).await?;
        check_type(&ended, &values)?;
        let mut names = || values.pop().and_then(texts).unwrap_or_default();
        let (mut surplus, over) = (names(), names());
        // The key of a request that is over has expired, or belongs to a new request of this name.
        surplus.retain(|name| !over.contains(name));
        let mut pipeline = Pipeline::new();
        if !surplus.is_empty() {
            let keys = surplus.iter().map(|name| self.keyspace.request_key(name));
            pipeline.cmd("UNLINK").arg(keys.collect::<Vec<_>>());
        }
        surplus.extend(over);
        if surplus.is_empty() {
            return Ok(());
        }
        pipeline.cmd("ZREM").arg(&ended).arg(&surplus);
        self.connections.send(&pipeline).await.map(drop)
    }

    async fn forget_request(&self, name: &RequestName) -> Result<(), Error> {
        let mut pipeline = Pipeline::new();
        let key = self.keyspace.request_key(name.as_str());
        pipeline.cmd("UNLINK").arg(key);
        self.connections.send(&pipeline).await.map(drop)
    }
}

impl Redis {
    pub(super) async fn read_audit_rows(
        &self,
        part: AuditPart,
        before: Option<&AuditPosition>,
        limit: usize,
    ) -> Result<Vec<AuditRow>, Error> {
        let key = self.keyspace.audit_key(part);
        let mut pipeline = Pipeline::new();
        let range = pipeline.cmd("ZRANGE").arg(&key);
        match before {
            // A member begins with its position, so it comes behind it.
            Some(before) => range.arg(format!("({}", before.as_str())),
            None => range.arg("+"),
        };
        range.arg("-").arg("BYLEX").arg("REV");
        range.arg("LIMIT").arg(0).arg(limit);
        let values = self.connections.send(&pipeline).await?;
        check_type(&key, &values)?;
        let Some(Value::Array(members)) = values.into_iter().next() else {
            return Ok(Vec::new());
        };
        let members = members.into_iter().filter_map(reads::bytes);
        Ok(members
            .filter_map(|member| AuditRow::from_joined(part, &member))
            .collect())
    }
}

fn check_type(key: &str, values: &[Value]) -> Result<(), Error> {
    if values.iter().any(|value| is_error(value, "WRONGTYPE")) {
        let text =
            format!("`{key}` holds foreign data: rename it, and find the client that wrote it");
        return Err(Error::Unavailable(text));
    }
    Ok(())
}
