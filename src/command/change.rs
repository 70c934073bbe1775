//! Changes that the HTTP API asks for: records that are written to the source of a route, as a producer
//! writes them. So they survive the loss of the store.

use super::Refused;
use super::send;
use super::source_producer::{self, SourceProducer};
use crate::admin::changes::{Change, ChangeError, ChangeKind};
use crate::cli::SendArgs;
use crate::config::Config;
use crate::config::Error as ConfigError;
use std::collections::BTreeMap;

/// Producers by route. A failed one is replaced.
#[derive(Default)]
pub(crate) struct ChangeWriter(BTreeMap<String, SourceProducer>);

impl ChangeWriter {
    /// Writes one record, and answers with the JSON of its receipt.
    pub(crate) async fn write(
        &mut self,
        config: &Config,
        change: Change,
    ) -> Result<String, ChangeError> {
        let (args, payload) = arguments(config, change);
        let mut producer = self.0.remove(&args.route);
        let written = send::publish(config, &args, payload, &mut producer).await;
        match written {
            Ok(receipt) => {
                if let Some(producer) = producer {
                    self.0.insert(args.route, producer);
                }
                Ok(serde_json::to_string(&receipt).expect("a receipt has numbers and texts"))
            }
            Err(error) => {
                source_producer::close(producer).await;
                let text = format!("{error:#}");
                let is_refused = error.is::<Refused>() || error.is::<ConfigError>();
                Err(match is_refused {
                    true => ChangeError::Refused(text),
                    false => ChangeError::Failed(text),
                })
            }
        }
    }

    pub(crate) async fn close(self) {
        for producer in self.0.into_values() {
            source_producer::close(Some(producer)).await;
        }
    }
}

/// The same change on the command line.
fn arguments(config: &Config, change: Change) -> (SendArgs, Option<Vec<u8>>) {
    let route = config.routes.get(&change.route);
    // CloudEvents writes its attributes as `ce_` in Kafka and as `ce-` in HTTP and NATS.
    let kind = route.map(|route| route.source.kind).unwrap_or_default();
    let prefix = kind.cloud_events_prefix();
    let headers = change.headers.into_iter().map(|(name, value)| {
        let name = match name.strip_prefix("ce-") {
            Some(attribute) => format!("{prefix}{attribute}"),
            None => name,
        };
        format!("{name}={value}")
    });
    let (delay, at, cancel, payload) = match change.kind {
        ChangeKind::Publish { after, at, payload } => (after, at, false, payload),
        ChangeKind::Cancel => (None, None, true, None),
    };
    let args = SendArgs {
        route: change.route,
        topic: change.topic,
        subject: change.subject,
        key: change.key,
        partition: change.partition,
        headers: headers.collect(),
        delay,
        at,
        id: change.id,
        to: change.to,
        cancel,
        ..SendArgs::default()
    };
    (args, payload)
}
