//! Reads a request's body into memory, of which all bodies together have a limited part.

use std::pin::pin;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use smol_str::SmolStr;
use tokio::time::sleep;

use super::{FairPlace, FairPlaces};

/// Bytes of a short body. Longer ones leave a part of all memory to short ones, which most events are.
const SHORT: usize = 16 << 10;
/// Bytes that a body counts at least, also before its first one: the header of its request is in memory too.
const LEAST: usize = 1 << 10;

/// Result of reading a body.
#[derive(Debug)]
pub enum Read {
    /// The whole body. Counts until its last clone is dropped.
    Whole(Bytes),
    /// Not the whole body, for this reason: the bytes that were read, and the rest.
    Begun(Unread, Bytes, Body),
    /// Reading failed.
    Broken(axum::Error),
}

/// Reason for which a body is not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// It is too large.
    TooLarge,
    /// It is too slow.
    Late,
    /// Too many bytes of bodies are in memory.
    Full,
}

/// Places for the bytes of a body: as many as it has, and up to twice as many.
#[derive(Debug)]
pub struct Reading {
    places: FairPlaces,
    caller: SmolStr,
    place: Option<FairPlace>,
    /// The number of places.
    number: usize,
}

impl Reading {
    /// Begins without a place, for a caller of this name; see [`FairPlaces::take`].
    #[must_use]
    pub const fn new(places: FairPlaces, caller: SmolStr) -> Self {
        Self { places, caller, place: None, number: 0 }
    }

    /// Takes places for all bytes that were read, of which there are so many. Returns whether they were free.
    #[must_use]
    pub fn covers(&mut self, bytes: usize) -> bool {
        if bytes <= self.number && self.place.is_some() {
            return true;
        }
        if bytes > SHORT && !self.places.has_room_for_long(&self.caller) {
            return false;
        }
        let number = bytes.max(self.number.saturating_mul(2)).max(LEAST);
        let Some(more) = self.places.take(&self.caller, (number - self.number) as u64) else { return false };
        match &mut self.place {
            Some(place) => place.add(more),
            None => self.place = Some(more),
        }
        self.number = number;
        true
    }

    /// Frees places if so few bytes are left that others may need them. Returns whether it did: then nothing may be
    /// reserved for more bytes.
    #[must_use]
    pub fn shrinks(&mut self, bytes: usize) -> bool {
        let number = bytes.max(LEAST);
        if self.number / 4 <= number {
            return false;
        }
        if let Some(place) = &mut self.place {
            place.shrink(number);
        }
        self.number = number;
        true
    }

    /// Returns bytes that keep the places.
    fn hold(self, bytes: impl Into<Bytes>) -> Bytes {
        let bytes = bytes.into();
        if bytes.is_empty() { bytes } else { Bytes::from_owner(Held { bytes, _place: self.place }) }
    }
}

