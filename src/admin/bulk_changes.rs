//! Changes of many waiting messages. Each message gets a record on its own partition, as a
//! producer would write it. A dry run by default. One call has one audit line.

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

use super::api::MessagesParams;
use super::auth::Actor;
use super::change_api::{ChangeApi, NewDue};
use super::changes::{Change, ChangeError, ChangeKind};
use super::message_change::{Action, Obstacle, Plan};
use super::problem::Problem;
use crate::clock::{Clock as _, WallClock};
use crate::limit::{
    BULK_CALL_SECONDS, BULK_CALL_TIMEOUT, BULK_LIMIT_DEFAULT, BULK_RATE_DEFAULT,
    CHANGES_PER_WRITE_MAX, SEARCH_PAGE_MAX,
};
use crate::model::{Timestamp, readable};
use crate::store::query::{AuditLine, MessageFilter, MessagePage, Query, Search, WaitingMessage};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use utoipa::ToSchema;

/// The conditions and the bounds of a change
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct BulkBody {
    /// The earliest due time: RFC 3339, or milliseconds since 1970
    pub(super) due_from: Option<String>,
    /// The latest due time
    pub(super) due_to: Option<String>,
    /// The `postdate-id`
    pub(super) id: Option<String>,
    /// The key of the record
    pub(super) key: Option<String>,
    /// A header as `name:value`
    pub(super) header: Option<String>,
    /// The source topic
    pub(super) topic: Option<String>,
    /// The source partition
    pub(super) partition: Option<i32>,
    /// Only for a reschedule: the new due time
    pub(super) at: Option<String>,
    /// Only for a reschedule, and not with `after`: a delay from now, like `30m`
    #[serde(rename = "in")]
    pub(super) delay: Option<String>,
    /// `false` changes the messages. Default: `true`, which only counts them
    pub(super) dry_run: Option<bool>,
    /// Change at most this many messages, at least 1; default 1,000
    pub(super) limit: Option<usize>,
    /// Changes per second; default 100
    pub(super) rate: Option<u32>,
    /// The `after` of the answer before
    pub(super) after: Option<String>,
}

/// The outcome of one call. Each message that meets the conditions has one count: it is `found`, or it has
/// the reason for which it stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct BulkReport {
    pub(crate) route: String,
    /// `cancel`, `reschedule` or `fire`.
    pub(crate) action: String,
    pub(crate) dry_run: bool,
    /// The new due time of a reschedule.
    pub(crate) due_ms: Option<i64>,
    /// Messages that can be changed: with those that were changed, and those that were refused.
    pub(crate) found: u64,
    /// Records that the broker has acknowledged.
    pub(crate) changed: u64,
    /// Messages whose record was refused: the service would dead-letter it, or the broker never takes it.
    pub(crate) refused: u64,
    /// Why the last one was refused.
    pub(crate) refusal: Option<String>,
    /// Messages that are being sent.
    pub(crate) in_flight: u64,
    /// Messages that no record can name: they have no id, or another message has it.
    pub(crate) without_id: u64,
    /// Messages that are due within seconds, so they are neither fired nor moved.
    pub(crate) due_soon: u64,
    /// Messages that have the due time already.
    pub(crate) unchanged: u64,
    /// Stored batches that the search read.
    pub(crate) scanned: u64,
    /// True if the call ended before the last message: `after` continues it.
    pub(crate) more: bool,
    pub(crate) after: Option<String>,
}

impl BulkReport {
    pub(crate) fn new(route: &str, action: Action, dry_run: bool) -> Self {
        Self {
            route: route.to_owned(),
            action: action.name().to_owned(),
            dry_run,
            due_ms: match action {
                Action::Reschedule(due) => Some(due.as_millis()),
                Action::Cancel | Action::Fire => None,
            },
            ..Self::default()
        }
    }

