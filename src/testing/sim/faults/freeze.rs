//! Freezes a part of a simulated process: its future is not polled.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A switch that freezes futures.
#[derive(Default)]
pub(crate) struct Freeze {
    is_on: Cell<bool>,
    /// Tasks that were woken while frozen.
    wakers: RefCell<Vec<Waker>>,
}

impl Freeze {
    pub(crate) fn set(&self, is_on: bool) {
        self.is_on.set(is_on);
        if !is_on {
            self.wakers.take().into_iter().for_each(Waker::wake);
        }
    }

    /// A future that is not polled while the switch is on.
    pub(crate) fn wrap<F: Future>(
        self: &Rc<Self>,
        body: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        FreezableLoop {
            body: Box::pin(body),
            halt: self.clone(),
        }
    }
}

struct FreezableLoop<F> {
    body: Pin<Box<F>>,
    halt: Rc<Freeze>,
}

impl<F: Future> Future for FreezableLoop<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if self.halt.is_on.get() {
            self.halt.wakers.borrow_mut().push(context.waker().clone());
            return Poll::Pending;
        }
        self.body.as_mut().poll(context)
    }
}
