//! Takes spans to a collector: OpenTelemetry's own exporter writes and sends them, by OTLP over HTTP; what waits for it, and for how long, is
//! bounded here. A collector that is slow or away costs spans, which are counted, and nothing else: nobody waits for this loop.

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

/// Where spans go, and whose they are.
pub(crate) struct Exporter {
    /// Without what may be a secret: the configuration takes no login in the address.
    url: Url,
    client: Arc<OtlpHttpClient>,
    exporter: SpanExporter,
    converter: SpanConverter,
    metric: metric::TraceMetrics,
    /// The last request was not taken, and somebody was told.
    is_failing: bool,
}

impl Exporter {
    /// `url` is the collector's, without `/v1/traces`; `authorization` is the whole value of that header.
    pub(crate) fn new(
        url: &Url,
        authorization: Option<&str>,
        mut scribe: SpanConverter,
    ) -> Result<Self> {
        let mut url = url.clone();
        url.set_path(&format!("{}/v1/traces", url.path().trim_end_matches('/')));
        let wire = Arc::new(OtlpHttpClient::new(&url, authorization)?);
        let policy = RetryPolicy::recommended()
            .with_max_retries(SPANS_RETRIES_MAX as usize)
            .with_initial_delay(SPANS_LINGER);
        let builder = SpanExporter::builder()
            .with_http()
            .with_shared_http_client(wire.clone())
            .with_endpoint(url.as_str());
        let builder = builder
            .with_protocol(Protocol::HttpBinary)
            .with_timeout((SPANS_RETRIES_MAX + 1) * SPANS_REQUEST_TIMEOUT)
            .with_retry_policy(policy);
        let mut exporter = builder
            .build()
            .context("the exporter of traces cannot be made")?;
        exporter.set_resource(&scribe.resource());
        Ok(Self {
            url,
            client: wire,
            exporter,
            converter: scribe,
            metric: metric::TraceMetrics::new(),
            is_failing: false,
        })
    }

    /// Serves until the last tracer is gone and all its spans are sent or given up.
    pub(crate) async fn serve(mut self, mut spans: mpsc::Receiver<Span>) {
        while let Some(first) = spans.recv().await {
            let mut batch = vec![first];
            let full = async {
                while batch.len() < SPANS_PER_REQUEST_MAX {
                    let room = SPANS_PER_REQUEST_MAX - batch.len();
                    if spans.recv_many(&mut batch, room).await == 0 {
                        break;
                    }
                }
            };
            // Receiving is safe to drop: what was not handed out stays in the channel.
            let _not_full = tokio::time::timeout(SPANS_LINGER, full).await;
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
                    tracing::info!(endpoint = %self.url, "traces are taken again");
                }
            }
            Err(error) => {
                self.metric.dropped.increment(count);
                if !std::mem::replace(&mut self.is_failing, true) {
                    let reason = self
                        .client
                        .take_last_error()
                        .unwrap_or_else(|| error.to_string());
                    tracing::warn!(endpoint = %self.url, reason, "traces are not taken, and dropped until they are (traces.endpoint)");
                }
            }
        }
    }
}
