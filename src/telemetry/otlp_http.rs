//! The HTTP client of OpenTelemetry's exporter. It keeps the reason of the last failed request,
//! which the exporter does not return.

use crate::http_client::connector;
use crate::limit::SPANS_REQUEST_TIMEOUT;
use anyhow::{Context, Result};
use async_trait::async_trait;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use rustls::RootCertStore;
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use url::Url;

#[derive(Debug)]
pub(super) struct OtlpHttpClient {
    client: HyperClient<HttpsConnector<HttpConnector>>,
    last_error: Mutex<Option<String>>,
}

impl OtlpHttpClient {
    pub(super) fn new(url: &Url, authorization: Option<&str>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        if url.scheme() == "https" {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            anyhow::ensure!(
                !roots.is_empty(),
                "traces.endpoint is https://, but the system has no certificate authorities: \
                 install ca-certificates"
            );
        }
        let authorization = authorization
            .map(sensitive_value)
            .transpose()
            .context("traces.authorization")?;
        Ok(Self {
            client: HyperClient::new(connector(roots), SPANS_REQUEST_TIMEOUT, authorization),
            last_error: Mutex::default(),
        })
    }

    pub(super) fn take_last_error(&self) -> Option<String> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// A header value that `Debug` does not print.
fn sensitive_value(value: &str) -> Result<http::HeaderValue> {
    let mut value: http::HeaderValue = value.parse()?;
    value.set_sensitive(true);
    Ok(value)
}

#[async_trait]
impl HttpClient for OtlpHttpClient {
    async fn send_bytes(
        &self,
        request: Request<Bytes>,
    ) -> std::result::Result<Response<Bytes>, HttpError> {
        let result = self.client.send_bytes(request).await;
        let error = match &result {
            Ok(response) => status_error(response.status().as_u16()),
            Err(error) => Some(root_cause(&**error)),
        };
        *self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = error;
        result
    }
}

fn status_error(status: u16) -> Option<String> {
    match status {
        200..=299 => None,
        404 => {
            Some("it answers 404: OTLP over HTTP has another address, usually port 4318".to_owned())
        }
        _ => Some(format!("it answers {status}")),
    }
}

/// The innermost error. The outer ones only say that sending failed.
fn root_cause(error: &(dyn Error + 'static)) -> String {
    if error.is::<tokio::time::error::Elapsed>() {
        return format!("no answer within {} s", SPANS_REQUEST_TIMEOUT.as_secs());
    }
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_status_is_reported_and_404_with_its_likely_cause() {
        assert_eq!(status_error(200), None);
        assert_eq!(status_error(204), None);
        assert_eq!(status_error(503), Some("it answers 503".to_owned()));
        assert!(status_error(404).is_some_and(|text| text.contains("4318")));
    }

    #[test]
    fn the_authorization_is_not_printed() {
        let client = OtlpHttpClient::new(
            &"http://127.0.0.1:1".parse().unwrap(),
            Some("Bearer hunter2"),
        )
        .unwrap();
        assert!(!format!("{client:?}").contains("hunter2"));
    }
}
