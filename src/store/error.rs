//! Why a call of the store returned no outcome.

/// After any of these, the caller knows nothing about the requests of the call.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No answer. The next call may succeed.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// No room for new data. Deliveries continue and free room.
    #[error(
        "the store is full: give it more memory (Redis: maxmemory) or disk (the embedded store), \
         or wait until due messages have been delivered"
    )]
    Full,
    /// A server that worked before refuses this process now, for example after a failover. An
    /// operator must act, and the next call may succeed then.
    #[error("the store refuses this process: {0}")]
    Refused(String),
    /// An operator must act first: a wrong login, a missing permission, an unsuitable server.
    #[error("the store cannot be used: {0}")]
    Unusable(String),
}

impl Error {
    /// True if the same call may succeed later in this process.
    pub(crate) fn is_transient(&self) -> bool {
        !matches!(self, Self::Unusable(_))
    }
}
