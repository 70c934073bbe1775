//! The values of the shard protocol (`docs/internals/protocol.md`), and their text forms.

pub(in crate::model) mod commit_metadata;
pub(in crate::model) mod delivered_marker;
pub(in crate::model) mod lease;
pub(in crate::model) mod progress;
pub(in crate::model) mod rules_history;

/// The values in a line of `key=value` fields with one space between two. `None` unless the line
/// has exactly these keys, in this order.
pub(in crate::model) fn field_values<'a, const N: usize>(
    line: &'a str,
    keys: [&str; N],
) -> Option<[&'a str; N]> {
    let mut fields = line.split(' ');
    let mut values = [""; N];
    for (value, key) in values.iter_mut().zip(keys) {
        *value = fields.next()?.strip_prefix(key)?.strip_prefix('=')?;
    }
    fields.next().is_none().then_some(values)
}
