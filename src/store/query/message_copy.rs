//! The parts of a waiting message from which a copy is made (see docs/internals/protocol.md), and bytes as text.

use crate::model::{Body, DeadLetterReason, Disposition};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// The parts of a record that sends the message again, in place of the waiting one. Bytes are base64.
/// No answer of the API has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MessageCopy {
    /// The id under which the store knows the message.
    pub(crate) id: String,
    pub(crate) origin: String,
    pub(crate) attempt: u32,
    /// The code of the last failed attempt.
    pub(crate) error: Option<String>,
    pub(crate) target: Option<String>,
    pub(crate) dialect: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) payload: Option<String>,
    pub(crate) headers: String,
}

impl MessageCopy {
    /// `None`: no record can replace the message.
    pub(super) fn of(body: &Body<'_>, origin: &str) -> Option<Self> {
        let (attempt, error) = match body.disposition {
            Disposition::Deliver => (0, None),
            Disposition::Retry(retry) => (retry.attempt, retry.error),
            _ => return None,
        };
        Some(Self {
            id: body.id?.to_owned(),
            origin: origin.to_owned(),
            attempt,
            error: error.map(|error| error.code().to_owned()),
            target: body.target.map(str::to_owned),
            dialect: body.dialect.map(|dialect| dialect.name().to_owned()),
            key: body.key.map(|key| STANDARD.encode(key)),
            payload: body.payload.map(|payload| STANDARD.encode(payload)),
            headers: STANDARD.encode(body.headers.as_block()),
        })
    }

    pub(super) fn bytes(&self) -> usize {
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        length(&self.key) + length(&self.payload) + self.headers.len()
    }
}

/// Bytes of a [`MessageCopy`]. `None`: not from it.
pub(crate) fn bytes_of_copy(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Bytes that are no text as `base64:` and their base64.
pub(crate) fn text(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64:{}", STANDARD.encode(bytes)),
    }
}

/// The kind of a message, and the code of its dead letter or of its last failed attempt.
pub(super) fn kind(body: &Body<'_>) -> (&'static str, Option<&'static str>) {
    match body.disposition {
        Disposition::Deliver => ("delay", None),
        Disposition::Relay { .. } => ("relay", None),
        Disposition::DeadLetter { reason, .. } => ("dead-letter", Some(reason.code())),
        Disposition::Retry(retry) => match retry.error {
            Some(error) => ("retry", Some(error.code())),
            None => ("delay", None),
        },
        Disposition::Answer(_) => ("answer", None),
        Disposition::RetriedAnswer(retry) => ("answer", retry.error.map(DeadLetterReason::code)),
        Disposition::Occurrence(_) => ("occurrence", None),
    }
}
