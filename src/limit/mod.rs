//! Defines the hard bounds with their units and the reasons for their sizes (I6). The bounds of one
//! kind of broker are in its folder, such as `broker/kafka/limit.rs`.
//!
//! The name of a constant says its quantity and its scope. `_MAX` and `_MIN` are counts unless the
//! name says `BYTES`. Times are `Duration`s: a `_TIMEOUT` ends an attempt, an `_INTERVAL` repeats,
//! a `_DELAY` or `_LINGER` waits once. Values that an operator can choose are options in `config/`.

mod admin;
mod compact;
mod embedded;
mod exactly_once;
mod ingress;
mod membership;
mod memory;
mod record;
mod shutdown;
mod store;
mod timer;

pub(crate) use admin::*;
pub(crate) use compact::*;
pub(crate) use embedded::*;
pub(crate) use exactly_once::*;
pub(crate) use ingress::*;
pub(crate) use membership::*;
pub(crate) use memory::*;
pub(crate) use record::*;
pub(crate) use shutdown::*;
pub(crate) use store::*;
pub(crate) use timer::*;
