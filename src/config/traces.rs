//! Decodes `[traces]`: the collector, and the share of traces. Without an endpoint there are none.

use super::decode::{At, Range};
use super::secret::Secret;
use serde::Deserialize;
use url::Url;

/// Where traces go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Traces {
    pub(crate) endpoint: Option<Url>,
    /// The whole value of the `Authorization` header.
    pub(crate) authorization: Option<Secret>,
    /// One in this many sampled traces is exported.
    pub(crate) one_in: u32,
}

const ONE_IN: Range<u32> = Range::new(1, 1, 1_000_000);

const URL_FORM: &str = "write the collector's address for OTLP over HTTP, such as \"http://127.0.0.1:4318\", without /v1/traces";

/// `[traces]` as it is written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TracesTable {
    endpoint: Option<String>,
    authorization: Option<Secret>,
    authorization_file: Option<String>,
    one_in: Option<i64>,
}

pub(super) fn check(at: &At<'_>, table: TracesTable) -> Traces {
    let authorization = at
        .key("authorization")
        .secret(table.authorization, table.authorization_file);
    let endpoint = at.key("endpoint");
    if let Some((at, value)) = &authorization {
        if !endpoint.is_set() {
            at.refuse(
                "a login without traces.endpoint",
                "add the endpoint, or remove the login",
            );
        }
        if !value
            .expose()
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_graphic())
        {
            at.refuse(
                "the value has characters that a header may not have",
                "write the header's value in one line of ASCII: Bearer <token>",
            );
        }
    }
    let one_in = at.key("one_in").number_in_range(table.one_in, &ONE_IN);
    Traces {
        endpoint: table.endpoint.and_then(|text| check_url(&endpoint, &text)),
        authorization: authorization.map(|(_, value)| value),
        one_in: one_in.unwrap_or(ONE_IN.default),
    }
}

fn check_url(at: &At<'_>, text: &str) -> Option<Url> {
    let what = match Url::parse(text) {
        Err(_) => "the address is not understood",
        Ok(url) if !["http", "https"].contains(&url.scheme()) => {
            "the address begins with neither http:// nor https://"
        }
        Ok(url) if url.host_str().is_none_or(str::is_empty) => "the address names no host",
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "the address contains a login, which would be logged: set authorization instead"
        }
        Ok(url) if url.query().is_some() || url.fragment().is_some() => {
            "the address has a part after ? or #"
        }
        Ok(url) if url.path().ends_with("/v1/traces") => {
            "the address ends with /v1/traces, which Postdate appends"
        }
        Ok(url) => return Some(url),
    };
    at.refuse(what, URL_FORM);
    None
}