    /// The sum of two calls, of which the other one is the later.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            found: self.found + other.found,
            changed: self.changed + other.changed,
            refused: self.refused + other.refused,
            refusal: other.refusal.or(self.refusal),
            in_flight: self.in_flight + other.in_flight,
            without_id: self.without_id + other.without_id,
            due_soon: self.due_soon + other.due_soon,
            unchanged: self.unchanged + other.unchanged,
            scanned: self.scanned + other.scanned,
            ..other
        }
    }

    /// The messages that stay as they are, in words.
    pub(crate) fn notes(&self) -> Vec<String> {
        let counts = [
            (
                self.without_id,
                "Without an id (see change_by_origin), or another message has it, so no record can name them",
            ),
            (self.in_flight, "Being sent already"),
            (self.due_soon, "Due within seconds, or about to be moved"),
            (self.unchanged, "With this due time already"),
        ];
        let counts = counts.into_iter().filter(|(number, _)| *number > 0);
        let mut notes: Vec<_> = counts
            .map(|(number, what)| format!("{what}: {}.", readable::count(number)))
            .collect();
        if let Some(refusal) = &self.refusal {
            let refused = readable::count(self.refused);
            notes.push(format!("Refused: {refused}. The last one: {refusal}"));
        }
        notes
    }

    /// Counts records. `Some`: so many may or may not have arrived, and why.
    pub(crate) fn count_written(
        &mut self,
        outcomes: Vec<Result<(), ChangeError>>,
    ) -> Option<(u64, String)> {
        let mut unconfirmed = None;
        for outcome in outcomes {
            match outcome {
                Ok(()) => self.changed += 1,
                Err(ChangeError::Refused(why)) => self.count_refused(why),
                Err(ChangeError::Failed(why)) => {
                    let (count, _) = unconfirmed.unwrap_or_default();
                    unconfirmed = Some((count + 1, why));
                }
            }
        }
        unconfirmed
    }

    pub(crate) fn count_refused(&mut self, why: String) {
        self.refused += 1;
        self.refusal = Some(why);
    }

    /// Counts a message of a dry run. `copies_refused`: why no copy may take its place now.
    pub(crate) fn count_plan(
        &mut self,
        plan: Result<Plan, Obstacle>,
        copies_refused: Option<&str>,
    ) {
        self.count(plan.err());
        if matches!(plan, Ok(Plan::Copy(_)))
            && let Some(why) = copies_refused
        {
            self.count_refused(why.to_owned());
        }
    }

    /// Counts a message. `None`: it can be changed.
    pub(crate) fn count(&mut self, obstacle: Option<Obstacle>) {
        *match obstacle {
            None => &mut self.found,
            Some(Obstacle::InFlight) => &mut self.in_flight,
            Some(Obstacle::WithoutId) => &mut self.without_id,
            Some(Obstacle::DueSoon) => &mut self.due_soon,
            Some(Obstacle::Unchanged) => &mut self.unchanged,
        } += 1;
    }
}

