//! Requests with the header `Idempotency-Key`: a repeat gets the first answer, and publishes nothing. The store keeps the
//! first answer for a day.

use crate::admin::auth::Actor;
use crate::admin::kept_store::KeptStore;
use crate::admin::problem::Problem;
use crate::clock::{Clock as _, WallClock};
use crate::encryption::KeyRing;
use crate::limit::{
    ENDED_REQUESTS_MAX, IDEMPOTENCY_ATTEMPT_TIMEOUT, IDEMPOTENCY_AWAY_TIME,
    IDEMPOTENCY_KEY_BYTES_MAX, IDEMPOTENCY_RETRY_DELAY, IDEMPOTENCY_RUNNING_TIME,
    IDEMPOTENCY_STORE_TIMEOUT, IDEMPOTENCY_TEXTS_BYTES_MAX, IDEMPOTENCY_TIME,
};
use crate::store::{AdminStore, Error, RequestName};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use bytes::Bytes;
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::{Instant, sleep, timeout, timeout_at};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Marks the answer to a repeat.
pub(in crate::admin) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Bytes of the hash of a name.
const NAME_LENGTH: usize = 16;

/// The name of a request with a key: a hash of route, user and key. `None`: the request has no key.
pub(in crate::admin) fn name_of(
    headers: &HeaderMap,
    route: &str,
    actor: &Actor,
) -> Result<Option<RequestName>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default();
    // A structured field has quotes.
    let quoted = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    let key = quoted.unwrap_or(text);
    if values.next().is_some() || key.is_empty() || key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
        let text = format!(
            "Idempotency-Key: write one value of 1 to {IDEMPOTENCY_KEY_BYTES_MAX} ASCII characters"
        );
        return Err(Problem::bad_request(text));
    }
    let hash = hash(&[route.as_bytes(), actor.name.as_bytes(), key.as_bytes()]);
    Ok(Some(RequestName::of_hash(&hash[..NAME_LENGTH])))
}

/// Bounds the answer, which the store keeps: it repeats these texts of the request. JSON makes some characters longer.
pub(in crate::admin) fn check_texts(texts: &[&Option<String>]) -> Result<(), Problem> {
    let json = serde_json::to_string(texts).expect("they are only texts");
    if json.len() > IDEMPOTENCY_TEXTS_BYTES_MAX {
        let text = format!(
            "with Idempotency-Key, key, id, target, topic and subject have together at most {IDEMPOTENCY_TEXTS_BYTES_MAX} bytes"
        );
        return Err(Problem::bad_request(text));
    }
    Ok(())
}

/// A hash of everything that decides which record is published.
pub(in crate::admin) fn digest(query: &str, headers: &HeaderMap, payload: &[u8]) -> String {
    let mut lines: Vec<_> = headers
        .iter()
        .filter(|(name, _)| {
            let name = name.as_str();
            name == "content-type" || name.starts_with("ce-") || name.starts_with("postdate-")
        })
        .map(|(name, value)| [name.as_str().as_bytes(), b":", value.as_bytes()].concat())
        .collect();
    lines.sort_unstable();
    let lines = lines.iter().map(Vec::as_slice);
    let parts: Vec<_> = [query.as_bytes(), payload]
        .into_iter()
        .chain(lines)
        .collect();
    RequestName::of_hash(&hash(&parts)).as_str().to_owned()
}

/// SHA-256 of the parts, each with its length.
fn hash(parts: &[&[u8]]) -> Vec<u8> {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    context.finish().as_ref().to_vec()
}

/// The requests with a key that wait or run in this process.
#[derive(Clone, Default)]
pub(super) struct RunningRequests(Arc<Mutex<BTreeSet<RequestName>>>);

