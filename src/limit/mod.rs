//! Defines every hard bound with its unit and the reason for its size (I6).
//!
//! The name of a constant says its quantity and its scope. `_MAX` and `_MIN` are counts unless the
//! name says `BYTES`. Times are `Duration`s: a `_TIMEOUT` ends an attempt, an `_INTERVAL` repeats,
//! a `_DELAY` or `_LINGER` waits once. Values that an operator can choose are options in `config/`.

mod admin;
mod compact;
mod embedded;
mod exactly_once;
mod ingress;
mod kafka;
mod membership;
mod memory;
mod nats;
mod record;
mod shutdown;
mod store;
mod timer;

pub(crate) use admin::*;
pub(crate) use compact::*;
pub(crate) use embedded::*;
pub(crate) use exactly_once::*;
pub(crate) use ingress::*;
pub(crate) use kafka::*;
pub(crate) use membership::*;
pub(crate) use memory::*;
pub(crate) use nats::*;
pub(crate) use record::*;
pub(crate) use shutdown::*;
pub(crate) use store::*;
pub(crate) use timer::*;
