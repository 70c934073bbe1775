//! The audit trail: who has changed something, or has seen payloads. Each line goes to the log, which is the record, and
//! through a bounded queue to the list in the store, which people read. So a store that is away delays no change.

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

use super::api::{Document, Params};
use super::auth::Actor;
use super::kept_store::KeptStore;
use super::problem::Problem;
use super::queries::Queries;
use super::schedules::show::ScheduleReport;
use crate::clock::{Clock as _, WallClock};
use crate::encryption::KeyRing;
use crate::limit::{
    AUDIT_LINES_MAX, AUDIT_LINES_PER_CALL_MAX, AUDIT_RETRY_DELAY, AUDIT_STOP_TIMEOUT,
};
use crate::metric::{self, Counter};
use crate::model::Timestamp;
use crate::store::query::{AuditLine, AuditReport, MessageFilter, Query, WaitingMessage};
use crate::store::{AdminStore, AuditPart, AuditPosition, AuditRow, Error};
use crate::task::StopToken;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde::Deserialize;
use std::rc::Rc;
use tokio::sync::mpsc;
use tokio::time::sleep;
use utoipa::IntoParams;

/// Lines in an answer without `limit`.
pub(crate) const PAGE_DEFAULT: usize = 100;

/// The sending side of the bounded queue to [`serve`].
#[derive(Clone, Debug)]
pub(crate) struct Audit {
    lines: mpsc::Sender<AuditLine>,
    lost: Counter,
}

pub(crate) fn channel() -> (Audit, mpsc::Receiver<AuditLine>) {
    let (lines, lines_in) = mpsc::channel(AUDIT_LINES_MAX);
    let lost = metric::audit_lines_lost();
    (Audit { lines, lost }, lines_in)
}

impl Audit {
    /// Writes the line to the log, and passes it on to the store. `text` is the message of the log.
    pub(super) fn record(&self, line: AuditLine, text: &'static str) {
        log(&line, text);
        self.keep(line);
    }

    fn keep(&self, mut line: AuditLine) {
        line.at_ms = WallClock.now().as_millis();
        line.cut();
        // The other half of the queue is for changes.
        let has_room =
            line.part() == AuditPart::Changes || self.lines.capacity() > AUDIT_LINES_MAX / 2;
        if !has_room || self.lines.try_send(line).is_err() {
            self.lost.increment(1);
        }
    }
}

fn log(line: &AuditLine, text: &'static str) {
    tracing::info!(target: "postdate::audit", actor = line.actor, address = line.address, action = line.action,
        route = line.route, topic = line.topic, partition = line.partition, offset = line.offset, id = line.id, of = line.of,
        filter = line.filter, due_ms = line.due_ms, note = line.note, dry_run = line.dry_run, limit = line.limit,
        rate = line.rate, after = line.after, next = line.next, found = line.found, changed = line.changed,
        unconfirmed = line.unconfirmed, refused = line.refused, outcome = line.outcome, "{text}");
}

impl Actor {
    /// A line of this actor.
    pub(super) fn line(&self, action: &str) -> AuditLine {
        AuditLine {
            actor: self.name.to_string(),
            address: self.address_text(),
            action: action.to_owned(),
            ..AuditLine::default()
        }
    }

    pub(super) fn audit_payload(&self, route: &str, message: &WaitingMessage) {
        let filter = MessageFilter {
            route: route.to_owned(),
            topic: Some(message.topic.clone()),
            partition: Some(message.partition),
            offset: Some(message.offset),
            ..MessageFilter::default()
        };
        self.audit_payloads(&filter, std::slice::from_ref(message));
    }

    /// Audits the payload of a definition that was shown.
    pub(super) fn audit_definition(&self, report: &ScheduleReport) {
        let schedule = &report.schedule;
        let line = AuditLine {
            route: Some(report.route.clone()),
            topic: Some(schedule.topic.clone()),
            partition: Some(schedule.partition),
            offset: Some(schedule.offset),
            id: Some(schedule.id.clone()),
            shown: Some(1),
            ..self.line("show")
        };
        self.audit.record(line, "payload shown");
    }

