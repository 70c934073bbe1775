//! A connection to the store that is kept between calls.

use crate::store::{AdminStore, Error};
use std::rc::Rc;

/// Connects with the first call, and again after an error.
pub(super) struct KeptStore<C> {
    connect: C,
    store: Option<Rc<dyn AdminStore>>,
}

impl<C: AsyncFn() -> Result<Rc<dyn AdminStore>, Error>> KeptStore<C> {
    pub(super) fn new(connect: C) -> Self {
        let store = None;
        Self { connect, store }
    }

    /// The kept connection may have been closed while it was idle, so a call that fails on it is repeated with a new one.
    /// Safe to drop, if the call is: the next call connects again.
    pub(super) async fn call<T>(
        &mut self,
        call: &impl AsyncFn(&dyn AdminStore) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(store) = self.store.take()
            && let Ok(answer) = call(&*store).await
        {
            self.store = Some(store);
            return Ok(answer);
        }
        let store = (self.connect)().await?;
        let answer = call(&*store).await?;
        self.store = Some(store);
        Ok(answer)
    }
}
