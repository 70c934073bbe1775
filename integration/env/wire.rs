//! Writes Kafka protocol requests by hand (kafka.apache.org/protocol) for cases that no client
//! allows.
//!
//! One case: records and offset commits in a transaction that the coordinator does not know and
//! therefore never ends.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::PATIENCE;

pub(crate) struct Wire {
    stream: TcpStream,
    asked: i32,
}

/// Producer id and epoch that the coordinator assigned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Producing {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
}

/// The transactional bit in the attributes of a record batch.
const TRANSACTIONAL: i16 = 0x10;

impl Wire {
    pub(crate) fn connect(addr: &str) -> Wire {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Wire { stream, asked: 0 }
    }

    /// Sends `InitProducerId`, version 1. Panics if the coordinator refuses.
    pub(crate) fn init_producer(&mut self, transactional_id: &str) -> Producing {
        self.may_init_producer(transactional_id)
            .unwrap_or_else(|| panic!("the coordinator refuses {transactional_id}"))
    }

    /// As `init_producer`, but returns `None` on an error: the coordinator may still be ending the
    /// last transaction.
    pub(crate) fn may_init_producer(&mut self, transactional_id: &str) -> Option<Producing> {
        let answer = self.call(
            22,
            1,
            &[text(transactional_id), 60_000_i32.to_be_bytes().to_vec()].concat(),
        );
        let producing = || Producing {
            id: i64::from_be_bytes(answer[6..14].try_into().unwrap()),
            epoch: short(&answer, 14),
        };
        (short(&answer, 4) == 0).then(producing)
    }

    /// Sends `Produce`, version 3: one transactional record with one header, the first of this
    /// producer in partition 0.
    pub(crate) fn produce(
        &mut self,
        transactional_id: &str,
        producing: Producing,
        topic: &str,
        header: (&str, &str),
    ) {
        let batch = batch(producing, header);
        let partition = [0_i32.to_be_bytes().to_vec(), length(batch.len()), batch].concat();
        let settings = [
            text(transactional_id),
            (-1_i16).to_be_bytes().to_vec(),
            10_000_i32.to_be_bytes().to_vec(),
        ]
        .concat();
        let answer = self.call(0, 3, &[settings, one(topic, partition)].concat());
        assert_eq!(
            short(&answer, 4 + 2 + topic.len() + 4 + 4),
            0,
            "the record is refused"
        );
    }

    /// Sends `TxnOffsetCommit`, version 2, for partition 0 of a topic.
    pub(crate) fn commit_offset(
        &mut self,
        transactional_id: &str,
        producing: Producing,
        group: &str,
        (topic, offset, metadata): (&str, i64, &str),
    ) {
        let partition = [
            0_i32.to_be_bytes().to_vec(),
            offset.to_be_bytes().to_vec(),
            (-1_i32).to_be_bytes().to_vec(),
            text(metadata),
        ]
        .concat();
        let producer = [
            producing.id.to_be_bytes().to_vec(),
            producing.epoch.to_be_bytes().to_vec(),
        ]
        .concat();
        let answer = self.call(
            28,
            2,
            &[
                text(transactional_id),
                text(group),
                producer,
                one(topic, partition),
            ]
            .concat(),
        );
        assert_eq!(
            short(&answer, 4 + 4 + 2 + topic.len() + 4 + 4),
            0,
            "the position is refused"
        );
    }

    /// Sends `AddPartitionsToTxn`, version 1, for partition 0 of a topic.
    pub(crate) fn add_partition(
        &mut self,
        transactional_id: &str,
        producing: Producing,
        topic: &str,
    ) {
        assert!(
            self.may_add_partition(transactional_id, producing, topic),
            "the partition is refused"
        );
    }

    /// As `add_partition`, but returns false on an error: the coordinator may still be ending the
    /// last transaction.
    pub(crate) fn may_add_partition(
        &mut self,
        transactional_id: &str,
        producing: Producing,
        topic: &str,
    ) -> bool {
        let producer = [
            producing.id.to_be_bytes().to_vec(),
            producing.epoch.to_be_bytes().to_vec(),
        ]
        .concat();
        let body = [
            text(transactional_id),
            producer,
            one(topic, 0_i32.to_be_bytes().to_vec()),
        ]
        .concat();
        let answer = self.call(24, 1, &body);
        short(&answer, 4 + 4 + 2 + topic.len() + 4 + 4) == 0
    }