struct Held {
    bytes: Bytes,
    _place: Option<FairPlace>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a body up to `limit` bytes, for at most `time`, and as far as the caller may have a place for each byte.
pub async fn read(mut body: Body, limit: usize, time: Duration, (places, caller): (&FairPlaces, &str)) -> Read {
    let mut reading = Reading::new(places.clone(), caller.into());
    if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
        return Read::Begun(Unread::TooLarge, Bytes::new(), body);
    }
    if body.is_end_stream() {
        return Read::Whole(Bytes::new());
    }
    // The first piece is most often the only one. Further ones are copied, because each may be a small part of a buffer.
    let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
    let mut late = pin!(sleep(time));
    let why = loop {
        let length = first.len() + joined.len();
        if length > limit {
            break Unread::TooLarge;
        }
        if !reading.covers(length) {
            break Unread::Full;
        }
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = &mut late => break Unread::Late,
        };
        match frame.map(|frame| frame.map(Frame::into_data)) {
            None if joined.is_empty() => return Read::Whole(reading.hold(first)),
            None => return Read::Whole(reading.hold(joined)),
            Some(Err(fault)) => return Read::Broken(fault),
            Some(Ok(Ok(data))) if length == 0 => first = data,
            Some(Ok(Ok(data))) => {
                joined.extend_from_slice(&std::mem::take(&mut first));
                joined.extend_from_slice(&data);
            }
            Some(Ok(Err(_trailers))) => {}
        }
    };
    joined.extend_from_slice(&first);
    Read::Begun(why, reading.hold(joined), body)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use futures_util::{FutureExt as _, stream};
    use prometheus::IntGauge;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    fn places(most: usize) -> (FairPlaces, IntGauge) {
        let taken = IntGauge::new("bytes", "a test's").unwrap();
        (FairPlaces::new(NonZeroUsize::new(most).unwrap(), taken.clone()), taken)
    }

    fn pieces(pieces: &[&'static str]) -> Body {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok::<_, std::io::Error>(*piece)).collect();
        Body::from_stream(stream::iter(pieces))
    }

    /// Returns the reason for which a body was not read whole, and all of its text.
    async fn all(read: Read) -> (Option<Unread>, String) {
        let (why, bytes) = match read {
            Read::Whole(bytes) => (None, bytes.to_vec()),
            Read::Begun(why, first, rest) => (Some(why), [first, rest.collect().await.unwrap().to_bytes()].concat()),
            Read::Broken(fault) => panic!("{fault}"),
        };
        (why, String::from_utf8(bytes).unwrap())
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit_and_nothing_of_it_is_lost() {
        let (places, taken) = places(1 << 20);
        for (body, why, expected) in [
            (pieces(&[]), None, ""),
            (pieces(&["", "12345", "", "67890"]), None, "1234567890"),
            (Body::from("1234567890"), None, "1234567890"),
            (Body::from("12345678901"), Some(Unread::TooLarge), "12345678901"),
            (pieces(&["12345678901"]), Some(Unread::TooLarge), "12345678901"),
            (pieces(&["12345", "67890", "1", "23"]), Some(Unread::TooLarge), "1234567890123"),
        ] {
            assert_eq!(all(read(body, 10, SOON, (&places, "")).await).await, (why, expected.to_owned()));
            assert_eq!(taken.get(), 0);
        }
    }

    /// Fault: requests without a first byte of their body were not limited.
    #[tokio::test]
    async fn a_body_counts_before_its_first_byte() {
        let (places, taken) = places(LEAST);
        let pending = || Body::from_stream(stream::pending::<std::io::Result<&str>>());
        let mut first = Box::pin(read(pending(), 10, SOON, (&places, "")));
        assert!(first.as_mut().now_or_never().is_none());
        let second = read(pending(), 10, SOON, (&places, "")).now_or_never();
        assert!(matches!(second, Some(Read::Begun(Unread::Full, ..))));
        assert!(matches!(read(Body::empty(), 10, SOON, (&places, "")).now_or_never(), Some(Read::Whole(_))));
        drop(first);
        assert_eq!(taken.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_body_is_not_read_on() {
        let late = stream::unfold(0, |number| async move {
            sleep(Duration::from_secs(number * 7)).await;
            (number < 3).then(|| (Ok::<_, std::io::Error>(format!("{number}")), number + 1))
        });
        let read = read(Body::from_stream(late), 10, Duration::from_secs(10), (&places(1 << 20).0, "")).await;
        assert!(matches!(&read, Read::Begun(Unread::Late, first, _) if first == "01"));
        assert_eq!(all(read).await, (Some(Unread::Late), "012".to_owned()));
    }

    /// Fault: each request could keep a body of the greatest length, without an end.
    #[tokio::test]
    async fn all_bodies_together_are_limited_and_short_ones_keep_half_of_the_room() {
        const LIMIT: usize = 3 << 20;
        let (places, taken) = places(2 * LIMIT);
        let endless = |size: usize| {
            let body = stream::iter((0..size / 1024).map(|_| Ok::<_, std::io::Error>(" ".repeat(1024))));
            Body::from_stream(futures_util::StreamExt::chain(body, stream::pending()))
        };
        let mut bodies = Vec::new();
        let refused = loop {
            let mut reading = Box::pin(read(endless(1 << 20), LIMIT, SOON, (&places, "")));
            match reading.as_mut().now_or_never() {
                None => bodies.push(reading),
                Some(read) => break read,
            }
            assert!(bodies.len() < 10, "{}", taken.get());
        };
        assert!(matches!(refused, Read::Begun(Unread::Full, first, _) if first.len() <= SHORT + 1024));
        assert!(bodies.len() > 2 && taken.get() >= 3 << 20, "{}", bodies.len());
        for _ in 0..50 {
            let Read::Whole(kept) = read(Body::from("x".repeat(SHORT)), LIMIT, SOON, (&places, "")).await else {
                panic!("a short body has room");
            };
            drop(kept);
        }
        bodies.clear();
        let before = taken.get();
        let whole = read(Body::from("x".repeat(2 << 20)), LIMIT, SOON, (&places, "")).await;
        let Read::Whole(kept) = whole else { panic!("there is room again") };
        let clone = kept.clone();
        drop(kept);
        assert_eq!((before, taken.get()), (0, 2 << 20));
        drop(clone);
        assert_eq!(taken.get(), 0);
    }

    /// Fault: one caller's unfinished bodies took all room, or so much that no other's long body had any.
    #[tokio::test]
    async fn a_callers_bodies_leave_room_for_others() {
        const LIMIT: usize = 1 << 20;
        let (places, taken) = places(4 * LIMIT);
        let unfinished = |size: usize| {
            let body = stream::iter([Ok::<_, std::io::Error>(" ".repeat(size))]);
            Body::from_stream(futures_util::StreamExt::chain(body, stream::pending()))
        };
        let mut bodies = Vec::new();
        for size in [LIMIT, SHORT] {
            loop {
                let mut reading = Box::pin(read(unfinished(size), LIMIT, SOON, (&places, "a")));
                if reading.as_mut().now_or_never().is_some() {
                    break;
                }
                bodies.push(reading);
            }
        }
        assert!(taken.get() <= 2 << 20 && taken.get() > (2 << 20) - (32 << 10), "{}", taken.get());
        let long = read(Body::from("x".repeat(LIMIT)), LIMIT, SOON, (&places, "b")).await;
        let short = read(Body::from("x"), LIMIT, SOON, (&places, "c")).await;
        assert!(matches!((long, short), (Read::Whole(_), Read::Whole(_))));
    }

    #[test]
    fn what_is_no_longer_read_frees_its_places() {
        let (places, taken) = places(1 << 20);
        let mut reading = Reading::new(places, "a".into());
        assert!(reading.covers(SHORT) && !reading.shrinks(SHORT) && reading.shrinks(0));
        assert_eq!(taken.get(), 1 << 10);
        assert!(!reading.shrinks(0) && reading.covers(SHORT));
        assert_eq!(taken.get(), 16 << 10);
    }
}
