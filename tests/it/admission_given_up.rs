//! Admission of a request that the API server has given up before it is read.

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::admission::{Cluster, ON, review};
use super::attacks::http2::{
    CANCEL, DATA, END_HEADERS, END_STREAM, End, HEADERS, PREFACE, RST_STREAM, block, end_of, frame, pseudo,
};
use super::support::events::event;

/// Fault: after a suspension of the process, events were counted that the API server had stored without an answer.
#[tokio::test]
async fn a_review_that_was_given_up_counts_nothing() {
    let cluster = Cluster::new(ON).await;
    let mut stream = TcpStream::connect(cluster.program.app.address().to_string()).await.unwrap();
    let ask = |id: u32, object: &str| {
        let body = review("bob", "CREATE", None, Some(&event("node-1", object, "A", "m")), false).to_string();
        let head = block(&pseudo(&["POST", "localhost", "/eventweir/v1/admit"]));
        [frame(HEADERS, END_HEADERS, id, &head), frame(DATA, END_STREAM, id, body.as_bytes())].concat()
    };
    let frames =
        [PREFACE.to_vec(), ask(1, "web-1"), frame(RST_STREAM, 0, 1, &CANCEL.to_be_bytes()), ask(3, "web-3")].concat();
    stream.write_all(&frames).await.unwrap();
    assert_eq!(end_of(3, &mut stream).await, End::Answered(200));
    assert_eq!((cluster.program.balance().ledger.received(), cluster.answered("begun").await), (1, 1.0));
}
