//! The loop that sends events and receives answers.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::connection::{Connection, head};
use super::{Options, Outcome};
use crate::events::Events;
use crate::{machine, tls};

/// Longest time to wait for the last answers.
const LAST: Duration = Duration::from_secs(10);
/// Longest sleep.
const SLEEP: Duration = Duration::from_millis(100);
const BATCH_PATH: &str = "/eventweir/v1/events";

/// The schedule of an open loop.
#[derive(Debug)]
struct Pace {
    /// When the next request is due.
    next: Instant,
    interval: Duration,
}

/// The generator, with its connections.
#[derive(Debug)]
pub(super) struct Generator<'a> {
    options: &'a Options,
    events: Events,
    connections: Vec<Connection>,
    epoll: OwnedFd,
    /// Connections without a request in flight, the longest idle first.
    idle: VecDeque<usize>,
    /// `None` is a closed loop.
    pace: Option<Pace>,
    /// Events sent, and of them those answered with success.
    sent: u64,
    answered: u64,
    /// Nanoseconds.
    latencies: Histogram<u64>,
    /// Body of the next batch.
    body: Vec<u8>,
}

impl<'a> Generator<'a> {
    /// Opens the connections.
    ///
    /// # Errors
    /// When the server does not accept.
    pub(super) fn connect(options: &'a Options) -> anyhow::Result<Self> {
        let events = Events::new(options.population, |path, body| match options.batch {
            Some(_) => [body, b"\n"].concat(),
            None => [&head(options, path, Some(("application/json", body.len()))), body].concat(),
        });
        let tls = options.tls.as_deref().map(tls::client).transpose()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::with_capacity(options.connections);
        for at in 0..options.connections {
            let connection = Connection::open(options.to, tls.as_ref())?;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            epoll::add(&epoll, &connection.socket, epoll::EventData::new_u64(at as u64), flags)?;
            connections.push(connection);
        }
        let requests_per_second = options.rate.map(|rate| rate / options.batch.unwrap_or(1) as f64);
        Ok(Self {
            options,
            events,
            idle: (0..connections.len()).collect(),
            connections,
            epoll,
            pace: requests_per_second
                .map(|rate| Pace { next: Instant::now(), interval: Duration::from_secs_f64(1.0 / rate) }),
            sent: 0,
            answered: 0,
            latencies: Histogram::new_with_bounds(100, 100_000_000_000, 3)?,
            body: Vec::new(),
        })
    }

    /// Warms up, measures, and waits for the last answers.
    ///
    /// # Errors
    /// When a connection breaks.
    pub(super) fn run(mut self) -> anyhow::Result<Outcome> {
        self.drive(Duration::from_secs_f64(self.options.warmup))?;
        self.latencies.reset();
        let (begin, before) = (Instant::now(), self.cpu_seconds()?);
        self.drive(Duration::from_secs_f64(self.options.seconds))?;
        let (seconds, after) = (begin.elapsed().as_secs_f64(), self.cpu_seconds()?);
        let spent: Vec<f64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
        let latencies = self.latencies.clone();
        self.finish()?;
        let micros = |quantile| latencies.value_at_quantile(quantile) / 1000;
        Ok(Outcome {
            sent: self.sent,
            failed: self.sent - self.answered,
            seconds,
            per_second: (latencies.len() * self.events_per_request()) as f64 / seconds,
            p50: micros(0.5),
            p99: micros(0.99),
            p999: micros(0.999),
            max: latencies.max() / 1000,
            own_cpu: spent[0],
            watched_cpu: spent[1..].to_vec(),
        })
    }

    /// Sends and receives for this time, or until a walk has covered all objects.
    fn drive(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        loop {
            let now = Instant::now();
            if now >= end || self.events.is_over() {
                return Ok(());
            }
            self.send_due(now)?;
            let sleep = match &self.pace {
                // The stub answers every GET, and runs on this core.
                None if self.options.get.is_some() => SLEEP,
                // A closed loop polls. If it slept, the server would pay for its wakeups. On a virtual machine they
                // cost as much as the whole request, and a slow server would pay more often than a fast one. Real
                // clients sleep on other machines.
                None => Duration::ZERO,
                Some(_) if self.idle.is_empty() => SLEEP,
                Some(pace) => pace.next.saturating_duration_since(Instant::now()).min(SLEEP),
            };
            self.receive(sleep)?;
        }
    }

    /// Waits for the last answers.
    fn finish(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + LAST;
        while self.idle.len() < self.connections.len() && Instant::now() < end {
            self.receive(SLEEP)?;
        }
        Ok(())
    }

    /// Sends the requests that are due while connections are idle.
    fn send_due(&mut self, now: Instant) -> anyhow::Result<()> {
        while !self.idle.is_empty() && !self.events.is_over() {
            let due = match &mut self.pace {
                None => now,
                Some(pace) if pace.next > now => break,
                Some(pace) => {
                    let due = pace.next;
                    pace.next += pace.interval;
                    due
                }
            };
            let Some(at) = self.idle.pop_front() else { break };
            let Self { options, events, connections, body, .. } = self;
            connections[at].send(due, |out| match (&options.get, options.batch) {
                (Some(path), _) => out.extend_from_slice(&head(options, path, None)),
                (None, None) => events.append(out),
                (None, Some(number)) => {
                    body.clear();
                    (0..number).for_each(|_| events.append(body));
                    out.extend_from_slice(&head(options, BATCH_PATH, Some(("application/x-ndjson", body.len()))));
                    out.extend_from_slice(body);
                }
            })?;
            self.sent += self.events_per_request();
        }
        Ok(())
    }

    /// Receives answers for this time.
    fn receive(&mut self, sleep: Duration) -> anyhow::Result<()> {
        let sleep = Timespec { tv_sec: 0, tv_nsec: i64::from(sleep.subsec_nanos()) };
        let mut ready = Vec::with_capacity(self.connections.len());
        epoll::wait(&self.epoll, spare_capacity(&mut ready), Some(&sleep))?;
        for event in ready {
            let at = event.data.u64() as usize;
            self.connections[at].flush()?;
            let Some(answered) = self.connections[at].receive()? else { continue };
            self.idle.push_back(at);
            if answered.good {
                self.answered += self.events_per_request();
                self.latencies.saturating_record(answered.due.elapsed().as_nanos() as u64);
            }
        }
        Ok(())
    }

    fn events_per_request(&self) -> u64 {
        self.options.batch.unwrap_or(1) as u64
    }

    /// Returns the CPU time of this process and of each watched one.
    fn cpu_seconds(&self) -> anyhow::Result<Vec<f64>> {
        let watched = self.options.watch.iter().copied();
        std::iter::once(std::process::id()).chain(watched).map(machine::cpu_seconds).collect()
    }
}
