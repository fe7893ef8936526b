//! The loop of one thread.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustls::ClientConfig;

use super::connection::{Answered, Connection};
use super::{Options, Protocol, Tally, Window, http1, http2};
use crate::events::Events;

/// Longest time for the last answers.
const LAST: Duration = Duration::from_secs(10);
const BUFFER_BYTES: usize = 256 << 10;
const BATCH_PATH: &str = "/eventweir/v1/events";

/// One thread's share of the load.
#[derive(Debug)]
pub(super) struct Worker {
    events: Events,
    connections: Vec<Connection>,
    epoll: std::os::fd::OwnedFd,
    depth: usize,
    to: SocketAddr,
    batch: Option<usize>,
    /// Time between two requests of an open loop.
    interval: Option<Duration>,
    /// Connections with room for a request, the one that waits for longest first.
    idle: VecDeque<usize>,
    /// Asks for answers again and again instead of sleeping until they come.
    spins: bool,
    /// Sleeps so long in between.
    pause: Option<Duration>,
    tally: Tally,
    body: Vec<u8>,
}

impl Worker {
    /// Opens this worker's connections.
    pub(super) fn connect(options: &Options, tls: Option<&Arc<ClientConfig>>, worker: usize) -> anyhow::Result<Self> {
        let (to, media_type) = (options.to, options.encoding.media_type());
        let share = (worker as u64, options.threads as u64);
        let events = Events::new(options.population(), options.encoding, share, |path, body| {
            match (options.batch, options.protocol) {
                (Some(_), _) => [body, b"\n"].concat(),
                (None, Protocol::Http1) => http1::request(to, path, media_type, body),
                (None, Protocol::Http2) => http2::request(to, path, media_type, body),
            }
        });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let number = options.connections.div_ceil(options.threads);
        let mut connections = Vec::with_capacity(number);
        for at in 0..number {
            let connection = Connection::open(to, options.protocol, tls)?;
            epoll::add(&epoll, &connection.socket, epoll::EventData::new_u64(at as u64), epoll::EventFlags::IN)?;
            connections.push(connection);
        }
        let depth = if options.protocol == Protocol::Http1 { 1 } else { options.depth };
        let requests_a_second = options.rate.map(|rate| rate / (options.threads * options.batch.unwrap_or(1)) as f64);
        Ok(Self {
            events,
            idle: (0..connections.len() * depth).map(|at| at % connections.len()).collect(),
            connections,
            epoll,
            depth,
            to,
            batch: options.batch,
            interval: requests_a_second.map(|rate| Duration::from_secs_f64(1.0 / rate)),
            spins: options.rate.is_none(),
            pause: options.pause.map(Duration::from_micros),
            tally: Tally::new()?,
            body: Vec::new(),
        })
    }

    /// Sends until the window's end, waits for the last answers, and returns what was counted.
    pub(super) fn run(mut self, window: Window) -> anyhow::Result<Tally> {
        let mut ready = Vec::with_capacity(1024);
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut answered = Vec::new();
        let mut due = Instant::now();
        if self.interval.is_none() {
            for at in 0..self.connections.len() {
                self.fill(at)?;
            }
        }
        loop {
            let now = Instant::now();
            let is_over = now >= window.end || self.events.is_over();
            let on_their_way = || self.connections.iter().map(Connection::on_their_way).sum::<usize>();
            if is_over && (now >= window.end + LAST || on_their_way() == 0) {
                break;
            }
            // A closed loop does not sleep until answers come: the server would pay for waking it, a slow one more often than
            // a fast one, and on a virtual machine as much as for the whole request. Real clients sleep on other machines.
            // Where it is to leave its core to others, it sleeps for a while, which wakes nobody but itself.
            if let Some(pause) = self.pause {
                std::thread::sleep(pause);
            }
            let mut timeout = if self.spins { Duration::ZERO } else { Duration::from_millis(100) };
            if let Some(interval) = self.interval
                && !is_over
            {
                while due <= now && self.send_idle(due)? {
                    due += interval;
                }
                if due > now {
                    timeout = timeout.min(due.saturating_duration_since(Instant::now()));
                }
            }
            ready.clear();
            let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos() as i64 };
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), Some(&timeout))?;
            for event in &ready {
                let at = event.data.u64() as usize;
                answered.clear();
                self.connections[at].receive(&mut buffer, &mut answered)?;
                let now = Instant::now();
                for request in &answered {
                    self.count(*request, now, window);
                }
                let is_over = now >= window.end || self.events.is_over();
                if self.interval.is_none() && !is_over {
                    self.fill(at)?;
                } else {
                    if self.interval.is_some() {
                        self.idle.extend(answered.iter().map(|_| at));
                    }
                    self.flush(at)?;
                }
            }
        }
        let unanswered: usize = self.connections.iter().map(Connection::on_their_way).sum();
        self.tally.failed += (unanswered * self.batch.unwrap_or(1)) as u64;
        Ok(self.tally)
    }

    fn count(&mut self, request: Answered, now: Instant, window: Window) {
        let events = self.batch.unwrap_or(1) as u64;
        if request.good {
            self.tally.answered += events;
        } else {
            self.tally.failed += events;
        }
        if request.good && now >= window.begin && now < window.end {
            self.tally.counted += events;
            self.tally.latencies.saturating_record(now.saturating_duration_since(request.due).as_nanos() as u64);
        }
    }

    /// Sends on a connection as much as it may have on its way.
    fn fill(&mut self, at: usize) -> anyhow::Result<()> {
        let now = Instant::now();
        while self.connections[at].has_room(self.depth) && !self.events.is_over() {
            self.send(at, now);
        }
        self.flush(at)
    }

    /// Sends a request on the connection that has been idle for longest; false if there is none.
    fn send_idle(&mut self, due: Instant) -> anyhow::Result<bool> {
        let Some(at) = self.idle.pop_front() else { return Ok(false) };
        self.send(at, due);
        self.flush(at)?;
        Ok(true)
    }

    fn send(&mut self, at: usize, due: Instant) {
        let Self { events, connections, body, tally, .. } = self;
        match self.batch {
            None => {
                tally.sent += 1;
                connections[at].send(due, |out| events.append(out));
            }
            Some(number) => {
                body.clear();
                for _ in 0..number {
                    events.append(body);
                }
                tally.sent += number as u64;
                let head = http1::head(self.to, BATCH_PATH, "application/x-ndjson", body.len());
                connections[at].send(due, |out| {
                    let begin = out.len();
                    out.extend_from_slice(&head);
                    out.extend_from_slice(body);
                    begin
                });
            }
        }
    }

    fn flush(&mut self, at: usize) -> anyhow::Result<()> {
        let connection = &mut self.connections[at];
        if !connection.owes() {
            return Ok(());
        }
        let waits = !connection.flush()?;
        if waits != connection.waits_for_room {
            connection.waits_for_room = waits;
            let flags = if waits { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            epoll::modify(&self.epoll, connection.socket.as_fd(), epoll::EventData::new_u64(at as u64), flags)?;
        }
        Ok(())
    }
}
