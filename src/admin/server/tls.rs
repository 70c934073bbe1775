//! The admin endpoint over TLS. A client certificate is optional in the handshake, because probes
//! have none. A certificate that no configured authority signed ends the connection. `auth` decides
//! which requests need a certificate.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// The server's certificate, and the authorities of client certificates.
#[derive(Clone)]
pub(crate) struct Tls(pub(in crate::admin) TlsAcceptor);

/// A wrong option, and the reason.
#[derive(Debug, thiserror::Error)]
#[error("admin.{key}: {what}")]
pub(crate) struct TlsError {
    pub(crate) key: &'static str,
    pub(crate) what: String,
}

impl Tls {
    /// Reads PEM files. `client_ca` holds the authorities that sign client certificates.
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
        let mismatch = |error| TlsError {
            key: "certificate_key",
            what: format!("certificate and certificate_key do not belong together: {error}"),
        };
        let mut config = config.map_err(mismatch)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read =
        CertificateDer::pem_file_iter(path).and_then(|found| found.collect::<Result<Vec<_>, _>>());
    let certificates = read.map_err(|error| unusable_file(key, path, &error))?;
    if certificates.is_empty() {
        Err(unusable_file(key, path, &"it contains no PEM certificate"))
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