/// A parsed call.
struct BulkRequest {
    search: Search,
    action: Action,
    dry_run: bool,
    limit: usize,
    rate: u32,
    /// The place from which the call starts.
    start: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BulkAction {
    Cancel,
    Reschedule,
    Fire,
    /// Cancels without a condition.
    Purge,
}

impl BulkBody {
    fn request(
        self,
        route: &str,
        action: BulkAction,
        now: Timestamp,
    ) -> Result<BulkRequest, Problem> {
        let start = self.after.clone().filter(|after| !after.is_empty());
        let has_delay = self.delay.as_ref().is_some_and(|it| !it.is_empty());
        if has_delay && start.is_some() {
            let text = "`in` counts from now: with `after`, write the `due_ms` of the first answer as `at`";
            return Err(Problem::bad_request(text));
        }
        let params = MessagesParams {
            due_from: self.due_from,
            due_to: self.due_to,
            id: self.id,
            key: self.key,
            header: self.header,
            topic: self.topic,
            partition: self.partition.map(|partition| partition.to_string()),
            after: self.after,
            ..MessagesParams::default()
        };
        let mut search = params.search(route)?;
        let has_condition = has_condition(&search.filter);
        let new_due = NewDue {
            at: self.at,
            delay: self.delay,
        };
        let wrong = |text: &str| Err(Problem::bad_request(text));
        if self.limit == Some(0) {
            return wrong("limit: write at least 1");
        }
        if action != BulkAction::Reschedule && new_due != NewDue::default() {
            return wrong("only a reschedule has a new due time");
        }
        let action = match action {
            BulkAction::Purge if has_condition => {
                return wrong("a purge has no condition: use messages:cancel");
            }
            BulkAction::Purge => Action::Cancel,
            _ if !has_condition => {
                return wrong("name a condition; a purge cancels all messages of a route");
            }
            BulkAction::Cancel => Action::Cancel,
            BulkAction::Fire => Action::Fire,
            BulkAction::Reschedule => Action::Reschedule(new_due.due(now)?),
        };
        let (limit, dry_run) = (self.limit.unwrap_or(BULK_LIMIT_DEFAULT), self.dry_run);
        let (dry_run, rate) = (dry_run.unwrap_or(true), self.rate);
        let rate = rate.unwrap_or(BULK_RATE_DEFAULT).max(1);
        let per_call = match dry_run {
            true => limit,
            false => limit.min(BULK_CALL_SECONDS * rate as usize),
        };
        search.limit = per_call.clamp(1, SEARCH_PAGE_MAX);
        // On NATS the subject is a header.
        search.is_detailed = !dry_run;
        search.with_copies = !dry_run && action.needs_copies();
        Ok(BulkRequest {
            search,
            action,
            dry_run,
            limit,
            rate,
            start,
        })
    }
}

/// Records that are written together: those of a tenth of a second, so that the rate is even.
pub(crate) fn batch_max(rate: u32) -> usize {
    (rate / 10).clamp(1, CHANGES_PER_WRITE_MAX) as usize
}

/// False if every message of the route meets the filter.
pub(crate) fn has_condition(filter: &MessageFilter) -> bool {
    let all = MessageFilter {
        route: filter.route.clone(),
        ..MessageFilter::default()
    };
    *filter != all
}

/// Writes the audit line when the call ends, also if its client leaves before. A dry run changes nothing, so
/// it has none.
struct Audit<'a> {
    actor: Actor,
    request: &'a BulkRequest,
    report: BulkReport,
    /// Records that are sent, and that the broker has not acknowledged. They may have arrived.
    unconfirmed: u64,
    outcome: &'static str,
}

impl Drop for Audit<'_> {
    fn drop(&mut self) {
        if self.request.dry_run {
            return;
        }
        let BulkRequest {
            search,
            limit,
            rate,
            start,
            ..
        } = self.request;
        let report = &self.report;
        let line = AuditLine {
            route: Some(report.route.clone()),
            filter: Some(search.filter.to_string()),
            due_ms: report.due_ms,
            limit: Some(*limit as u64),
            rate: Some(*rate),
            after: start.clone(),
            next: report.after.clone(),
            found: Some(report.found),
            changed: Some(report.changed),
            unconfirmed: Some(self.unconfirmed),
            refused: Some(report.refused),
            outcome: Some(self.outcome.to_owned()),
            ..self.actor.line(&report.action)
        };
        let text = "change of many messages requested at the admin endpoint";
        self.actor.audit.record(line, text);
    }
}

impl ChangeApi {
    /// Changes the messages of one page of a search.
    pub(super) async fn change_many(
        &self,
        actor: Actor,
        route: &str,
        action: BulkAction,
        body: BulkBody,
    ) -> Result<BulkReport, Problem> {
        actor.require_change()?;
        let request = body.request(route, action, WallClock.now())?;
        let permit = (!request.dry_run).then(|| self.bulk_permit.try_acquire());
        let _permit = permit.transpose().map_err(|_| {
            Problem::busy("another call changes many messages: try again when it has ended")
        })?;
        let mut audit = Audit {
            actor,
            request: &request,
            report: BulkReport::new(route, request.action, request.dry_run),
            unconfirmed: 0,
            outcome: "interrupted",
        };
        let done = self.search_and_change(&request, &mut audit).await;
        audit.outcome = if done.is_ok() { "done" } else { "failed" };
        done.map_err(|problem| match audit.report.changed {
            0 => problem,
            changed => {
                let due = audit
                    .report
                    .due_ms
                    .map(|due| format!(", with {due} as `at`"));
                let (detail, due) = (problem.detail.as_str(), due.unwrap_or_default());
                let text = format!("{detail} (changed before: {changed}; repeat the call{due})");
                Problem::new(problem.status_code(), text)
            }
        })?;
        Ok(audit.report.clone())
    }

