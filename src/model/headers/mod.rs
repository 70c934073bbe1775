//! Record headers: how a block of them is stored, the names that Postdate uses, and the values that
//! it writes itself.

pub(crate) mod control;
pub(crate) mod header;
pub(in crate::model) mod header_lookup;
pub(crate) mod header_name;
pub(in crate::model) mod origin;
pub(crate) mod retry;
pub(crate) mod retry_keys;
