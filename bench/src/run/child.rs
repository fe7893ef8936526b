//! Processes of a measurement, killed at its end.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::machine;

/// Timeout of a GET.
const LIMIT: Duration = Duration::from_secs(60);

/// The stream on which a program reports that it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    /// Standard error.
    Err,
}

/// A process, killed when dropped.
#[derive(Debug)]
pub(super) struct Child {
    process: std::process::Child,
    name: String,
}

impl Child {
    /// Starts a program on these cores, and reads its lines until `ready` returns a value.
    ///
    /// # Errors
    /// When it cannot be started, or ends before it is ready.
    pub(super) fn start<T>(
        command: &mut Command,
        cores: &[usize],
        stream: Stream,
        mut ready: impl FnMut(&str) -> Option<T>,
    ) -> anyhow::Result<(Self, T)> {
        let mut child = Self::spawn(command, cores, stream)?;
        let output: Box<dyn std::io::Read + Send> = match stream {
            Stream::Out => Box::new(child.process.stdout.take().context("its output is piped")?),
            Stream::Err => Box::new(child.process.stderr.take().context("its output is piped")?),
        };
        let mut lines = BufReader::new(output).lines();
        let mut printed = Vec::new();
        let found = loop {
            let Some(line) = lines.next() else { bail!("{} ended early: {}", child.name, printed.join("\n")) };
            let line = line?;
            if let Some(found) = ready(&line) {
                break found;
            }
            printed.push(line);
        };
        // Later lines must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Ok((child, found))
    }

    fn spawn(command: &mut Command, cores: &[usize], stream: Stream) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        // A child inherits the cores of the thread that starts it.
        machine::pin(cores)?;
        let process = match stream {
            Stream::Out => command.stdout(Stdio::piped()),
            Stream::Err => command.stderr(Stdio::piped()),
        }
        .stdin(Stdio::null())
        .spawn();
        machine::pin(&all_cores())?;
        Ok(Self { process: process.with_context(|| format!("starting {name}"))?, name })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Runs a program on these cores to its end, and returns its output.
///
/// # Errors
/// When it fails.
pub(super) fn output(command: &mut Command, cores: &[usize]) -> anyhow::Result<String> {
    let mut child = Child::spawn(command, cores, Stream::Out)?;
    let mut printed = String::new();
    child.process.stdout.take().context("its output is piped")?.read_to_string(&mut printed)?;
    let status = child.process.wait()?;
    if !status.success() {
        bail!("{command:?} failed with {status}: {printed}");
    }
    Ok(printed)
}

/// Reads the address from the line that each server here prints.
pub(super) fn listens(line: &str) -> Option<SocketAddr> {
    line.strip_prefix("LISTEN ")?.trim().parse().ok()
}

/// GETs a path without a client library, and returns the body of the answer.
///
/// # Errors
/// When there is no answer with 200.
pub(super) fn get(from: SocketAddr, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(from)?;
    stream.set_read_timeout(Some(LIMIT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {from}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
    if head.split(' ').nth(1) != Some("200") {
        bail!("GET {path}: {head}");
    }
    Ok(body.to_owned())
}

/// Returns the usable cores; read once, before any thread is pinned.
pub(super) fn all_cores() -> Vec<usize> {
    static CORES: std::sync::OnceLock<Vec<usize>> = std::sync::OnceLock::new();
    CORES.get_or_init(machine::cores).clone()
}
