//! A librdkafka client whose events are polled, and probes that show whether a broker responds.

use super::producer::TopicHandle;
use super::queue::Queue;
use super::{CallError, admin, check, check_call, millis, take_error, text};
use crate::broker::Error;
use crate::broker::kafka::error::client_creation_error;
use crate::broker::kafka::limit::{KAFKA_PROBE_TIMEOUT, KAFKA_REQUEST_TIMEOUT};
use crate::broker::kafka::login::{Login, Token};
use crate::broker::kafka::password::SharedPassword;
use rdkafka::client::{Client, ClientContext, DefaultClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaType};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A client whose main queue (logs, errors, delivery reports) is served by its owner.
pub(crate) struct NativeClient {
    pub(super) main_queue: Queue,
    /// The first topic that the client used. A probe asks for it, because brokers log each request
    /// for a topic that the client may not describe.
    pub(super) probe_topic: OnceLock<CString>,
    /// The login with tokens, and the number of its changes that the client knows.
    login: Option<(Login, AtomicU64)>,
    /// The same for a login with a password.
    password: Option<(Arc<SharedPassword>, AtomicU64)>,
    client: Client<DefaultClientContext>,
}

/// A log line or an error of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientEvent {
    Log {
        /// From 0 (emergency) to 7 (debug).
        syslog_level: i32,
        text: String,
    },
    Error {
        code: RDKafkaErrorCode,
        text: String,
    },
}

/// The broker that a probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeTarget {
    /// The cluster's controller: a small request, but the controller may be the broker that is
    /// down.
    Controller,
    /// Any connected broker: a large response, with all topics that the client knows, or with all
    /// topics of the cluster if it knows none.
    AnyBroker,
}

impl NativeClient {
    pub(super) fn new(config: &ClientConfig, kind: RDKafkaType) -> Result<Self, Error> {
        let mut config = config.clone();
        let login = Login::take_from(&mut config)?;
        let password = SharedPassword::of(&mut config);
        let create = || {
            let native = config.create_native_config()?;
            let events = sys::RD_KAFKA_EVENT_DR | sys::RD_KAFKA_EVENT_ERROR;
            // SAFETY: the configuration is alive, and no client owns it yet.
            unsafe { sys::rd_kafka_conf_set_events(native.ptr(), events) };
            Client::new(&config, native, kind, DefaultClientContext)
        };
        let client = create().map_err(|error| client_creation_error(&error))?;
        // SAFETY: the client is alive, and this owns the new reference to its queue.
        let main_queue = unsafe { Queue::own(sys::rd_kafka_queue_get_main(client.native_ptr())) };
        let client = Self {
            main_queue: main_queue.expect("every client has a main queue"),
            probe_topic: OnceLock::new(),
            login: login.map(|login| (login, AtomicU64::new(0))),
            password: password.map(|password| {
                let known = AtomicU64::new(0);
                (password, known)
            }),
            client,
        };
        // The first request of a client may block its thread, which then serves no login.
        // A failure is reported by its first turn.
        if let Some((login, _)) = &client.login
            && let Ok(token) = login.wait(KAFKA_PROBE_TIMEOUT)
        {
            drop(set_token(&client.client, &token));
        }
        Ok(client)
    }

    /// Gives the client a token or a password that it does not know yet, or reports why there is no
    /// token. Call it in every turn of its thread.
    pub(super) fn renew_login(&self, on_event: &mut dyn FnMut(ClientEvent)) {
        if let Some((password, known)) = &self.password {
            let changes = password.changes();
            if known.swap(changes, Ordering::Relaxed) != changes
                && let Some((user, password)) = password.changed()
            {
                set_password(&self.client, user, password);
            }
        }
        let Some((login, known)) = &self.login else {
            return;
        };
        let changes = login.changes();
        if known.load(Ordering::Relaxed) == changes {
            return;
        }
        let outcome = match login.token() {
            Some(Ok(token)) => set_token(&self.client, &token),
            Some(Err(reason)) => Err(reason),
            None => return,
        };
        match outcome {
            Ok(()) => known.store(changes, Ordering::Relaxed),
            Err(text) => on_event(ClientEvent::Error {
                code: RDKafkaErrorCode::Authentication,
                text,
            }),
        }
    }

    /// A client for admin requests only. It joins no group and reads no records.
    pub(crate) fn admin_client(config: &ClientConfig) -> Result<Self, Error> {
        Self::new(config, RDKafkaType::RD_KAFKA_CONSUMER)
    }

    pub(super) fn ptr(&self) -> *mut sys::rd_kafka_t {
        self.client.native_ptr()
    }

    pub(crate) fn client(&self) -> &Client<DefaultClientContext> {
        &self.client
    }

    /// Serves the events of the main queue that wait, without waiting.
    pub(crate) fn serve_events(&self, mut on_event: impl FnMut(ClientEvent)) {
        self.renew_login(&mut on_event);
        while let Some(event) = self.main_queue.poll(Duration::ZERO) {
            event.client_event().into_iter().for_each(&mut on_event);
        }
    }