impl RunningRequests {
    /// Fails while another request of this name waits or runs.
    pub(super) fn start(&self, name: RequestName, digest: String) -> Result<KeyedRequest, Problem> {
        if !self.names().insert(name.clone()) {
            return Err(running());
        }
        Ok(KeyedRequest {
            name,
            digest,
            owner: rand::random(),
            all: self.clone(),
        })
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<RequestName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request with a key, which waits or runs until this is dropped.
pub(super) struct KeyedRequest {
    name: RequestName,
    digest: String,
    /// A number that no other request has.
    owner: u64,
    all: RunningRequests,
}

impl Drop for KeyedRequest {
    fn drop(&mut self) {
        self.all.names().remove(&self.name);
    }
}

fn running() -> Problem {
    let text = "the first request with this Idempotency-Key has not ended: repeat it later";
    Problem::new(StatusCode::CONFLICT, text).with_code("idempotency_key_in_use")
}

fn store_away(error: &str) -> Problem {
    let text = format!(
        "nothing was published, because the store cannot keep the Idempotency-Key: {error}"
    );
    Problem::unavailable(text)
}

/// The store has a state under a key that this process does not have, or that was changed.
fn unreadable() -> Problem {
    let text = "an earlier request used this Idempotency-Key, and this process cannot read its answer, for example because its \
                encryption key was removed. Look for the message before you publish it with another Idempotency-Key";
    Problem::new(StatusCode::CONFLICT, text).with_code("idempotency_key_unreadable")
}

/// The state of a request in the store.
#[derive(Serialize, Deserialize)]
struct RequestState {
    digest: String,
    /// The request that wrote it. Tells a repeated call of the store from another request. 0 in states
    /// without it.
    #[serde(default)]
    owner: u64,
    /// `None`: it has not ended.
    receipt: Option<String>,
}

/// The requests in the store. Connects with the first one.
pub(crate) struct Requests<C> {
    keys: KeyRing,
    store: KeptStore<C>,
    /// The store has failed, so it is not called before this time.
    away_until: Option<Instant>,
}

impl<C: AsyncFn() -> Result<Rc<dyn AdminStore>, Error>> Requests<C> {
    pub(crate) fn new(keys: KeyRing, connect: C) -> Self {
        Self {
            keys,
            store: KeptStore::new(connect),
            away_until: None,
        }
    }

    /// The receipt of the first request. `None`: this is the first one, and it may run.
    pub(super) async fn begin(
        &mut self,
        request: &KeyedRequest,
    ) -> Result<Option<String>, Problem> {
        if self.away_until.is_some_and(|end| Instant::now() < end) {
            return Err(store_away("it has just failed"));
        }
        let state = self.state(request, None);
        let begin = async |store: &dyn AdminStore| {
            store
                .begin_request(&request.name, &state, IDEMPOTENCY_RUNNING_TIME)
                .await
        };
        let kept = self.call(&begin).await;
        let Some(kept) = kept.map_err(|error| store_away(&error))? else {
            return Ok(None);
        };
        let json = self.keys.open_value(&place(&request.name), &kept);
        let kept = json.and_then(|json| serde_json::from_slice::<RequestState>(&json).ok());
        let RequestState {
            digest,
            owner,
            receipt,
        } = kept.ok_or_else(unreadable)?;
        if owner == request.owner && receipt.is_none() {
            // The reply to an earlier attempt was lost.
            return Ok(None);
        }
        if digest != request.digest {
            let text = "another request was sent with this Idempotency-Key: use a new key for each message";
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, text);
            return Err(problem.with_code("idempotency_key_reused"));
        }
        receipt.ok_or_else(running).map(Some)
    }

    /// Keeps the receipt of a request. Without one, a repeat may run.
    pub(super) async fn end(&mut self, request: &KeyedRequest, receipt: Option<&str>) {
        let (name, until) = (&request.name, WallClock.now().plus(IDEMPOTENCY_TIME));
        let state = self.state(request, receipt);
        let end = async |store: &dyn AdminStore| match receipt {
            Some(_) => {
                store
                    .end_request(name, &state, until, ENDED_REQUESTS_MAX)
                    .await
            }
            None => store.forget_request(name).await,
        };
        if let Err(error) = self.call(&end).await {
            tracing::warn!(%error, "the store did not keep the answer to a request with an Idempotency-Key: a repeat publishes again");
        }
    }

    fn state(&self, request: &KeyedRequest, receipt: Option<&str>) -> Bytes {
        let state = RequestState {
            digest: request.digest.clone(),
            owner: request.owner,
            receipt: receipt.map(str::to_owned),
        };
        let json = serde_json::to_vec(&state).expect("a state has only texts");
        self.keys.seal_value(&place(&request.name), json).into()
    }

    /// Repeats the call until `IDEMPOTENCY_STORE_TIMEOUT` while the store does not answer.
    async fn call<T>(
        &mut self,
        call: &impl AsyncFn(&dyn AdminStore) -> Result<T, Error>,
    ) -> Result<T, String> {
        let end = Instant::now() + IDEMPOTENCY_STORE_TIMEOUT;
        let mut last = "it did not answer in time".to_owned();
        let attempts = async {
            loop {
                let attempt = timeout(IDEMPOTENCY_ATTEMPT_TIMEOUT, self.store.call(call));
                match attempt.await {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(error @ Error::Unavailable(_))) => last = error.to_string(),
                    Ok(Err(error)) => return Err(error.to_string()),
                    Err(_) => {}
                }
                sleep(IDEMPOTENCY_RETRY_DELAY).await;
            }
        };
        // Safe to drop: if the state was written, it expires, or a repeat finds it.
        let ended = timeout_at(end, attempts).await;
        self.away_until = match ended {
            Ok(_) => None,
            Err(_) => Some(Instant::now() + IDEMPOTENCY_AWAY_TIME),
        };
        ended.unwrap_or(Err(last))
    }
}