    /// Audits the payloads of messages that were found by this filter, if there are any. Each has a line in the log. The list
    /// has one for all of them.
    pub(super) fn audit_payloads(&self, filter: &MessageFilter, messages: &[WaitingMessage]) {
        let mut line = self.line("show");
        line.route = Some(filter.route.clone());
        let shown = messages.iter().filter(|message| message.payload.is_some());
        let mut count = 0;
        for message in shown {
            tracing::info!(target: "postdate::audit", actor = line.actor, address = line.address,
                origin = message.origin, "payload shown");
            count += 1;
        }
        if count > 0 {
            line.filter = Some(filter.to_string());
            line.shown = Some(count);
            self.audit.keep(line);
        }
    }
}

/// Writes the lines to the store until `stop` is cancelled and all senders are gone. Repeats a write that failed. `process`
/// is a number that no other process has.
pub(crate) async fn serve(
    mut lines: mpsc::Receiver<AuditLine>,
    (keys, process): (KeyRing, u64),
    connect: impl AsyncFn() -> Result<Rc<dyn AdminStore>, Error>,
    stop: StopToken,
) {
    let mut writer = Writer {
        store: KeptStore::new(connect),
        keys,
        process,
        number: 0,
        unwritten: Vec::new(),
        has_failed: false,
    };
    let serve = async {
        loop {
            let is_open = writer.take(&mut lines).await;
            if writer.unwritten.is_empty() && !is_open {
                return;
            }
            if !writer.write().await {
                sleep(AUDIT_RETRY_DELAY).await;
            }
        }
    };
    let stopped = async {
        stop.cancelled().await;
        sleep(AUDIT_STOP_TIMEOUT).await;
    };
    // Safe to drop: a write may have its effect or not, and the lines are counted as lost.
    tokio::select! {
        biased;
        () = serve => {}
        () = stopped => {}
    }
    let lost = writer.unwritten.len() + lines.len();
    metric::audit_lines_lost().increment(lost as u64);
}

/// The lines that the store does not have yet.
struct Writer<C> {
    store: KeptStore<C>,
    keys: KeyRing,
    process: u64,
    number: u32,
    unwritten: Vec<AuditRow>,
    /// The last write has failed.
    has_failed: bool,
}

impl<C: AsyncFn() -> Result<Rc<dyn AdminStore>, Error>> Writer<C> {
    /// Waits for lines, unless there are some. False: no more will come.
    async fn take(&mut self, lines: &mut mpsc::Receiver<AuditLine>) -> bool {
        let room = AUDIT_LINES_PER_CALL_MAX - self.unwritten.len();
        let mut taken = Vec::with_capacity(room);
        let is_open = match self.unwritten.is_empty() {
            true => lines.recv_many(&mut taken, room).await > 0,
            false => !lines.is_closed(),
        };
        while taken.len() < room
            && let Ok(line) = lines.try_recv()
        {
            taken.push(line);
        }
        for line in taken {
            let at = Timestamp::from_millis(line.at_ms);
            let position = AuditPosition::new(at, self.process, self.number);
            self.number = self.number.wrapping_add(1);
            self.unwritten.push(line.row(position, &self.keys));
        }
        is_open
    }

    /// False: the write has failed, and may be repeated.
    async fn write(&mut self) -> bool {
        let rows = &self.unwritten;
        let add = async |store: &dyn AdminStore| store.add_audit_rows(rows).await;
        let written = self.store.call(&add).await;
        match &written {
            Ok(()) => self.unwritten.clear(),
            Err(error) if !self.has_failed => tracing::warn!(
                %error,
                "audit lines wait for the store; the log has them. If more than {AUDIT_LINES_MAX} wait, the audit list misses some"
            ),
            Err(_) => {}
        }
        self.has_failed = written.is_err();
        !self.has_failed
    }
}

/// A part of the audit list
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditParams {
    /// Without publishes, shown payloads, dry runs and calls that continue a change
    pub(super) changes: bool,
    /// Lines in the answer, 1 to 1,000; default 100
    pub(super) limit: Option<usize>,
    /// The `after` of the answer before
    pub(super) after: Option<String>,
}

impl AuditParams {
    /// An empty value is an absent one, as forms send it.
    pub(super) fn query(&self) -> Result<Query, Problem> {
        let after = self.after.as_ref().filter(|after| !after.is_empty());
        let after = after.map(|after| {
            let position = AuditPosition::parse(after);
            position.ok_or_else(|| Problem::bad_request("after: no answer gave this value"))
        });
        let limit = self.limit.unwrap_or(PAGE_DEFAULT);
        Ok(Query::Audit {
            changes_only: self.changes,
            after: after.transpose()?,
            limit: limit.clamp(1, AUDIT_LINES_MAX),
        })
    }
}

