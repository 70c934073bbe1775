//! Kafka's own protocol (<https://kafka.apache.org/protocol>), for requests that librdkafka has no call for. Each blocks until it is answered:
//! a connection that says nothing for [`KAFKA_WIRE_ANSWER_MAX`] is given up.
//!
//! Only where brokers ask for neither TLS nor a login.

use super::Cluster;
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

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AskError {
    /// It may be, soon.
    Retry(String),
    Permanent(String),
}

impl AskError {
    pub(super) fn is_later(&self) -> bool {
        matches!(self, Self::Retry(_))
    }

    pub(super) fn reason(&self) -> &str {
        let (Self::Retry(reason) | Self::Permanent(reason)) = self;
        reason
    }
}

impl From<Error> for AskError {
    fn from(error: Error) -> Self {
        // What cannot be read now cannot be read the next time either.
        let is_for_good = matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::Other);
        let as_such = if is_for_good {
            Self::Permanent
        } else {
            Self::Retry
        };
        as_such(error.to_string())
    }
}

/// Whether the cluster's brokers can be asked like this at all.
pub(super) fn is_plaintext(cluster: &Cluster) -> bool {
    cluster
        .properties
        .get("security.protocol")
        .is_none_or(|protocol| protocol.eq_ignore_ascii_case("plaintext"))
}

/// What an error code in an answer means.
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

/// Connections to a cluster's brokers, for as long as there is something to ask.
pub(super) struct Connections {
    /// Of the configuration.
    brokers: Arc<[String]>,
    /// Which of them answered last, to whomever.
    first: Arc<AtomicUsize>,
    /// Nothing more is asked.
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

    /// Asks the first broker that answers.
    pub(super) fn ask_any<R: Request>(
        &mut self,
        request: &R,
        version: i16,
    ) -> std::result::Result<R::Response, AskError> {
        let (brokers, first) = (self.brokers.clone(), self.first.load(Ordering::Relaxed));
        let mut unmet = AskError::Permanent("the cluster has no brokers".to_owned());
        for at in (0..brokers.len()).map(|at| (first + at) % brokers.len()) {
            match self.ask(&brokers[at], request, version) {
                Ok(answer) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => unmet = error,
            }
        }
        Err(unmet)
    }

    /// Asks the broker at an address. `Never`: it does not know that version of the question, or answers what cannot be read.
    pub(super) fn ask<R: Request>(
        &mut self,
        addr: &str,
        request: &R,
        version: i16,
    ) -> std::result::Result<R::Response, AskError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(AskError::Retry("the client ends".to_owned()));
        }
        let told = |error: Error| Error::new(error.kind(), format!("{addr}: {error}"));
        let mut connection = match self.open.remove(addr) {
            Some(connection) => connection,
            None => Connection::to(addr).map_err(told)?,
        };
        if connection
            .versions
            .get(&R::KEY)
            .is_none_or(|max| *max < version)
        {
            return Err(AskError::Permanent(format!(
                "{addr} is too old for version {version} of the request {}",
                R::KEY
            )));
        }
        let answer = connection.call(request, version).map_err(told)?;
        // One that failed is not asked again: what comes would be the answer to another question.
        self.open.insert(addr.to_owned(), connection);
        Ok(answer)
    }
}

/// A connection to one broker: one question after the other.
struct Connection {
    stream: TcpStream,
    asked: i32,
    /// The last version of each request that the broker knows.
    versions: BTreeMap<i16, i16>,
}

impl Connection {
    fn to(broker: &str) -> Result<Self> {
        let mut refused = Error::new(ErrorKind::AddrNotAvailable, "it has no address");
        for addr in broker.to_socket_addrs()? {
            match TcpStream::connect_timeout(&addr, KAFKA_WIRE_ANSWER_MAX) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(KAFKA_WIRE_ANSWER_MAX))?;
                    stream.set_write_timeout(Some(KAFKA_WIRE_ANSWER_MAX))?;
                    let mut connection = Self {
                        stream,
                        asked: 0,
                        versions: BTreeMap::new(),
                    };
                    let known = connection.call(&ApiVersionsRequest::default(), 0)?;
                    connection.versions = known
                        .api_keys
                        .iter()
                        .map(|api| (api.api_key, api.max_version))
                        .collect();
                    return Ok(connection);
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn call<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response> {
        self.asked += 1;
        let mut bytes = BytesMut::new();
        bytes.put_i32(0);
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.asked)
            .with_client_id(Some(StrBytes::from_static_str("postdate")));
        header
            .encode(&mut bytes, R::header_version(version))
            .map_err(Error::other)?;
        request.encode(&mut bytes, version).map_err(Error::other)?;
        let length = i32::try_from(bytes.len() - size_of::<i32>()).map_err(Error::other)?;
        bytes[..size_of::<i32>()].copy_from_slice(&length.to_be_bytes());
        self.stream.write_all(&bytes)?;

        let mut answer = self.answer()?;
        let header = ResponseHeader::decode(&mut answer, R::Response::header_version(version))
            .map_err(Error::other)?;
        if header.correlation_id != self.asked {
            return Err(Error::new(
                ErrorKind::InvalidData,
                "it answers another question",
            ));
        }
        R::Response::decode(&mut answer, version).map_err(Error::other)
    }

    fn answer(&mut self) -> Result<Bytes> {
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
