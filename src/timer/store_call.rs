//! A store call that runs beside the dispatcher's loop, so that due messages do not wait for it.

use futures_util::future::{LocalBoxFuture, pending};

/// At most one call at a time.
pub(super) struct StoreCall<T>(Option<LocalBoxFuture<'static, T>>);

impl<T> Default for StoreCall<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> StoreCall<T> {
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn start(&mut self, call: impl Future<Output = T> + 'static) {
        self.0 = Some(Box::pin(call));
    }

    /// Waits for the reply; forever if there is no call. Safe to drop: the call continues when this
    /// is called again.
    pub(super) async fn reply(&mut self) -> T {
        let Some(call) = &mut self.0 else {
            return pending().await;
        };
        let reply = call.await;
        self.0 = None;
        reply
    }
}