pub(super) fn router(queries: Queries) -> Router {
    Router::new()
        .route("/v1/audit", get(list))
        .with_state(queries)
}

/// The last changes and shown payloads, the newest first
///
/// The store keeps 1,000 lines of changes, and 1,000 of publishes, shown payloads, dry runs and calls that continue a change. The
/// log has all of them. If `more` is true, `after` continues.
#[utoipa::path(get, path = "/v1/audit", params(AuditParams), responses((status = 200, body = AuditReport), (status = "default", body = Problem)))]
pub(super) async fn list(
    State(queries): State<Queries>,
    Params(params): Params<AuditParams>,
) -> Result<Document, Problem> {
    queries.document(params.query()?).await.map(Document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreQuery as _;
    use crate::testing::store::memory::MemoryStore;
    use tokio::time::timeout;

    fn line(number: u64) -> AuditLine {
        AuditLine {
            found: Some(number),
            ..AuditLine::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lines_wait_for_the_store_and_each_is_written_once() {
        let store = MemoryStore::new(Rc::new(WallClock));
        let (audit, lines) = channel();
        let stop = StopToken::new();
        let connect = async || Ok(Rc::new(store.clone()) as Rc<dyn AdminStore>);
        let serve = serve(lines, (KeyRing::plain(), 1), connect, stop.clone());
        let listed = async || {
            store
                .audit_rows(AuditPart::Changes, None, 2 * AUDIT_LINES_MAX)
                .await
                .unwrap()
                .len()
        };
        let count = 2 * AUDIT_LINES_PER_CALL_MAX as u64 + 1;
        let test = async {
            store.set_down(true);
            (0..count).for_each(|number| audit.record(line(number), "test"));
            sleep(4 * AUDIT_RETRY_DELAY).await;
            store.set_down(false);
            sleep(4 * AUDIT_RETRY_DELAY).await;
            assert_eq!(listed().await as u64, count);
            stop.cancel();
            // A response that ends during the stop.
            audit.record(line(count), "test");
            drop(audit);
        };
        tokio::join!(serve, test);
        assert_eq!(listed().await as u64, count + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn publishes_leave_room_for_changes_while_the_store_is_away() {
        let (audit, mut lines) = channel();
        let publish = AuditLine {
            action: "publish".to_owned(),
            ..AuditLine::default()
        };
        (0..2 * AUDIT_LINES_MAX).for_each(|_| audit.record(publish.clone(), "test"));
        audit.record(line(7), "a change");
        let mut waiting = Vec::new();
        lines.recv_many(&mut waiting, 2 * AUDIT_LINES_MAX).await;
        assert_eq!(waiting.len(), AUDIT_LINES_MAX / 2 + 1);
        assert_eq!(waiting.last().unwrap().found, Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn lines_are_written_with_one_connection_until_it_fails() {
        let store = MemoryStore::new(Rc::new(WallClock));
        let (audit, lines) = channel();
        let stop = StopToken::new();
        let connections = std::cell::Cell::new(0);
        let connect = async || {
            connections.set(connections.get() + 1);
            Ok(Rc::new(store.clone()) as Rc<dyn AdminStore>)
        };
        let serve = serve(lines, (KeyRing::plain(), 1), connect, stop.clone());
        let test = async {
            for number in 0..5 {
                audit.record(line(number), "test");
                sleep(AUDIT_RETRY_DELAY).await;
            }
            assert_eq!(connections.get(), 1);
            stop.cancel();
            drop(audit);
        };
        tokio::join!(serve, test);
        let rows = store.audit_rows(AuditPart::Changes, None, 9).await;
        assert_eq!(rows.unwrap().len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_does_not_wait_for_a_store_that_is_away() {
        let (audit, lines) = channel();
        let stop = StopToken::new();
        let connect = async || Err(Error::Unavailable("away".to_owned()));
        for number in 0..2 * AUDIT_LINES_MAX as u64 {
            audit.record(line(number), "a change never waits");
        }
        stop.cancel();
        let served = serve(lines, (KeyRing::plain(), 1), connect, stop);
        assert!(timeout(2 * AUDIT_STOP_TIMEOUT, served).await.is_ok());
    }
}
