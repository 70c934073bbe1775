//! The HTTP client of the logins and of commands.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

#[derive(Clone, Debug)]
pub(crate) struct HttpClient(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl HttpClient {
    /// Trusts the authorities in this PEM file. `None`: those of the system.
    pub(crate) fn new(ca: Option<&str>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        let authorities = match ca {
            Some(path) => CertificateDer::pem_file_iter(path)
                .and_then(|found| found.collect::<Result<Vec<_>, _>>())
                .map_err(|error| format!("{path}: {error}"))?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        roots.add_parsable_certificates(authorities);
        let connector = connector(roots);
        Ok(Self(Client::builder(TokioExecutor::new()).build(connector)))
    }

    /// An answer of more than `bytes_max` is refused.
    pub(crate) async fn send(
        &self,
        request: Request<Bytes>,
        bytes_max: usize,
    ) -> Result<Response<Bytes>, String> {
        let response = self.0.request(request.map(Full::new)).await;
        let (head, body) = response.map_err(|error| root_cause(&error))?.into_parts();
        let body = Limited::new(body, bytes_max);
        let body = body.collect().await.map_err(|error| error.to_string())?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

/// Connects with `http` and `https`. Trusts these authorities.
pub(crate) fn connector(authorities: RootCertStore) -> HttpsConnector<HttpConnector> {
    let tls = rustls::ClientConfig::builder()
        .with_root_certificates(authorities)
        .with_no_client_auth();
    HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .build()
}

/// The innermost error. The outer ones only say that the request failed.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
