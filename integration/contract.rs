//! Runs the contract suite for sources and targets against a real Kafka and a real NATS.

use std::cell::RefCell;
use std::rc::Rc;

use postdate::test_support::{
    kafka_contract, kafka_outage_contract, nats_contract, nats_outage_contract,
};

use crate::env::{Kafka, Nats, kafka, nats};

#[tokio::test]
async fn kafka_keeps_the_contract_of_a_broker() {
    kafka_contract(kafka().addr()).await;
}

#[tokio::test]
async fn kafka_keeps_the_contract_over_an_outage() {
    let kafka = Rc::new(RefCell::new(Kafka::start()));
    let (addr, silent) = (kafka.borrow().addr().to_owned(), kafka.clone());
    let outage = move || {
        kafka.borrow_mut().kill();
        kafka.borrow_mut().restart();
    };
    let pause = |pause| {
        if pause {
            silent.borrow().pause();
        } else {
            silent.borrow().resume();
        }
    };
    kafka_outage_contract(&addr, outage, pause).await;
}

#[tokio::test]
async fn nats_keeps_the_contract_of_a_broker() {
    nats_contract(&nats().url()).await;
}

#[tokio::test]
async fn nats_keeps_the_contract_over_an_outage() {
    let mut nats = Nats::start();
    let url = nats.url();
    let outage = move || {
        nats.kill();
        nats.restart();
    };
    nats_outage_contract(&url, outage).await;
}
