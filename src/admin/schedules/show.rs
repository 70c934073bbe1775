//! One schedule: its definition and its next occurrences.

#![allow(
    unused_qualifications,
    reason = "the macros of utoipa write full paths"
)]

use super::preview::Preview;
use super::{Schedule, Schedules, SchedulesReport, SchedulesRequest};
use crate::admin::api::{Params, PathParams};
use crate::admin::auth::Actor;
use crate::admin::problem::Problem;
use crate::limit::SCHEDULES_PAGE_MAX;
use crate::model::{ParsedDefinition, Timestamp, parse_definition};
use crate::store::query::{MessageHeader, text_of_bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Occurrences in an answer.
const OCCURRENCES_SHOWN: usize = 5;

/// A schedule with its definition. Fields are only added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ScheduleReport {
    pub(crate) deployment: String,
    pub(crate) route: String,
    pub(crate) at_ms: i64,
    #[serde(flatten)]
    pub(crate) schedule: Schedule,
    /// The timestamp of the definition.
    pub(crate) timestamp_ms: Option<i64>,
    pub(crate) headers: Vec<MessageHeader>,
    pub(crate) payload_bytes: u64,
    /// Only if `admin.payloads` is `shown`.
    pub(crate) payload: Option<String>,
    /// Absent for a wrong definition.
    pub(crate) preview: Option<Preview>,
}

/// The schedule of a request. Several partitions may have schedules with one id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScheduleName {
    pub(crate) route: String,
    pub(crate) id: String,
    pub(crate) topic: Option<String>,
    pub(crate) partition: Option<i32>,
}

/// The partition of a schedule, if several have the id
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ScheduleParams {
    /// The topic
    pub(crate) topic: Option<String>,
    /// The partition
    pub(crate) partition: Option<i32>,
}

impl ScheduleParams {
    /// The name of the schedule with this id.
    pub(crate) fn name(self, route: String, id: String) -> ScheduleName {
        let Self { topic, partition } = self;
        ScheduleName {
            route,
            id,
            topic,
            partition,
        }
    }
}

impl ScheduleName {
    pub(crate) fn request(&self) -> SchedulesRequest {
        SchedulesRequest {
            route: self.route.clone(),
            id: Some(self.id.clone()),
            after: None,
            limit: SCHEDULES_PAGE_MAX,
            with_records: true,
        }
    }

    /// The only schedule of a report that has the name, or an error text if there are several.
    pub(crate) fn find(&self, report: &mut SchedulesReport) -> Result<Option<Schedule>, String> {
        let is_named = |schedule: &Schedule| {
            let Self {
                id,
                topic,
                partition,
                ..
            } = self;
            schedule.id == *id
                && (topic.as_ref()).is_none_or(|topic| *topic == schedule.topic)
                && partition.is_none_or(|partition| partition == schedule.partition)
        };
        report.schedules.retain(is_named);
        if let [one, other, ..] = &*report.schedules {
            return Err(format!(
                "{}/{} and {}/{} have a schedule with this id: name the topic and the partition",
                one.topic, one.partition, other.topic, other.partition
            ));
        }
        Ok(report.schedules.pop())
    }
}

impl ScheduleReport {
    /// `None`: the schedule has no record, because the request did not ask for it.
    pub(crate) fn new(report: &SchedulesReport, schedule: Schedule) -> Option<Self> {
        let record = schedule.record.as_ref()?;
        let source = schedule.as_record(record);
        let headers = source.headers.iter().map(|(name, value)| MessageHeader {
            name: text_of_bytes(name),
            value: value.map(text_of_bytes),
        });
        let headers = headers.collect();
        let preview = match parse_definition(&source, Some(&schedule.id)) {
            ParsedDefinition::Defined(definition) => {
                let now = Timestamp::from_millis(report.at_ms);
                Some(Preview::new(&definition, now, OCCURRENCES_SHOWN))
            }
            ParsedDefinition::Ended | ParsedDefinition::Rejected(_) => None,
        };
        Some(Self {
            deployment: report.deployment.clone(),
            route: report.route.clone(),
            at_ms: report.at_ms,
            timestamp_ms: record.timestamp.map(Timestamp::as_millis),
            headers,
            payload_bytes: record.payload.len() as u64,
            payload: (report.shows_payloads).then(|| text_of_bytes(&record.payload)),
            preview,
            schedule,
        })
    }
}

impl Schedules {
    /// The only schedule with this name, and the report that it is from.
    pub(in crate::admin) async fn find(
        &self,
        name: &ScheduleName,
    ) -> Result<(SchedulesReport, Schedule), Problem> {
        let mut report = self.ask(name.request()).await?;
        let found = name.find(&mut report);
        let found = found.map_err(|text| Problem::new(StatusCode::CONFLICT, text))?;
        let schedule = found.ok_or_else(|| {
            let text = format!("no record of the topic defines a schedule {:?}", name.id);
            Problem::not_found(text)
        })?;
        Ok((report, schedule))
    }

    pub(in crate::admin) async fn report_of(
        &self,
        actor: &Actor,
        name: &ScheduleName,
    ) -> Result<ScheduleReport, Problem> {
        let (report, schedule) = self.find(name).await?;
        let report = ScheduleReport::new(&report, schedule);
        let report = report.ok_or_else(|| Problem::unavailable("the record is missing"))?;
        if report.payload.is_some() {
            actor.audit_definition(&report);
        }
        Ok(report)
    }
}

/// One schedule with the headers of its definition and its next five due times
///
/// With the payload if `admin.payloads` is `shown`. 404: no record defines it. 409: several partitions have the id, so name one.
#[utoipa::path(get, path = "/v1/routes/{route}/schedules/{id}", params(("route" = String, Path), ("id" = String, Path), ScheduleParams), responses((status = 200, body = ScheduleReport), (status = "default", body = Problem)))]
pub(in crate::admin) async fn show(
    State(schedules): State<Schedules>,
    Extension(actor): Extension<Actor>,
    PathParams((route, id)): PathParams<(String, String)>,
    Params(params): Params<ScheduleParams>,
) -> Result<Json<ScheduleReport>, Problem> {
    let name = params.name(route, id);
    schedules.report_of(&actor, &name).await.map(Json)
}
