//! `[traces]`: whether, where to and how many. Without an endpoint there are none.

use super::field::Field;
use super::read::{Range, Table};
use super::secret::Secret;
use url::Url;

/// Where traces go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Traces {
    pub(crate) endpoint: Option<Url>,
    /// The whole value of the header.
    pub(crate) authorization: Option<Secret>,
    pub(crate) one_in: u32,
}

const ONE_IN: Range<u32> = Range {
    default: 1,
    least: 1,
    greatest: 1_000_000,
};

const FORM: &str = "write the collector's address for OTLP over HTTP, such as \"http://127.0.0.1:4318\", without /v1/traces";

pub(super) fn read(table: &Table<'_>) -> Traces {
    let endpoint = table.field("endpoint");
    let authorization = table.secret("authorization");
    if let (None, Some((field, _))) = (&endpoint, &authorization) {
        field.refuse(
            "a login without traces.endpoint",
            "add the endpoint, or remove the login",
        );
    }
    let one_in = table
        .field("one_in")
        .and_then(|field| field.integer(&ONE_IN))
        .unwrap_or(ONE_IN.default);
    Traces {
        endpoint: endpoint.and_then(|field| url(&field)),
        authorization: authorization.and_then(|(field, value)| header(&field, value)),
        one_in,
    }
}

fn url(field: &Field<'_>) -> Option<Url> {
    let text = field.text()?;
    let what = match Url::parse(text) {
        Err(_) => "this is no address",
        Ok(url) if !["http", "https"].contains(&url.scheme()) => {
            "the address begins with neither http:// nor https://"
        }
        Ok(url) if url.host_str().is_none_or(str::is_empty) => "the address names no host",
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "the address holds a login, which would be logged: it belongs into authorization"
        }
        Ok(url) if url.query().is_some() || url.fragment().is_some() => {
            "the address has a part behind ? or #"
        }
        Ok(url) if url.path().ends_with("/v1/traces") => {
            "the address ends with /v1/traces, which is added to it"
        }
        Ok(url) => return Some(url),
    };
    field.refuse(what, FORM);
    None
}

fn header(field: &Field<'_>, value: Secret) -> Option<Secret> {
    if value
        .expose()
        .bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_graphic())
    {
        return Some(value);
    }
    field.refuse(
        "the value has characters that no header may have",
        "write the header's value in one line of ASCII: Bearer <token>",
    );
    None
}