    async fn search_and_change(
        &self,
        request: &BulkRequest,
        audit: &mut Audit<'_>,
    ) -> Result<(), Problem> {
        let search = Box::new(request.search.clone());
        let page: MessagePage = self.queries.report(Query::Messages(search)).await?;
        if page.items.is_empty() && !page.more {
            // Tells an unknown route from one in which nothing waits.
            self.queries.route(&audit.report.route).await?;
        }
        // Until the whole page is changed, the same place continues: the changed messages are not found again.
        audit.report.scanned = page.scanned;
        (audit.report.more, audit.report.after) = (true, request.start.clone());
        if self.change_page(request, &page.items, audit).await? {
            (audit.report.more, audit.report.after) = (page.more, page.after);
        }
        Ok(())
    }

    /// False if the time was over before the last message.
    async fn change_page(
        &self,
        request: &BulkRequest,
        messages: &[WaitingMessage],
        audit: &mut Audit<'_>,
    ) -> Result<bool, Problem> {
        let start = Instant::now();
        let copies_refused = match request.action.needs_copies() {
            true => self.refuses_copies().await?,
            false => None,
        };
        let mut batch = Vec::new();
        for message in messages {
            let (now, report) = (WallClock.now(), &mut audit.report);
            if request.dry_run {
                report.count_plan(request.action.plan(message, now), copies_refused.as_deref());
                continue;
            }
            if batch.is_empty() && start.elapsed() >= BULK_CALL_TIMEOUT {
                return Ok(false);
            }
            let change = (request.action).change(&report.route, message, now);
            report.count(change.as_ref().err().copied());
            let Ok(change) = change else { continue };
            if matches!(change.kind, ChangeKind::Copy { .. })
                && let Some(why) = &copies_refused
            {
                report.count_refused(why.clone());
                continue;
            }
            batch.push(change);
            if batch.len() == batch_max(request.rate) {
                self.write(std::mem::take(&mut batch), audit).await?;
            }
        }
        self.write(batch, audit).await?;
        Ok(true)
    }

