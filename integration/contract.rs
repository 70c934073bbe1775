//! What every source and target must do, done by a real Kafka.

use postdate::test_support::{kafka_contract, kafka_outage_contract};

use crate::env::{Kafka, kafka};

#[tokio::test]
async fn kafka_keeps_the_contract_of_a_broker() {
    kafka_contract(kafka().addr()).await;
}

#[tokio::test]
async fn kafka_keeps_the_contract_over_an_outage() {
    let mut kafka = Kafka::start();
    let addr = kafka.addr().to_owned();
    let outage = move || {
        kafka.kill();
        kafka.restart();
    };
    kafka_outage_contract(&addr, outage).await;
}
