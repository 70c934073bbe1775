//! A blocking client for Kafka protocol requests that librdkafka does not offer
//! (<https://kafka.apache.org/protocol>).
//!
//! It supports neither TLS nor a login. A connection that is silent for [`KAFKA_WIRE_ANSWER_MAX`]
//! is closed.

use crate::broker::kafka::options::Cluster;
use crate::limit::{KAFKA_WIRE_ANSWER_BYTES_MAX, KAFKA_WIRE_ANSWER_MAX};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{ApiVersionsRequest, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{
    Decodable as _, Encodable as _, HeaderVersion as _, Request, StrBytes,
};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AskError {
    /// The same request may succeed soon.
    Retry(String),
    Permanent(String),
}

impl AskError {
    pub(super) fn is_retriable(&self) -> bool {
        matches!(self, Self::Retry(_))
    }

    pub(super) fn reason(&self) -> &str {
        let (Self::Retry(reason) | Self::Permanent(reason)) = self;
        reason
    }
}

impl From<Error> for AskError {
    fn from(error: Error) -> Self {
        match error.kind() {
            // An answer that cannot be decoded.
            ErrorKind::InvalidData | ErrorKind::Other => Self::Permanent(error.to_string()),
            _ => Self::Retry(error.to_string()),
        }
    }
}

/// Returns whether the brokers accept connections without TLS and login.
pub(super) fn is_plaintext(cluster: &Cluster) -> bool {
    cluster
        .properties
        .get("security.protocol")
        .is_none_or(|protocol| protocol.eq_ignore_ascii_case("plaintext"))
}

/// Turns the error code of an answer into a result.
pub(super) fn check_code(code: i16) -> std::result::Result<(), AskError> {
    match ResponseError::try_from_code(code) {
        None if code == 0 => Ok(()),
        None => Err(AskError::Permanent(format!(
            "the broker answers with the error {code}"
        ))),
        Some(error) if error.is_retriable() || error == ResponseError::UnknownTopicOrPartition => {
            Err(AskError::Retry(error.to_string()))
        }
        Some(error) => Err(AskError::Permanent(error.to_string())),
    }
}

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Connections to the brokers of a cluster, opened on demand.
pub(super) struct Connections {
    /// The bootstrap brokers.
    brokers: Arc<[String]>,
    /// Index of the bootstrap broker that answered last; shared by all clients of the cluster.
    first: Arc<AtomicUsize>,
    /// When set, further requests fail.
    stop: Arc<AtomicBool>,
    open: BTreeMap<String, Connection>,
}

impl Connections {
    pub(super) fn new(
        brokers: Arc<[String]>,
        first: Arc<AtomicUsize>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        Self {
            brokers,
            first,
            stop,
            open: BTreeMap::new(),
        }
    }

    /// Asks the bootstrap brokers until one answers.
    pub(super) fn ask_any<R: Request>(
        &mut self,
        request: &R,
        version: i16,
    ) -> std::result::Result<R::Response, AskError> {
        let brokers = self.brokers.clone();
        let first = self.first.load(Ordering::Relaxed);
        let mut last_error = AskError::Permanent("the cluster has no brokers".to_owned());
        for at in (0..brokers.len()).map(|at| (first + at) % brokers.len()) {
            match self.ask(&brokers[at], request, version) {
                Ok(answer) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// Asks the broker at an address. `Permanent`: the broker does not support this version of the
    /// request, or its answer cannot be decoded.
    pub(super) fn ask<R: Request>(
        &mut self,
        address: &str,
        request: &R,
        version: i16,
    ) -> std::result::Result<R::Response, AskError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(AskError::Retry("the client is being closed".to_owned()));
        }
        let with_address = |error: Error| Error::new(error.kind(), format!("{address}: {error}"));
        let mut connection = match self.open.remove(address) {
            Some(connection) => connection,
            None => Connection::open(address).map_err(with_address)?,
        };
        if connection
            .max_versions
            .get(&R::KEY)
            .is_none_or(|max| *max < version)
        {
            return Err(AskError::Permanent(format!(
                "{address} does not support version {version} of the request {}",
                R::KEY
            )));
        }
        let answer = connection.call(request, version).map_err(with_address)?;
        // A failed connection is dropped: its next bytes may belong to an earlier request.
        self.open.insert(address.to_owned(), connection);
        Ok(answer)
    }
}

/// A connection to one broker, with one request in flight.
struct Connection {
    stream: TcpStream,
    correlation_id: i32,
    /// The highest version that the broker supports, by request key.
    max_versions: BTreeMap<i16, i16>,
}

impl Connection {
    fn open(broker: &str) -> Result<Self> {
        let mut last_error = Error::new(ErrorKind::AddrNotAvailable, "it has no address");
        for address in broker.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, KAFKA_WIRE_ANSWER_MAX) {
                Ok(stream) => return Self::start(stream),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    fn start(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(KAFKA_WIRE_ANSWER_MAX))?;
        stream.set_write_timeout(Some(KAFKA_WIRE_ANSWER_MAX))?;
        let mut connection = Self {
            stream,
            correlation_id: 0,
            max_versions: BTreeMap::new(),
        };
        let supported = connection.call(&ApiVersionsRequest::default(), 0)?;
        connection.max_versions = supported
            .api_keys
            .iter()
            .map(|api| (api.api_key, api.max_version))
            .collect();
        Ok(connection)
    }

    fn call<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response> {
        self.correlation_id += 1;
        let mut bytes = BytesMut::new();
        bytes.put_i32(0);
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation_id)
            .with_client_id(Some(StrBytes::from_static_str("postdate")));
        header
            .encode(&mut bytes, R::header_version(version))
            .map_err(Error::other)?;
        request.encode(&mut bytes, version).map_err(Error::other)?;
        let length = i32::try_from(bytes.len() - size_of::<i32>()).map_err(Error::other)?;
        bytes[..size_of::<i32>()].copy_from_slice(&length.to_be_bytes());
        self.stream.write_all(&bytes)?;

        let mut answer = self.read_answer()?;
        let header = ResponseHeader::decode(&mut answer, R::Response::header_version(version))
            .map_err(Error::other)?;
        if header.correlation_id != self.correlation_id {
            return Err(Error::new(
                ErrorKind::InvalidData,
                "it answers another request",
            ));
        }
        R::Response::decode(&mut answer, version).map_err(Error::other)
    }

    fn read_answer(&mut self) -> Result<Bytes> {
        let mut length = [0; size_of::<i32>()];
        self.stream.read_exact(&mut length)?;
        let length = usize::try_from((&length[..]).get_i32()).unwrap_or(usize::MAX);
        if length > KAFKA_WIRE_ANSWER_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::InvalidData,
                format!("its answer has {length} bytes"),
            ));
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer)?;
        Ok(answer.into())
    }
}
