//! Tokens for the IAM login of Amazon MSK. A token is a presigned request for the action
//! `kafka-cluster:Connect`, in base64. No server is asked for it.
//!
//! The AWS credentials come from the places where AWS's own tools look: environment variables, a
//! profile, and the role of a pod, a container or a machine.

use super::{Options, REGION, Token};
use crate::broker::Error;
use crate::broker::kafka::limit::KAFKA_TOKEN_ANSWER_BYTES_MAX;
use crate::clock::{Clock as _, WallClock};
use crate::http_client::HttpClient;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Request, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqsign_aws_v4::{Credential, DefaultCredentialProvider};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, FileRead, HttpSend, OsEnv, ProvideCredential as _};
use ring::{digest, hmac};
use std::fmt::Write as _;
use std::time::Duration;

/// As in AWS's own clients. MSK accepts no longer ones.
const LIFETIME: Duration = Duration::from_secs(900);
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "kafka-cluster";
/// The signature covers the encoded form, so it is fixed.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

#[derive(Clone, PartialEq, Eq)]
pub(super) struct AwsIam {
    region: String,
}

impl AwsIam {
    pub(super) fn take_from(options: &mut Options<'_>) -> Result<Self, Error> {
        let region = options.require(REGION)?;
        Ok(Self { region })
    }

    pub(super) async fn grant(&self) -> Result<(Token, Duration), String> {
        let context = Context::new()
            .with_env(OsEnv)
            .with_file_read(Files)
            .with_http_send(HttpClient::new(None)?);
        let credential = credential(&context).await?;
        let now = Timestamp::from_millisecond(WallClock.now().as_millis());
        let now = now.map_err(|error| error.to_string())?;
        let left = credential.expires_in.map(|end| {
            let seconds = end.as_second() - now.as_second();
            Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
        });
        let lifetime = left.map_or(LIFETIME, |left| left.min(LIFETIME));
        let expires_at = now + lifetime;
        let token = Token {
            text: URL_SAFE_NO_PAD.encode(presigned(&self.region, &credential, now)),
            principal: credential.access_key_id,
            expires_at_ms: expires_at.as_second() * 1_000,
            extensions: Vec::new(),
        };
        Ok((token, lifetime))
    }
}

/// Credentials are looked up for each token, because roles give new ones.
async fn credential(context: &Context) -> Result<Credential, String> {
    let places = DefaultCredentialProvider::builder().no_sso().no_process();
    let found = places
        .build()
        .provide_credential(context)
        .await
        .map_err(|error| error.to_string())?;
    let none = "no AWS credentials in the environment, a profile, or a role";
    found.ok_or_else(|| none.to_owned())
}

/// A signed request. Signature version 4 with the signature in the query:
/// <https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html>
fn presigned(region: &str, credential: &Credential, now: Timestamp) -> String {
    let (time, date) = (now.format_iso8601(), now.format_date());
    let scope = format!("{date}/{region}/{SERVICE}/aws4_request");
    let host = format!("kafka.{region}.amazonaws.com");
    let user = format!("{}/{scope}", credential.access_key_id);
    let seconds = LIFETIME.as_secs().to_string();
    // In the order of their names, as the signature demands.
    let parameters = [
        ("Action", Some("kafka-cluster:Connect")),
        ("X-Amz-Algorithm", Some(ALGORITHM)),
        ("X-Amz-Credential", Some(&user)),
        ("X-Amz-Date", Some(&time)),
        ("X-Amz-Expires", Some(&seconds)),
        ("X-Amz-Security-Token", credential.session_token.as_deref()),
        ("X-Amz-SignedHeaders", Some("host")),
    ];
    let pairs = parameters
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", encoded(value?))));
    let query = pairs.collect::<Vec<_>>().join("&");
    let no_body = hex(digest::digest(&digest::SHA256, b"").as_ref());
    let request = format!("GET\n/\n{query}\nhost:{host}\n\nhost\n{no_body}");
    let request = hex(digest::digest(&digest::SHA256, request.as_bytes()).as_ref());
    let text = format!("{ALGORITHM}\n{time}\n{scope}\n{request}");
    let secret = format!("AWS4{}", credential.secret_access_key);
    let key = [&date, region, SERVICE, "aws4_request"]
        .iter()
        .fold(secret.into_bytes(), |key, part| mac(&key, part));
    let signature = hex(&mac(&key, &text));
    let agent = concat!("postdate/", env!("CARGO_PKG_VERSION"));
    format!(
        "https://{host}/?{query}&X-Amz-Signature={signature}&User-Agent={}",
        encoded(agent)
    )
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

#[derive(Debug)]
struct Files;

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> reqsign_core::Result<Vec<u8>> {
        // Profiles and tokens are small files, and the thread of the login does nothing else.
        std::fs::read(path)
            .map_err(|error| reqsign_core::Error::config_invalid(format!("{path}: {error}")))
    }
}

