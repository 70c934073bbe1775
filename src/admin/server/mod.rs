//! The HTTP server. Each connection has a task, and the number of connections is bounded. A flood
//! closes the oldest connections, so probes are answered and no descriptors run out. It never closes
//! one whose request was admitted.

pub(super) mod tls;

use super::problem::Problem;
use crate::limit::{
    ADMIN_CONNECTION_TIMEOUT, ADMIN_CONNECTIONS_MAX, ADMIN_HANDSHAKE_TIMEOUT,
    ADMIN_HEADER_BYTES_MAX, ADMIN_HEADER_TIMEOUT, ADMIN_REQUEST_TIMEOUT, ADMIN_REQUESTS_MAX,
    ADMIN_STOP_TIMEOUT,
};
use crate::task::StopToken;
use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::CertificateDer;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// The sender of a request, as an extension of the request.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) address: SocketAddr,
    /// The certificate of the client, which an authority of `admin.client_ca` has signed.
    pub(super) certificate: Option<CertificateDer<'static>>,
}

/// Admits a request: the server does not close its connection before the response. As an extension of
/// the request.
#[derive(Clone, Default)]
pub(super) struct Admission(Arc<AtomicBool>);

impl Admission {
    pub(super) fn admit(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_admitted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Serves requests until `stop` is cancelled.
pub(super) async fn serve(
    mut listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    stop: StopToken,
) {
    let mut open = VecDeque::new();
    let mut tasks = JoinSet::new();
    while let Some((stream, address)) = stop
        .run_until_cancelled(Listener::accept(&mut listener))
        .await
    {
        while tasks.try_join_next().is_some() {}
        make_room(&mut open);
        let connection = Connection {
            client: Client {
                address,
                certificate: None,
            },
            router: router.clone(),
            admission: Admission::default(),
            stop: stop.clone(),
        };
        let admission = connection.admission.clone();
        let task = tasks.spawn(connection.accept(stream, tls.clone()));
        open.push_back(OpenConnection { admission, task });
        // Closed connections free their descriptors before the next one is accepted.
        tokio::task::yield_now().await;
    }
    drop(listener);
    let finished = async { while tasks.join_next().await.is_some() {} };
    // Safe to drop: the rest ends with `tasks`.
    let _ = timeout(ADMIN_STOP_TIMEOUT, finished).await;
}

struct OpenConnection {
    admission: Admission,
    task: AbortHandle,
}

// So one can always be closed.
const _: () = assert!(ADMIN_REQUESTS_MAX < ADMIN_CONNECTIONS_MAX);

/// Closes the oldest connection without an admitted request if there are too many.
fn make_room(open: &mut VecDeque<OpenConnection>) {
    open.retain(|open| !open.task.is_finished());
    if open.len() < ADMIN_CONNECTIONS_MAX {
        return;
    }
    let oldest = open.iter().position(|open| !open.admission.is_admitted());
    if let Some(closed) = oldest.and_then(|index| open.remove(index)) {
        closed.task.abort();
    }
}

struct Connection {
    client: Client,
    router: Router,
    admission: Admission,
    stop: StopToken,
}

impl Connection {
    /// Logs no failed handshake, because any client could fill the log.
    async fn accept(mut self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let Some(tls) = tls else {
            return self.serve(stream).await;
        };
        if let Ok(Ok(stream)) = timeout(ADMIN_HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            // The handshake fails with an invalid certificate, so a present one is valid.
            let sent = stream.get_ref().1.peer_certificates();
            let certificate = sent.and_then(|chain| chain.first());
            self.client.certificate =
                certificate.map(|certificate| certificate.clone().into_owned());
            self.serve(stream).await;
        }
    }

    /// hyper applies the timeout of a header to an idle connection too.
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|mut request| {
            let service = TowerToHyperService::new(self.router.clone());
            let (admission, client) = (&self.admission, self.client.clone());
            async move {
                let extensions: &mut http::Extensions = http::Request::extensions_mut(&mut request);
                extensions.insert(client);
                extensions.insert(admission.clone());
                let response = timeout(ADMIN_REQUEST_TIMEOUT, service.call(request)).await;
                admission.end();
                response.unwrap_or_else(|_| Ok::<Response, Infallible>(too_slow()))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(ADMIN_HEADER_TIMEOUT)
            .max_buf_size(ADMIN_HEADER_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        // Safe to drop: the connection continues below. Its error concerns the client only.
        let remaining = tokio::select! {
            biased;
            _ = &mut connection => return,
            () = self.stop.cancelled() => ADMIN_STOP_TIMEOUT,
            () = sleep(ADMIN_CONNECTION_TIMEOUT) => ADMIN_REQUEST_TIMEOUT,
        };
        connection.as_mut().graceful_shutdown();
        let _ = timeout(remaining, connection).await;
    }
}

fn too_slow() -> Response {
    let error = "no answer in time. A change may have been made: look before you repeat it";
    Problem::new(StatusCode::GATEWAY_TIMEOUT, error).into_response()
}