    /// Writes the changes together, and waits until the next ones may follow.
    async fn write(&self, batch: Vec<Change>, audit: &mut Audit<'_>) -> Result<(), Problem> {
        if batch.is_empty() {
            return Ok(());
        }
        let (start, count) = (Instant::now(), batch.len() as u32);
        audit.unconfirmed = count.into();
        let written = self.changes.write_many(batch).await;
        if written.as_ref().is_err_and(Problem::is_busy) {
            audit.unconfirmed = 0;
        }
        let outcomes = written?;
        audit.unconfirmed = 0;
        if let Some((unconfirmed, why)) = audit.report.count_written(outcomes) {
            audit.unconfirmed = unconfirmed;
            return Err(Problem::unavailable(why));
        }
        sleep_until(start + Duration::from_secs(1) * count / audit.request.rate).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::change_api::json;
    use crate::admin::changes::ChangeCall;
    use crate::admin::{audit, changes, queries};
    use crate::testing::fuzz::fuzz;
    use std::sync::Arc;
    use tokio::sync::{Semaphore, mpsc};

    fn request(action: BulkAction, text: &str) -> Result<BulkRequest, String> {
        let body: BulkBody = json(text.as_bytes()).map_err(|problem| problem.detail)?;
        let now = Timestamp::from_millis(1_000);
        let request = body.request("orders", action, now);
        request.map_err(|problem| problem.detail)
    }

    #[test]
    fn a_call_is_a_dry_run_unless_it_says_otherwise() {
        let parsed = request(BulkAction::Cancel, r#"{"key":"k"}"#).unwrap();
        assert!(parsed.dry_run && !parsed.search.is_detailed);
        assert_eq!(parsed.search.limit, BULK_LIMIT_DEFAULT);
        let text = r#"{"key":"k","dry_run":false,"rate":10,"limit":5000}"#;
        let parsed = request(BulkAction::Cancel, text).unwrap();
        assert_eq!((parsed.dry_run, parsed.search.limit), (false, 80));
        let moved = request(BulkAction::Reschedule, r#"{"partition":3,"in":"1s"}"#).unwrap();
        let due = Timestamp::from_millis(2_000);
        assert_eq!(moved.action, Action::Reschedule(due));
    }

    #[test]
    fn only_a_purge_has_no_condition() {
        for (action, text, why) in [
            (BulkAction::Cancel, "", "name a condition"),
            (BulkAction::Fire, r#"{"id":""}"#, "name a condition"),
            (BulkAction::Purge, r#"{"id":"a"}"#, "no condition"),
            (
                BulkAction::Fire,
                r#"{"id":"a","in":"1s"}"#,
                "only a reschedule",
            ),
            (BulkAction::Reschedule, r#"{"id":"a"}"#, "new due time"),
            (
                BulkAction::Reschedule,
                r#"{"id":"a","in":"1s","after":"a"}"#,
                "counts from now",
            ),
            (BulkAction::Fire, r#"{"id":"a","limit":0}"#, "at least 1"),
            (BulkAction::Cancel, r#"{"ids":"a"}"#, "body: "),
            (
                BulkAction::Cancel,
                r#"{"id":"a","after":"a"}"#,
                "no page gave",
            ),
        ] {
            let problem = request(action, text).err().unwrap();
            assert!(problem.contains(why), "{text}: {problem}");
        }
        assert!(request(BulkAction::Purge, "").is_ok());
    }

    fn api() -> (ChangeApi, mpsc::Receiver<ChangeCall>) {
        let (changes, calls) = changes::channel();
        let api = ChangeApi {
            queries: queries::channel().0,
            changes,
            bulk_permit: Arc::new(Semaphore::new(1)),
        };
        (api, calls)
    }

    fn audit(request: &BulkRequest) -> Audit<'_> {
        Audit {
            actor: Actor {
                name: "operator".into(),
                may_change: true,
                address: None,
                may_log_in: false,
                may_log_out: false,
                audit: audit::channel().0,
            },
            request,
            report: BulkReport::new("orders", request.action, false),
            unconfirmed: 0,
            outcome: "interrupted",
        }
    }

    fn messages(count: usize) -> Vec<WaitingMessage> {
        let message = WaitingMessage {
            id: Some("a".to_owned()),
            can_change: true,
            ..WaitingMessage::default()
        };
        vec![message; count]
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_ends_during_a_record_tells_that_the_record_is_unconfirmed() {
        let (api, mut calls) = api();
        let request = request(BulkAction::Cancel, r#"{"key":"k","dry_run":false}"#).unwrap();
        let mut audit = audit(&request);
        let messages = messages(1);
        let change = api.change_page(&request, &messages, &mut audit);
        let ended = tokio::time::timeout(Duration::from_secs(1), change).await;
        assert!(ended.is_err() && calls.try_recv().is_ok(), "it is sent");
        assert_eq!(audit.unconfirmed, 1);
        assert_eq!((audit.report.found, audit.report.changed), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn records_are_written_in_groups_until_one_fails() {
        let (api, mut calls) = api();
        let request = request(BulkAction::Cancel, r#"{"key":"k","dry_run":false}"#).unwrap();
        let mut audit = audit(&request);
        let mut groups = Vec::new();
        let answer = async {
            while let Some(ChangeCall::Many(changes, reply)) = calls.recv().await {
                groups.push(changes.len());
                let mut outcomes: Vec<_> = changes.iter().map(|_| Ok(())).collect();
                if groups.len() == 3 {
                    outcomes[0] = Err(ChangeError::Refused("not taken".to_owned()));
                    outcomes[1] = Err(ChangeError::Failed("no leader".to_owned()));
                }
                let _ = reply.send(outcomes);
            }
        };
        let messages = messages(45);
        let change = async {
            let changed = api.change_page(&request, &messages, &mut audit).await;
            drop(api);
            changed
        };
        let (changed, ()) = tokio::join!(change, answer);
        assert_eq!(changed.unwrap_err().detail, "no leader");
        assert_eq!(groups, [10; 3], "a tenth of the rate");
        let report = &audit.report;
        assert_eq!((report.changed, report.refused), (28, 1));
        assert_eq!(audit.unconfirmed, 1);
    }

    #[test]
    fn fuzz_bodies() {
        let seeds = [
            r#"{"due_from":"2027-01-31T09:00:00Z","limit":3,"rate":0}"#,
            r#"{"header":"a:b","in":"30m","dry_run":false}"#,
        ];
        fuzz(&seeds, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let _ = request(BulkAction::Reschedule, &text);
        });
    }
}
