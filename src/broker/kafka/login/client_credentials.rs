//! Tokens of an identity provider by client credentials (OpenID Connect).

use super::{CA, CLIENT_ID, ENDPOINT, EXTENSIONS, Options, SCOPE, Token};
use crate::broker::Error;
use crate::broker::kafka::limit::KAFKA_TOKEN_ANSWER_BYTES_MAX;
use crate::broker::kafka::limit::KAFKA_TOKEN_LIFETIME_MAX;
use crate::clock::{Clock as _, WallClock};
use crate::http_client::HttpClient;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request};
use std::time::Duration;
use url::Url;
use url::form_urlencoded::{Serializer, byte_serialize};

#[derive(Clone, PartialEq, Eq)]
pub(super) struct ClientCredentials {
    endpoint: String,
    client_id: String,
    scope: Option<String>,
    extensions: Vec<(String, String)>,
    /// A PEM file of authorities. `None`: those of the system.
    ca: Option<String>,
}

impl ClientCredentials {
    pub(super) fn take_from(options: &mut Options<'_>) -> Result<Self, Error> {
        Ok(Self {
            endpoint: options.require(ENDPOINT)?,
            client_id: options.require(CLIENT_ID)?,
            scope: options.take(SCOPE),
            extensions: extensions(options.take(EXTENSIONS).as_deref())?,
            ca: options.take(CA),
        })
    }

    pub(super) fn host(&self) -> String {
        let url = Url::parse(&self.endpoint).ok();
        let host = url.as_ref().and_then(Url::host_str);
        host.unwrap_or_default().to_owned()
    }

    pub(super) async fn grant(&self, secret: &str) -> Result<(Token, Duration), String> {
        let asked_at = WallClock.now();
        // Reads the authorities again, because their file may have changed.
        let ca = self.ca.as_deref();
        let client = HttpClient::new(ca).map_err(|error| format!("{CA}: {error}"))?;
        let response = client
            .send(request(self, secret)?, KAFKA_TOKEN_ANSWER_BYTES_MAX)
            .await?;
        let answer = serde_json::from_slice(response.body()).unwrap_or_default();
        if !response.status().is_success() {
            return Err(refusal(response.status().as_u16(), &answer));
        }
        let (text, lifetime) = parse_answer(&answer)?;
        let token = Token {
            text,
            principal: self.client_id.clone(),
            expires_at_ms: asked_at.plus(lifetime).as_millis(),
            extensions: self.extensions.clone(),
        };
        Ok((token, lifetime))
    }
}

/// Pairs of a name and a value, as librdkafka has them: `logicalCluster=lkc-1,identityPoolId=pool-2`.
fn extensions(text: Option<&str>) -> Result<Vec<(String, String)>, Error> {
    let pair = |pair: &str| {
        let (name, value) = pair.trim().split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    let pairs = text.into_iter().flat_map(|text| text.split(',')).map(pair);
    let wrong = || Error::Rejected(format!("{EXTENSIONS}: write name=value,name=value"));
    pairs.collect::<Option<_>>().ok_or_else(wrong)
}

/// RFC 6749, section 4.4: the login is in the header, form-encoded before base64.
fn request(credentials: &ClientCredentials, secret: &str) -> Result<Request<Bytes>, String> {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let login = format!("{}:{}", encoded(&credentials.client_id), encoded(secret));
    let login = format!("Basic {}", STANDARD.encode(login));
    let mut login = HeaderValue::try_from(login).map_err(|error| error.to_string())?;
    login.set_sensitive(true);
    let mut form = Serializer::new(String::new());
    form.append_pair("grant_type", "client_credentials");
    form.extend_pairs(credentials.scope.as_ref().map(|scope| ("scope", scope)));
    Request::post(&credentials.endpoint)
        .header(AUTHORIZATION, login)
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Bytes::from(form.finish()))
        .map_err(|error| error.to_string())
}

/// The token and its lifetime in the answer of a provider. Some providers write the number as text.
fn parse_answer(answer: &serde_json::Value) -> Result<(String, Duration), String> {
    let token = answer["access_token"].as_str();
    let token = token.ok_or("the answer has no access_token")?.to_owned();
    let seconds = &answer["expires_in"];
    let number = seconds.as_u64();
    let number = number.or_else(|| seconds.as_str()?.parse().ok());
    let seconds = number.filter(|seconds| *seconds > 0);
    let seconds = seconds.ok_or("the answer has no expires_in, so the token cannot be renewed")?;
    let lifetime = Duration::from_secs(seconds).min(KAFKA_TOKEN_LIFETIME_MAX);
    Ok((token, lifetime))
}

/// Only the standard fields are shown: other parts of an answer may contain secrets.
fn refusal(status: u16, answer: &serde_json::Value) -> String {
    const SHOWN_MAX: usize = 200;
    let field = |name: &str| answer[name].as_str().unwrap_or_default();
    let text = format!("{} {}", field("error"), field("error_description"));
    let text: String = text.trim().escape_debug().take(SHOWN_MAX).collect();
    format!("it answers {status} {text}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_without_token_or_lifetime_is_refused() {
        for (answer, part) in [
            (json!({"expires_in": 60}), "access_token"),
            (json!({"access_token": "a"}), "expires_in"),
            (json!({"access_token": "a", "expires_in": 0}), "expires_in"),
            (json!([]), "access_token"),
        ] {
            let refused = parse_answer(&answer).unwrap_err();
            assert!(refused.contains(part), "{answer}: {refused}");
        }
        let endless = json!({"access_token": "a", "expires_in": i64::MAX});
        let (_, lifetime) = parse_answer(&endless).unwrap();
        assert_eq!(lifetime, KAFKA_TOKEN_LIFETIME_MAX);
    }

    #[test]
    fn extensions_are_pairs() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let read = extensions(Some("logicalCluster=lkc-1, identityPoolId=pool-a=b"));
        let expected = [
            pair("logicalCluster", "lkc-1"),
            pair("identityPoolId", "pool-a=b"),
        ];
        assert_eq!(read.unwrap(), expected);
        assert_eq!(extensions(None).unwrap(), []);
        assert!(extensions(Some("logicalCluster")).is_err());
    }
}
