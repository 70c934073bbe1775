//! Starts the thread that exports trace spans.

use crate::config::{self, Config, Secret};
use crate::limit::SPANS_FLUSH_TIMEOUT;
use crate::metric;
use crate::task::TaskGroup;
use crate::telemetry::{Exporter, MessagingSystems, SpanConverter};
use crate::trace::Tracer;
use anyhow::{Context, Result};
use rand::rngs::StdRng;

/// Returns the tracer of all roles. It does nothing if no endpoint is configured.
pub(super) fn start(group: &mut TaskGroup, config: &Config, random: StdRng) -> Result<Tracer> {
    let traces = &config.traces;
    let metric = metric::TraceMetrics::new();
    let Some(endpoint) = &traces.endpoint else {
        return Ok(Tracer::default());
    };
    let systems = |route: &config::Route| MessagingSystems {
        source: route.source.kind.facts().key,
        target: route.target_kind().facts().key,
    };
    let routes = config.routes.iter();
    let converter = SpanConverter {
        deployment: config.deployment.clone(),
        systems: routes
            .map(|(name, route)| (name.clone(), systems(route)))
            .collect(),
        random,
    };
    let authorization = traces.authorization.as_ref().map(Secret::expose);
    let exporter = Exporter::new(endpoint, authorization, converter).context("traces.endpoint")?;
    let (tracer, spans) = Tracer::new(traces.one_in, metric.dropped);
    group.spawn_thread("traces", move |stop| async move {
        let flush_timeout = async {
            stop.cancelled().await;
            tokio::time::sleep(SPANS_FLUSH_TIMEOUT).await;
        };
        // The exporter ends when the last tracer is dropped. Spans that are not sent by the timeout
        // are lost.
        tokio::select! {
            biased;
            () = exporter.serve(spans) => {}
            () = flush_timeout => {}
        }
        anyhow::Ok(())
    })?;
    Ok(tracer)
}
