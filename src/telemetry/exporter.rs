//! Takes spans to a collector by OTLP over HTTP, in JSON. A collector that is slow or away costs spans, which are counted, and nothing else:
//! nobody waits for this loop.

use super::otlp::{self, Resource};
use crate::limit::{SPANS_PATIENCE, SPANS_POST_MAX, SPANS_RETRIES_MAX, SPANS_WAIT};
use crate::metric;
use crate::trace::Span;
use rand::RngExt;
use rand::rngs::StdRng;
use rustls::pki_types::ServerName;
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

/// The beginning of an answer: its status line, and what a collector says of an error.
const ANSWER_BYTES_MAX: u64 = 4 * 1024;

/// Where spans go, and whose they are.
pub(crate) struct Exporter {
    url: Url,
    authorization: Option<Box<str>>,
    tls: Option<TlsConnector>,
    resource: Resource,
    random: StdRng,
    metric: metric::Traces,
    /// The last request was not taken, and somebody was told.
    is_failing: bool,
}

/// Why a request was not taken.
struct Refusal {
    text: String,
    /// The same may be taken later.
    is_transient: bool,
}

impl Exporter {
    /// `url` is the collector's, without `/v1/traces`; `authorization` is the whole value of that header.
    pub(crate) fn new(url: &Url, authorization: Option<&str>, deployment: &str, mut random: StdRng) -> io::Result<Self> {
        let mut url = url.clone();
        url.set_path(&format!("{}/v1/traces", url.path().trim_end_matches('/')));
        Ok(Self {
            tls: if url.scheme() == "https" { Some(connector()?) } else { None },
            url,
            authorization: authorization.map(Into::into),
            resource: Resource { deployment: deployment.to_owned(), instance: format!("{:016x}", random.random::<u64>()) },
            random,
            metric: metric::Traces::new(),
            is_failing: false,
        })
    }

    /// Serves until the last tracer is gone and all its spans are sent or given up.
    pub(crate) async fn serve(mut self, mut spans: mpsc::Receiver<Span>) {
        while let Some(first) = spans.recv().await {
            let mut batch = vec![first];
            let full = async {
                while batch.len() < SPANS_POST_MAX {
                    let room = SPANS_POST_MAX - batch.len();
                    if spans.recv_many(&mut batch, room).await == 0 {
                        break;
                    }
                }
            };
            // Receiving is safe to drop: what was not handed out stays in the channel.
            let _not_full = tokio::time::timeout(SPANS_WAIT, full).await;
            self.export(&batch).await;
        }
    }

    async fn export(&mut self, batch: &[Span]) {
        let body = otlp::document(batch, &self.resource, &mut self.random);
        let mut retries = 0;
        loop {
            let sent = tokio::time::timeout(SPANS_PATIENCE, self.post(&body)).await;
            let late = || Refusal { text: format!("no answer within {} s", SPANS_PATIENCE.as_secs()), is_transient: true };
            match sent.unwrap_or_else(|_| Err(late())) {
                Ok(()) => {
                    self.metric.exported.increment(batch.len() as u64);
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!(endpoint = %self, "traces are taken again");
                    }
                    return;
                }
                Err(refusal) if refusal.is_transient && retries < SPANS_RETRIES_MAX => {
                    retries += 1;
                    tokio::time::sleep(SPANS_WAIT).await;
                }
                Err(Refusal { text, .. }) => {
                    self.metric.dropped.increment(batch.len() as u64);
                    if !std::mem::replace(&mut self.is_failing, true) {
                        tracing::warn!(endpoint = %self, reason = text, "traces are not taken, and dropped until they are (traces.endpoint)");
                    }
                    return;
                }
            }
        }
    }

    async fn post(&self, body: &str) -> Result<(), Refusal> {
        let host = self.url.host().expect("the configuration takes no address without host");
        let port = self.url.port_or_known_default().expect("both schemes have one");
        let stream = match host {
            Host::Domain(name) => TcpStream::connect((name, port)).await,
            Host::Ipv4(ip) => TcpStream::connect((ip, port)).await,
            Host::Ipv6(ip) => TcpStream::connect((ip, port)).await,
        };
        let stream = stream.map_err(unreachable)?;
        let Some(tls) = &self.tls else { return self.speak(stream, body).await };
        let name = match host {
            Host::Domain(name) => ServerName::try_from(name.to_owned()).map_err(|error| unreachable(io::Error::other(error)))?,
            Host::Ipv4(ip) => ServerName::from(std::net::IpAddr::V4(ip)),
            Host::Ipv6(ip) => ServerName::from(std::net::IpAddr::V6(ip)),
        };
        self.speak(tls.connect(name, stream).await.map_err(unreachable)?, body).await
    }

    /// One request, then the collector closes: at one in a second no connection is worth keeping, and no client is needed for that.
    async fn speak(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin, body: &str) -> Result<(), Refusal> {
        let login = self.authorization.as_ref().map_or_else(String::new, |value| format!("authorization: {value}\r\n"));
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\n{login}content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            self.url.path(),
            self.url.authority(),
            body.len()
        );
        stream.write_all(head.as_bytes()).await.map_err(unreachable)?;
        stream.write_all(body.as_bytes()).await.map_err(unreachable)?;
        stream.flush().await.map_err(unreachable)?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await.map_err(unreachable)?;
        judge(&String::from_utf8_lossy(&answer))
    }
}

/// Without what may be a secret: the configuration takes no login in the address.
impl fmt::Display for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

#[allow(clippy::needless_pass_by_value, reason = "as the errors of a chain of calls come")]
fn unreachable(error: io::Error) -> Refusal {
    Refusal { text: error.to_string(), is_transient: true }
}

/// What OTLP says of an answer: these four codes may be tried again, no other.
fn judge(answer: &str) -> Result<(), Refusal> {
    let status = answer.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).unwrap_or_default();
    match status {
        "200" | "202" | "204" => Ok(()),
        "" => Err(Refusal { text: "what answers there speaks no HTTP".to_owned(), is_transient: false }),
        "404" => Err(Refusal {
            text: "it answers 404: OTLP over HTTP is received elsewhere, mostly on port 4318".to_owned(),
            is_transient: false,
        }),
        _ => Err(Refusal { text: format!("it answers {status}"), is_transient: ["429", "502", "503", "504"].contains(&status) }),
    }
}

/// Trusts whom the system trusts.
fn connector() -> io::Result<TlsConnector> {
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(io::Error::other("the system has no certificate authorities (ca-certificates), and traces.endpoint is https://"));
    }
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_by_itself_is_tried_again() {
        let told = |answer: &str| judge(answer).map_err(|refusal| (refusal.text, refusal.is_transient));
        assert_eq!(told("HTTP/1.1 200 OK\r\n\r\n{}"), Ok(()));
        assert_eq!(told("HTTP/1.1 503 Service Unavailable\r\n\r\n"), Err(("it answers 503".to_owned(), true)));
        assert_eq!(told("HTTP/1.1 400 Bad Request\r\n\r\n"), Err(("it answers 400".to_owned(), false)));
        assert_eq!(told("SSH-2.0"), Err(("what answers there speaks no HTTP".to_owned(), false)));
        assert!(told("HTTP/1.0 404 x").is_err_and(|(text, is_transient)| text.contains("4318") && !is_transient));
    }
}
