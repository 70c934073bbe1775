//! Headers as one flat block of bytes. A record's headers travel from broker to store to broker
//! without being parsed into objects. Order, duplicates, null values and names that are not UTF-8
//! are kept.
//!
//! | bytes | what |
//! |---|---|
//! | varint | length of the name |
//! | .. | name |
//! | varint | 0: null value; else 1 + length of the value |
//! | .. | value |
//!
//! The fields repeat until the block ends. Varints are LEB128.

use integer_encoding::VarInt;

/// A borrowed block of headers. Reading never panics: a malformed block ends at its first bad byte.
/// The checksum of the surrounding run detects damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers<'a>(&'a [u8]);

/// Name and value. `None` is a null value, which is not the same as an empty one.
pub(crate) type Header<'a> = (&'a [u8], Option<&'a [u8]>);

impl<'a> Headers<'a> {
    pub(crate) const fn from_block(block: &'a [u8]) -> Self {
        Self(block)
    }

    pub(crate) fn as_block(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn iter(self) -> Iter<'a> {
        Iter(self.0)
    }
}

impl<'a> IntoIterator for Headers<'a> {
    type Item = Header<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// See [`Headers::iter`].
#[derive(Clone, Debug)]
pub(crate) struct Iter<'a>(&'a [u8]);

impl<'a> Iter<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }

    fn varint(&mut self) -> Option<usize> {
        // Nearly all lengths are one byte.
        if let Some((&length @ ..0x80, rest)) = self.0.split_first() {
            self.0 = rest;
            return Some(length.into());
        }
        let (value, read) = u64::decode_var(self.0)?;
        self.0 = &self.0[read..];
        usize::try_from(value).ok()
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        let name_length = self.varint()?;
        let name = self.take(name_length)?;
        let value = match self.varint()? {
            0 => None,
            length => Some(self.take(length - 1)?),
        };
        Some((name, value))
    }
}

/// Appends one header to a block.
pub(crate) fn push_header(block: &mut Vec<u8>, name: &[u8], value: Option<&[u8]>) {
    push_varint(block, name.len() as u64);
    block.extend_from_slice(name);
    match value {
        None => block.push(0),
        Some(value) => {
            push_varint(block, value.len() as u64 + 1);
            block.extend_from_slice(value);
        }
    }
}

pub(crate) fn push_varint(block: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        return block.push(value as u8);
    }
    let mut bytes = [0; 10];
    let length = value.encode_var(&mut bytes);
    block.extend_from_slice(&bytes[..length]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_duplicates_nulls_and_foreign_bytes_come_back(headers: Vec<(Vec<u8>, Option<Vec<u8>>)>) {
            let mut block = Vec::new();
            for (name, value) in &headers {
                push_header(&mut block, name, value.as_deref());
            }
            let back: Vec<_> = Headers::from_block(&block).iter().map(|(n, v)| (n.to_vec(), v.map(<[u8]>::to_vec))).collect();
            prop_assert_eq!(back, headers);
        }

        #[test]
        fn a_length_is_written_and_read_as_any_varint(length: u64, short in 0..0x100u64) {
            for length in [length, short] {
                let (mut block, mut bytes) = (Vec::new(), [0; 10]);
                push_varint(&mut block, length);
                let written = length.encode_var(&mut bytes);
                prop_assert_eq!(&block, &bytes[..written]);
                let mut read = Iter(&block);
                prop_assert_eq!((read.varint(), read.0.len()), (Some(length as usize), 0));
            }
        }

        #[test]
        fn foreign_bytes_never_panic(block: Vec<u8>) {
            let _ = Headers::from_block(&block).iter().count();
        }
    }
}
