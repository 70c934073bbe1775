//! Errors of the HTTP API, as `application/problem+json` (RFC 9457).

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// The code of [`Problem::busy`].
pub(crate) const BUSY: &str = "busy";

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// The HTTP status.
    pub(super) status: u16,
    /// The name of the status.
    pub(super) title: &'static str,
    /// The reason. For a refused message it has the code of the dead letter.
    pub(crate) detail: String,
    /// A word for programs, if the status has several reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<&'static str>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status: status.as_u16(),
            title: status.canonical_reason().unwrap_or_default(),
            detail: detail.into(),
            code: None,
        }
    }

    pub(super) fn with_code(self, code: &'static str) -> Self {
        let code = Some(code);
        Self { code, ..self }
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// Too many requests run, so this one was not done, or not to its end. A repeat is safe.
    pub(super) fn busy(detail: impl Into<String>) -> Self {
        Self::unavailable(detail).with_code(BUSY)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.code == Some(BUSY)
    }

    pub(super) fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_string(&self).expect("a problem has only numbers and texts");
        let kind = [(CONTENT_TYPE, "application/problem+json")];
        (self.status_code(), kind, body).into_response()
    }
}
