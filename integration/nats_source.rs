//! What becomes of the streams that a source of NATS stands on: made again.

use crate::env::{PATIENCE, Postdate, Redis, nats, unique};
use crate::nats::{ALONE, assert_each_once, config, create_streams};

/// Its sequences, and so the origins, begin anew, and nothing is left that knows of the former.
#[test]
fn a_stream_that_is_made_again_while_the_store_is_wiped_loses_nothing_to_the_ids_of_the_former() {
    let (name, mut own) = (unique("twice"), Redis::start());
    create_streams(nats(), &name);
    let mut postdate = Postdate::ready_with(&config(&name, &own.url(), &nats().url(), ALONE));
    let (source, subject, out) = (format!("{name}_IN"), format!("{name}.in.a"), format!("{name}_OUT"));
    let publish = |numbers: std::ops::Range<u64>| nats().publish_all(&subject, numbers.map(|number| (&[][..], number.to_string())));
    publish(0..10);
    nats().wait_for(&out, 10, PATIENCE);
    postdate.terminate();
    own.flush_all();
    nats().delete_stream(&source);
    nats().create_stream(&source, &[&format!("{name}.in.>")]);
    postdate.restart();
    assert_eq!(publish(10..20)[0], 1, "as the first of the former");
    nats().wait_for(&out, 20, PATIENCE);
    assert_each_once(&nats().stored(&out), 20);
}
