//! The audit list in Redis: one sorted set, whose members have the order of their positions.

use super::Redis;
use super::connection::is_error;
use super::reads;
use crate::limit::AUDIT_LINES_MAX;
use crate::store::{AdminStore, AuditPosition, AuditRow, Error};
use async_trait::async_trait;
use redis::{Pipeline, Value};

#[async_trait(?Send)]
impl AdminStore for Redis {
    async fn add_audit_rows(&self, rows: &[AuditRow]) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let key = self.keyspace.audit_key();
        let mut pipeline = Pipeline::new();
        let add = pipeline.cmd("ZADD").arg(&key);
        for row in rows {
            add.arg(0).arg(row.joined());
        }
        let oldest = -(AUDIT_LINES_MAX as i64) - 1;
        let trim = pipeline.cmd("ZREMRANGEBYRANK").arg(&key);
        trim.arg(0).arg(oldest);
        let values = self.connections.send(&pipeline).await?;
        check_type(&key, &values)
    }
}

impl Redis {
    pub(super) async fn read_audit_rows(
        &self,
        before: Option<&AuditPosition>,
        limit: usize,
    ) -> Result<Vec<AuditRow>, Error> {
        let key = self.keyspace.audit_key();
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
            .filter_map(|member| AuditRow::from_joined(&member))
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
