//! The endpoint by TLS. Who connects may bring a certificate: one that is not of the operator's authority ends the connection, and what is
//! answered without any is the guard's affair, for probes have none.

use crate::limit::{ADMIN_HANDSHAKE_TIMEOUT, ADMIN_HANDSHAKES_MAX};
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// What the endpoint shows of itself, and whom it believes.
#[derive(Clone)]
pub(crate) struct Tls(TlsAcceptor);

/// Which option is wrong, and why.
#[derive(Debug, thiserror::Error)]
#[error("admin.{key}: {what}")]
pub(crate) struct TlsError {
    pub(crate) key: &'static str,
    pub(crate) what: String,
}

impl Tls {
    /// Of PEM files; `client_ca` are the authorities that sign callers' certificates.
    pub(crate) fn new(
        certificate: &Path,
        certificate_key: &Path,
        client_ca: Option<&Path>,
    ) -> Result<Self, TlsError> {
        let chain = certificates("certificate", certificate)?;
        let key = PrivateKeyDer::from_pem_file(certificate_key)
            .map_err(|error| unusable_file("certificate_key", certificate_key, &error))?;
        let verifier = match client_ca {
            Some(path) => verifier(certificates("client_ca", path)?)
                .map_err(|error| unusable_file("client_ca", path, &error))?,
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let config = ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key);
        let unfit = |error| TlsError {
            key: "certificate_key",
            what: format!("certificate and certificate_key make no pair: {error}"),
        };
        let mut config = config.map_err(unfit)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub(super) fn listener(self, listener: TcpListener) -> TlsListener {
        TlsListener {
            listener,
            acceptor: self.0,
            arriving: FuturesUnordered::new(),
        }
    }
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read =
        CertificateDer::pem_file_iter(path).and_then(|found| found.collect::<Result<Vec<_>, _>>());
    let certificates = read.map_err(|error| unusable_file(key, path, &error))?;
    if certificates.is_empty() {
        Err(unusable_file(key, path, &"it holds no certificate in PEM"))
    } else {
        Ok(certificates)
    }
}

fn verifier(
    authorities: Vec<CertificateDer<'static>>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    authorities
        .into_iter()
        .try_for_each(|authority| roots.add(authority))?;
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
        .allow_unauthenticated()
        .build();
    verifier.map_err(|error| rustls::Error::General(error.to_string()))
}

fn unusable_file(key: &'static str, path: &Path, error: &dyn Display) -> TlsError {
    TlsError {
        key,
        what: format!("the file {} cannot be used: {error}", path.display()),
    }
}

type PendingHandshake =
    Pin<Box<dyn Future<Output = Option<(TlsStream<TcpStream>, SocketAddr)>> + Send>>;

/// Lets connections in whose handshake is done. One that takes its time holds no other up, and few may be under way.
pub(super) struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    arriving: FuturesUnordered<PendingHandshake>,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let has_room = self.arriving.len() < ADMIN_HANDSHAKES_MAX;
            // What is not handed out stays with the listener, or among those that arrive.
            tokio::select! {
                biased;
                Some(arrived) = self.arriving.next(), if !self.arriving.is_empty() => {
                    if let Some(arrived) = arrived {
                        return arrived;
                    }
                }
                (stream, address) = Listener::accept(&mut self.listener), if has_room => {
                    self.arriving.push(Box::pin(finish_handshake(self.acceptor.accept(stream), address)));
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// `None`: it is no TLS, its certificate is nobody's that is known, or it takes too long. No log line: strangers could fill the log.
async fn finish_handshake(
    handshake: Accept<TcpStream>,
    address: SocketAddr,
) -> Option<(TlsStream<TcpStream>, SocketAddr)> {
    let done = tokio::time::timeout(ADMIN_HANDSHAKE_TIMEOUT, handshake)
        .await
        .ok()?;
    Some((done.ok()?, address))
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy)]
pub(super) struct ClientInfo {
    pub(super) has_certificate: bool,
}

impl Connected<IncomingStream<'_, TlsListener>> for ClientInfo {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
        // The handshake would have failed with one that does not hold.
        Self {
            has_certificate: stream.io().get_ref().1.peer_certificates().is_some(),
        }
    }
}
