//! Sends spans to a collector with OpenTelemetry's exporter, by OTLP over HTTP.
//!
//! Queue, batch size, retries and timeouts are bounded here. If the collector is slow or
//! unreachable, spans are dropped and counted. Ingress and timer never wait for this loop.

use super::otlp_http::OtlpHttpClient;
use super::span::SpanConverter;
use crate::limit::{SPANS_LINGER, SPANS_PER_REQUEST_MAX, SPANS_REQUEST_TIMEOUT, SPANS_RETRIES_MAX};
use crate::metric;
use crate::trace::Span;
use anyhow::{Context, Result};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::trace::SpanExporter as _;
use std::sync::Arc;
use tokio::sync::mpsc;
use url::Url;

/// The loop that sends spans.
pub(crate) struct Exporter {
    /// For logs. It has no credentials: the configuration does not accept them in this address.
    url: Url,
    client: Arc<OtlpHttpClient>,
    exporter: SpanExporter,
    converter: SpanConverter,
    metric: metric::TraceMetrics,
    /// The last request failed, and this was logged.
    is_failing: bool,
}

impl Exporter {
    /// `url` is the collector's address without `/v1/traces`. `authorization` is the value of that
    /// HTTP header.
    pub(crate) fn new(
        url: &Url,
        authorization: Option<&str>,
        mut converter: SpanConverter,
    ) -> Result<Self> {
        let mut url = url.clone();
        url.set_path(&format!("{}/v1/traces", url.path().trim_end_matches('/')));
        let client = Arc::new(OtlpHttpClient::new(&url, authorization)?);
        let retries = RetryPolicy::recommended()
            .with_max_retries(SPANS_RETRIES_MAX as usize)
            .with_initial_delay(SPANS_LINGER);
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_shared_http_client(client.clone())
            .with_endpoint(url.as_str())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout((SPANS_RETRIES_MAX + 1) * SPANS_REQUEST_TIMEOUT)
            .with_retry_policy(retries)
            .build()
            .context("cannot create the trace exporter")?;
        exporter.set_resource(&converter.resource());
        Ok(Self {
            url,
            client,
            exporter,
            converter,
            metric: metric::TraceMetrics::new(),
            is_failing: false,
        })
    }

    /// Runs until every tracer is dropped and the remaining spans are sent or dropped.
    pub(crate) async fn serve(mut self, mut spans: mpsc::Receiver<Span>) {
        while let Some(first) = spans.recv().await {
            let mut batch = vec![first];
            let fill = async {
                while batch.len() < SPANS_PER_REQUEST_MAX {
                    let room = SPANS_PER_REQUEST_MAX - batch.len();
                    if spans.recv_many(&mut batch, room).await == 0 {
                        break;
                    }
                }
            };
            // Safe to drop: spans that were not received stay in the channel.
            let _linger = tokio::time::timeout(SPANS_LINGER, fill).await;
            self.export(&batch).await;
        }
    }

    async fn export(&mut self, batch: &[Span]) {
        let count = batch.len() as u64;
        let batch = batch
            .iter()
            .map(|span| self.converter.convert(span))
            .collect();
        match self.exporter.export(batch).await {
            Ok(()) => {
                self.metric.exported.increment(count);
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!(endpoint = %self.url, "the collector accepts traces again");
                }
            }
            Err(error) => {
                self.metric.dropped.increment(count);
                if !std::mem::replace(&mut self.is_failing, true) {
                    let reason = self
                        .client
                        .take_last_error()
                        .unwrap_or_else(|| error.to_string());
                    tracing::warn!(
                        endpoint = %self.url,
                        reason,
                        "dropping traces: the collector does not accept them (traces.endpoint)"
                    );
                }
            }
        }
    }
}