    /// Returns whether a broker responds within [`KAFKA_PROBE_TIMEOUT`].
    pub(crate) fn probe(&self, target: ProbeTarget) -> bool {
        // This topic need not exist.
        const DEFAULT_TOPIC: &CStr = c"postdate-probe";
        match target {
            ProbeTarget::Controller => {
                let topic = self.probe_topic.get();
                admin::controller_responds(self, topic.map_or(DEFAULT_TOPIC, CString::as_c_str))
            }
            ProbeTarget::AnyBroker => self.request_metadata(None, KAFKA_PROBE_TIMEOUT).is_ok(),
        }
    }

    /// Waits for the metadata of one topic, or of all topics that the client knows.
    pub(super) fn request_metadata(
        &self,
        topic: Option<&TopicHandle>,
        timeout: Duration,
    ) -> Result<(), CallError> {
        let mut metadata: *const sys::rd_kafka_metadata = std::ptr::null();
        let topic = topic.map_or(std::ptr::null_mut(), TopicHandle::ptr);
        // SAFETY: the client and the topic are alive; this owns the metadata of a successful call.
        unsafe {
            let code = sys::rd_kafka_metadata(self.ptr(), 0, topic, &mut metadata, millis(timeout));
            check_call(code)?;
            sys::rd_kafka_metadata_destroy(metadata);
        }
        Ok(())
    }

    /// The id of the cluster in the last metadata. `None`: there was no metadata yet, or the brokers
    /// are older than 0.10.1.
    pub(crate) fn cluster_id(&self) -> Option<String> {
        // SAFETY: the client is alive; this owns the text, and librdkafka frees it.
        unsafe {
            let id = sys::rd_kafka_clusterid(self.ptr(), 0);
            let text = (!id.is_null()).then(|| text(id));
            sys::rd_kafka_mem_free(self.ptr(), id.cast());
            text
        }
    }

    /// The controller in the last metadata. `None`: there was no metadata yet.
    pub(crate) fn controller(&self) -> Option<i32> {
        // SAFETY: the client is alive.
        let id = unsafe { sys::rd_kafka_controllerid(self.ptr(), 0) };
        (id >= 0).then_some(id)
    }

    /// The end offset that the last fetch of a partition returned; `None` without a fetch. Sends no
    /// request.
    pub(crate) fn end_offset(&self, topic: &str, partition: i32) -> Option<u64> {
        let topic = CString::new(topic).ok()?;
        let (client, name) = (self.ptr(), topic.as_ptr());
        let (mut low, mut high) = (-1, -1);
        // SAFETY: client and name are alive, and both offsets may be written.
        check(unsafe {
            sys::rd_kafka_get_watermark_offsets(client, name, partition, &mut low, &mut high)
        })
        .ok()?;
        u64::try_from(high).ok()
    }
}

/// Gives a client of a command the token of its login, and waits for it. Such a client ends before
/// its token.
pub(crate) fn log_in<C: ClientContext>(
    client: &Client<C>,
    login: Option<&Login>,
) -> Result<(), Error> {
    let Some(login) = login else { return Ok(()) };
    let token = login
        .wait(KAFKA_REQUEST_TIMEOUT)
        .map_err(Error::Unavailable)?;
    set_token(client, &token).map_err(Error::Rejected)
}

/// Replaces the token of a client. A connection uses it when its session ends.
fn set_token<C: ClientContext>(client: &Client<C>, token: &Token) -> Result<(), String> {
    let c_string = |text: &str| CString::new(text).map_err(|error| error.to_string());
    let (value, principal) = (c_string(&token.text)?, c_string(&token.principal)?);
    let pairs = token
        .extensions
        .iter()
        .flat_map(|(name, value)| [name, value]);
    let texts: Vec<_> = pairs.map(|text| c_string(text)).collect::<Result<_, _>>()?;
    let mut extensions: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
    let mut reason: [c_char; 256] = [0; 256];
    // SAFETY: the client and the texts are alive, and librdkafka copies them. It ends the reason
    // with a zero within its length.
    unsafe {
        let code = sys::rd_kafka_oauthbearer_set_token(
            client.native_ptr(),
            value.as_ptr(),
            token.expires_at_ms,
            principal.as_ptr(),
            extensions.as_mut_ptr(),
            extensions.len(),
            reason.as_mut_ptr(),
            reason.len(),
        );
        check(code).map_err(|_| text(reason.as_ptr()))
    }
}

/// Replaces the password of a client. Its next connections use it.
fn set_password<C: ClientContext>(client: &Client<C>, user: String, password: String) {
    let (Ok(user), Ok(password)) = (CString::new(user), CString::new(password)) else {
        return tracing::error!("a password with a zero byte is not used");
    };
    // SAFETY: the client and the texts are alive, and librdkafka copies them; this owns the error.
    let outcome = unsafe {
        let (client, user) = (client.native_ptr(), user.as_ptr());
        take_error(sys::rd_kafka_sasl_set_credentials(
            client,
            user,
            password.as_ptr(),
        ))
    };
    if let Err((_, reason)) = outcome {
        tracing::error!("the changed password of a Kafka login is not used: {reason}");
    }
}

/// The number of events that wait for a poll of this client.
pub(crate) fn queued_events<C: ClientContext>(client: &Client<C>) -> usize {
    // SAFETY: the client is alive.
    usize::try_from(unsafe { sys::rd_kafka_outq_len(client.native_ptr()) }).unwrap_or(0)
}