impl HttpSend for HttpClient {
    async fn http_send(&self, request: Request<Bytes>) -> reqsign_core::Result<Response<Bytes>> {
        let answer = self.send(request, KAFKA_TOKEN_ANSWER_BYTES_MAX).await;
        answer.map_err(|error| reqsign_core::Error::unexpected(error).set_retryable(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_thread::ClientThread;
    use reqsign_core::StaticEnv;
    use std::collections::HashMap;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::mpsc::sync_channel;

    fn context(variables: &[(&str, String)]) -> Context {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        let env = StaticEnv {
            home_dir: None,
            envs: variables.collect::<HashMap<_, _>>(),
        };
        let http = HttpClient::new(None).unwrap();
        Context::new()
            .with_env(env)
            .with_file_read(Files)
            .with_http_send(http)
    }

    /// The expected texts are those of AWS's own signer (aws-msk-iam-sasl-signer-python 1.0.2) for
    /// these credentials at this time, without its name at the end.
    #[test]
    fn a_token_is_that_of_the_signer_of_aws() {
        let now = Timestamp::from_second(1_795_836_131).unwrap();
        let url = "https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect\
            &X-Amz-Algorithm=AWS4-HMAC-SHA256\
            &X-Amz-Credential=AKIDEXAMPLE%2F20261128%2Feu-central-1%2Fkafka-cluster%2Faws4_request\
            &X-Amz-Date=20261128T032211Z&X-Amz-Expires=900";
        for (session_token, expected) in [
            (
                None,
                "&X-Amz-SignedHeaders=host\
                 &X-Amz-Signature=175cd7112141561ab41af23bdef59429de1863180ef4b82b087ad0c87a490baf",
            ),
            (
                Some("IQoJb3JpZ2luX2VjE+/=&x"),
                "&X-Amz-Security-Token=IQoJb3JpZ2luX2VjE%2B%2F%3D%26x&X-Amz-SignedHeaders=host\
                 &X-Amz-Signature=66e686582374ebeb7d11e0dbdd112bb2ea611ccf381af9837ee8f8cc290a459a",
            ),
        ] {
            let credential = Credential {
                access_key_id: "AKIDEXAMPLE".to_owned(),
                secret_access_key: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned(),
                session_token: session_token.map(str::to_owned),
                expires_in: None,
            };
            let token = presigned("eu-central-1", &credential, now);
            let (signed, agent) = token.rsplit_once("&User-Agent=").unwrap();
            assert!(agent.starts_with("postdate%2F"), "{agent}");
            assert_eq!(signed.replace(url, ""), expected);
        }
    }

    #[tokio::test]
    async fn credentials_are_those_of_a_profile_or_of_a_container() {
        let folder = tempfile::tempdir().unwrap();
        let profile = folder.path().join("credentials");
        let text = "[default]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = s\n";
        std::fs::write(&profile, text).unwrap();
        let path = profile.to_str().unwrap().to_owned();
        let found = credential(&context(&[("AWS_SHARED_CREDENTIALS_FILE", path)])).await;
        assert_eq!(found.unwrap().access_key_id, "AKIDPROFILE");

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, asked) = sync_channel(1);
        let container = ClientThread::start("container", move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4_096];
            let length = stream.read(&mut request).unwrap();
            let answer = r#"{"AccessKeyId":"AKIDROLE","SecretAccessKey":"s","Token":"t","Expiration":"2999-01-01T00:00:00Z"}"#;
            let length_of = answer.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {length_of}\r\n\r\n{answer}"
            )
            .unwrap();
            let request = String::from_utf8_lossy(&request[..length]).to_lowercase();
            requests.send(request).unwrap();
        });
        let _container = container.unwrap();
        let context = context(&[
            (
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                format!("http://{address}/role"),
            ),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "pod".to_owned()),
        ]);
        let found = credential(&context).await.unwrap();
        assert_eq!(found.access_key_id, "AKIDROLE");
        assert_eq!(found.session_token.as_deref(), Some("t"));
        assert!(found.expires_in.is_some());
        let request = asked.recv().unwrap();
        assert!(request.contains("authorization: pod\r\n"), "{request}");
    }
}
