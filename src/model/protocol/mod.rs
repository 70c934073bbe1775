//! The values of the shard protocol (`docs/internals/protocol.md`), and their text forms.

pub(in crate::model) mod commit_metadata;
pub(in crate::model) mod delivered_marker;
pub(in crate::model) mod format_level;
pub(in crate::model) mod lease;
pub(in crate::model) mod pause;
pub(in crate::model) mod progress;
pub(in crate::model) mod redrive_position;
pub(in crate::model) mod rules_history;
pub(in crate::model) mod worker;

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

/// True for a text that some version of Postdate wrote: it begins with `v`, a number and a space.
pub(in crate::model) fn is_versioned(text: &str) -> bool {
    text_version(text).is_some()
}

/// The version of a text, and the rest behind the space.
pub(in crate::model) fn text_version(text: &str) -> Option<(u32, &str)> {
    let (number, rest) = text.strip_prefix('v')?.split_once(' ')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    Some((number.parse().ok().filter(|_| is_number)?, rest))
}