fn place(name: &RequestName) -> Vec<u8> {
    [b"request ", name.as_str().as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::audit;
    use crate::encryption::test_rings::{line, ring};
    use crate::testing::store::memory::{MemoryStore, RequestFault};
    use axum::http::HeaderValue;

    fn actor(name: &'static str) -> Actor {
        Actor {
            name: name.into(),
            may_change: true,
            address: None,
            may_log_in: false,
            may_log_out: false,
            audit: audit::channel().0,
        }
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_static(name);
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn name(key: &str, route: &str, by: &'static str) -> Option<RequestName> {
        name_of(&headers(&[("idempotency-key", key)]), route, &actor(by)).unwrap()
    }

    #[test]
    fn a_name_belongs_to_a_key_a_route_and_a_user() {
        let first = name("a", "orders", "operator");
        assert!(first.is_some());
        assert_eq!(first, name("\"a\"", "orders", "operator"));
        for other in [
            name("b", "orders", "operator"),
            name("a", "mail", "operator"),
            name("a", "orders", "reader"),
        ] {
            assert_ne!(first, other);
        }
        let operator = actor("operator");
        assert_eq!(name_of(&HeaderMap::new(), "orders", &operator), Ok(None));
        let long = "k".repeat(IDEMPOTENCY_KEY_BYTES_MAX + 1);
        let key = "idempotency-key";
        for wrong in [
            &[(key, "")][..],
            &[(key, "\"\"")],
            &[(key, &long)],
            &[(key, "a"), (key, "a")],
        ] {
            let problem = name_of(&headers(wrong), "orders", &operator).unwrap_err();
            assert_eq!(problem.status_code(), StatusCode::BAD_REQUEST);
        }
    }

    #[test]
    fn a_digest_covers_what_is_published() {
        let lines = [
            ("postdate-after", "1h"),
            ("ce-type", "a"),
            ("user-agent", "x"),
        ];
        let of = |query: &str, lines: &[(&'static str, &str)], payload: &[u8]| {
            digest(query, &headers(lines), payload)
        };
        let first = of("key=k", &lines, b"x");
        let turned = [
            ("user-agent", "y"),
            ("ce-type", "a"),
            ("postdate-after", "1h"),
        ];
        assert_eq!(first, of("key=k", &turned, b"x"));
        assert_ne!(first, of("key=l", &lines, b"x"));
        assert_ne!(first, of("key=k", &lines[1..], b"x"));
        assert_ne!(first, of("key=k", &lines, b"y"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeat_gets_the_first_receipt_and_another_request_is_refused() {
        let store = MemoryStore::new(Rc::new(WallClock));
        let connect = async || Ok(Rc::new(store.clone()) as Rc<dyn AdminStore>);
        let mut requests = Requests::new(ring(&line("a", 1)), connect);
        let running = RunningRequests::default();
        let start = |digest: &str| {
            let name = name("a", "orders", "operator").unwrap();
            running.start(name, digest.to_owned())
        };
        let once = start("1").unwrap();
        assert_eq!(
            start("1").err().unwrap().status_code(),
            StatusCode::CONFLICT
        );
        assert_eq!(requests.begin(&once).await, Ok(None));
        drop(once);
        let once = start("1").unwrap();
        let again = requests.begin(&once).await.unwrap_err();
        assert_eq!(
            again.status_code(),
            StatusCode::CONFLICT,
            "another process runs it"
        );
        requests.end(&once, None).await;
        assert_eq!(requests.begin(&once).await, Ok(None), "it failed");
        requests.end(&once, Some("receipt")).await;
        assert_eq!(requests.begin(&once).await, Ok(Some("receipt".to_owned())));
        drop(once);
        let once = start("2").unwrap();
        let other = requests.begin(&once).await.unwrap_err();
        assert_eq!(other.status_code(), StatusCode::UNPROCESSABLE_ENTITY);
        let json = serde_json::to_value(&other).unwrap();
        drop(once);
        assert_eq!(json["code"], "idempotency_key_reused");
        store.set_down(true);
        let once = start("1").unwrap();
        let away = requests.begin(&once).await.unwrap_err();
        assert_eq!(away.status_code(), StatusCode::SERVICE_UNAVAILABLE);
    }

    fn keyed(running: &RunningRequests) -> KeyedRequest {
        let name = name("a", "orders", "operator").unwrap();
        running.start(name, "1".to_owned()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_reply_is_lost_is_repeated_with_a_new_connection() {
        let store = MemoryStore::new(Rc::new(WallClock));
        let connect = async || {
            store.set_request_fault(RequestFault::None);
            Ok(Rc::new(store.clone()) as Rc<dyn AdminStore>)
        };
        let mut requests = Requests::new(KeyRing::plain(), connect);
        let running = RunningRequests::default();
        for fault in [RequestFault::LostReply, RequestFault::NoReply] {
            let first = keyed(&running);
            // A call before has left its connection.
            requests.end(&first, None).await;
            store.set_request_fault(fault);
            assert_eq!(requests.begin(&first).await, Ok(None), "{fault:?}");
            store.set_request_fault(fault);
            requests.end(&first, Some("receipt")).await;
            drop(first);
            let again = keyed(&running);
            let kept = requests.begin(&again).await;
            assert_eq!(kept, Ok(Some("receipt".to_owned())), "{fault:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_away_holds_up_one_request_and_not_the_next_ones() {
        let store = MemoryStore::new(Rc::new(WallClock));
        let connections = std::cell::Cell::new(0);
        let connect = async || {
            connections.set(connections.get() + 1);
            Ok(Rc::new(store.clone()) as Rc<dyn AdminStore>)
        };
        let mut requests = Requests::new(KeyRing::plain(), connect);
        let running = RunningRequests::default();
        let request = keyed(&running);
        store.set_request_fault(RequestFault::NoReply);
        assert!(requests.begin(&request).await.is_err());
        let connected = connections.get();
        store.set_request_fault(RequestFault::None);
        let away = requests.begin(&request).await.unwrap_err();
        assert_eq!(away.status_code(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(connections.get(), connected, "the store is not called");
        sleep(IDEMPOTENCY_AWAY_TIME).await;
        assert_eq!(requests.begin(&request).await, Ok(None));
        store.set_full(true);
        drop(request);
        let other = name("b", "orders", "operator").unwrap();
        let other = running.start(other, "1".to_owned()).unwrap();
        assert!(requests.begin(&other).await.is_err());
        store.set_full(false);
        assert_eq!(
            requests.begin(&other).await,
            Ok(None),
            "a full store answers"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_of_a_removed_key_does_not_invite_to_publish_again() {
        let store = MemoryStore::new(Rc::new(WallClock));
        let connect = async || Ok(Rc::new(store.clone()) as Rc<dyn AdminStore>);
        let running = RunningRequests::default();
        let first = keyed(&running);
        let mut requests = Requests::new(ring(&line("a", 1)), connect);
        requests.end(&first, Some("receipt")).await;
        drop(first);
        let connect = async || Ok(Rc::new(store.clone()) as Rc<dyn AdminStore>);
        let mut rotated = Requests::new(ring(&line("b", 2)), connect);
        let problem = rotated.begin(&keyed(&running)).await.unwrap_err();
        assert_eq!(problem.status_code(), StatusCode::CONFLICT);
        assert!(
            problem.detail.contains("Look for the message"),
            "{problem:?}"
        );
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["code"], "idempotency_key_unreadable");
    }

    #[test]
    fn the_texts_that_an_answer_repeats_are_bounded() {
        let text = |text: &str, count: usize| Some(text.repeat(count));
        let check = |key, id| check_texts(&[&key, &None, &id]);
        assert_eq!(check(text("k", 500), text("i", 500)), Ok(()));
        for (key, id) in [
            (text("k", 1_100), None),
            (text("k", 600), text("i", 600)),
            (text("\"", 600), None),
            (text("\u{1}", 200), None),
        ] {
            let problem = check(key, id).unwrap_err();
            assert_eq!(problem.status_code(), StatusCode::BAD_REQUEST);
        }
    }
}