    /// Sends `EndTxn`, version 1.
    pub(crate) fn end(&mut self, transactional_id: &str, producing: Producing, is_committed: bool) {
        let producer = [
            producing.id.to_be_bytes().to_vec(),
            producing.epoch.to_be_bytes().to_vec(),
        ]
        .concat();
        let answer = self.call(
            26,
            1,
            &[
                text(transactional_id),
                producer,
                vec![u8::from(is_committed)],
            ]
            .concat(),
        );
        assert_eq!(short(&answer, 4), 0, "the end is refused");
    }

    /// Sends a request and returns the answer without its header.
    fn call(&mut self, key: i16, version: i16, body: &[u8]) -> Vec<u8> {
        self.asked += 1;
        let header = [
            &key.to_be_bytes()[..],
            &version.to_be_bytes(),
            &self.asked.to_be_bytes(),
            &text("test"),
        ]
        .concat();
        self.stream
            .write_all(&[length(header.len() + body.len()), header, body.to_vec()].concat())
            .unwrap();
        let mut size = [0; 4];
        self.stream.read_exact(&mut size).unwrap();
        let mut answer = vec![0; usize::try_from(i32::from_be_bytes(size)).unwrap()];
        self.stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..4], self.asked.to_be_bytes());
        answer.split_off(4)
    }
}

/// Encodes an array of one topic with one partition.
fn one(topic: &str, partition: Vec<u8>) -> Vec<u8> {
    [length(1), text(topic), length(1), partition].concat()
}

/// Encodes a record batch of magic 2 with one record that has no key and no value.
fn batch(producing: Producing, (name, value): (&str, &str)) -> Vec<u8> {
    let now = super::now_ms().to_be_bytes();
    // Attributes, timestamp delta and offset delta, null key, null value, one header.
    let fields = [
        vec![0, 0, 0],
        varint(-1),
        varint(-1),
        varint(1),
        sized(name),
        sized(value),
    ]
    .concat();
    let record = [varint(i32::try_from(fields.len()).unwrap()), fields].concat();
    let producer = [
        &producing.id.to_be_bytes()[..],
        &producing.epoch.to_be_bytes(),
        &0_i32.to_be_bytes(),
    ]
    .concat();
    let body = [
        &TRANSACTIONAL.to_be_bytes()[..],
        &0_i32.to_be_bytes(),
        &now,
        &now,
        &producer,
        &length(1),
        &record,
    ]
    .concat();
    let (leader, magic) = (-1_i32, 2);
    let checked = [
        &leader.to_be_bytes()[..],
        &[magic],
        &crc32c::crc32c(&body).to_be_bytes(),
        &body,
    ]
    .concat();
    [0_i64.to_be_bytes().to_vec(), length(checked.len()), checked].concat()
}

fn short(answer: &[u8], at: usize) -> i16 {
    i16::from_be_bytes(answer[at..at + 2].try_into().unwrap())
}

fn length(count: usize) -> Vec<u8> {
    i32::try_from(count).unwrap().to_be_bytes().to_vec()
}

fn text(text: &str) -> Vec<u8> {
    [
        &i16::try_from(text.len()).unwrap().to_be_bytes()[..],
        text.as_bytes(),
    ]
    .concat()
}

fn sized(text: &str) -> Vec<u8> {
    [
        varint(i32::try_from(text.len()).unwrap()),
        text.as_bytes().to_vec(),
    ]
    .concat()
}

/// Encodes a zigzag varint: seven bits per byte, lowest bits first.
fn varint(number: i32) -> Vec<u8> {
    let mut left = ((number << 1) ^ (number >> 31)).cast_unsigned();
    let mut bytes = Vec::new();
    while left >= 0x80 {
        bytes.push(u8::try_from(left & 0x7f).unwrap() | 0x80);
        left >>= 7;
    }
    bytes.push(u8::try_from(left).unwrap());
    bytes
}
