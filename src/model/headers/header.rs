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

/// A borrowed block of headers. Reading never panics: iteration ends at the first malformed header.
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

    /// The value of the first header with this name.
    pub(crate) fn get(self, name: &str) -> Option<Option<&'a [u8]>> {
        let mut headers = self.iter();
        let (_, value) = headers.find(|(found, _)| *found == name.as_bytes())?;
        Some(value)
    }

    /// The same, if it is text.
    pub(crate) fn text(self, name: &str) -> Option<&'a str> {
        str::from_utf8(self.get(name)??).ok()
    }

    /// Returns `false` if a header is malformed.
    pub(crate) fn is_complete(self) -> bool {
        let mut headers = self.iter();
        headers.by_ref().for_each(drop);
        headers.0.is_empty()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Iter<'a>(&'a [u8]);

impl<'a> Iterator for Iter<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        let (length, rest) = split_varint(self.0)?;
        let (name, rest) = rest.split_at_checked(length)?;
        let (value, rest) = match split_varint(rest)? {
            (0, rest) => (None, rest),
            (length, rest) => {
                let (value, rest) = rest.split_at_checked(length - 1)?;
                (Some(value), rest)
            }
        };
        self.0 = rest;
        Some((name, value))
    }
}

/// A varint and the bytes after it.
fn split_varint(bytes: &[u8]) -> Option<(usize, &[u8])> {
    // Nearly all lengths are one byte.
    if let Some((&length @ ..0x80, rest)) = bytes.split_first() {
        return Some((length.into(), rest));
    }
    let (value, length) = u64::decode_var(bytes)?;
    Some((usize::try_from(value).ok()?, &bytes[length..]))
}

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

/// A header block from lines: `name: value`, or `name` alone for a null value.
#[cfg(test)]
pub(crate) fn block_of_lines<L: AsRef<[u8]>>(lines: &[L]) -> Vec<u8> {
    let mut block = Vec::new();
    for line in lines.iter().map(AsRef::as_ref) {
        match line.windows(2).position(|pair| pair == b": ") {
            Some(at) => push_header(&mut block, &line[..at], Some(&line[at + 2..])),
            None => push_header(&mut block, line, None),
        }
    }
    block
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
                prop_assert_eq!(split_varint(&block), Some((length as usize, &[][..])));
            }
        }

        #[test]
        fn foreign_bytes_never_panic_and_a_cut_block_is_not_complete(block: Vec<u8>, cut: usize) {
            let headers = Headers::from_block(&block);
            let _ = headers.iter().count();
            let mut whole = Vec::new();
            headers.iter().for_each(|(name, value)| push_header(&mut whole, name, value));
            prop_assert!(Headers::from_block(&whole).is_complete());
            push_header(&mut whole, b"name", Some(b"value"));
            let cut = 1 + cut % 10;
            prop_assert!(!Headers::from_block(&whole[..whole.len() - cut]).is_complete());
        }
    }
}
