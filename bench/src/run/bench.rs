//! Parts of every target: the folder of a run, its processes, and one measurement of a server under load.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::Options;
use super::child::{self, Child, Stream, all_cores, listens};
use super::weir::Weir;
use crate::load::Outcome;

/// A run of a target.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    pub(super) options: &'a Options,
    /// Removed at the end.
    pub(super) folder: PathBuf,
    /// Cores of the measured server.
    pub(super) server_cores: Vec<usize>,
    /// Cores of the generator, and of the upstream.
    pub(super) load_cores: Vec<usize>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(options: &'a Options) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("eventweir-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let cores = all_cores();
        let (server_cores, load_cores) = if cores.len() < 2 {
            (cores.clone(), cores)
        } else {
            let (server, load) = cores.split_at(cores.len() / 2);
            (server.to_vec(), load.to_vec())
        };
        println!("server on cores {server_cores:?}, generator and upstream on {load_cores:?}");
        Ok(Self { options, folder, server_cores, load_cores })
    }

    /// Returns a command that runs a part of this program.
    pub(super) fn part(part: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(part);
        Ok(command)
    }

    /// Starts a server, and reads the address that it prints.
    pub(super) fn server(command: &mut Command, cores: &[usize]) -> anyhow::Result<(Child, SocketAddr)> {
        Child::start(command, cores, Stream::Out, listens)
    }

    /// Loads a server with the flags of the run and these.
    pub(super) fn load(&self, to: SocketAddr, watch: &[u32], flags: &str) -> anyhow::Result<Outcome> {
        let mut command = Self::part("load")?;
        // At a fixed rate the generator must never wait for its core, because its delay would count as the server's. In
        // a closed loop, real-time priority would starve the upstream on the same core.
        if flags.contains("--rate") && may_be_real_time() {
            let mut before = Command::new("chrt");
            before.args(["--fifo", "1"]).arg(command.get_program()).args(command.get_args());
            command = before;
        }
        command.args(["--to", &to.to_string(), "--seconds", &self.options.seconds.to_string()]);
        command.args(["--warmup", &self.options.warmup.to_string()]);
        for pid in watch {
            command.args(["--watch", &pid.to_string()]);
        }
        // The last value of a repeated flag counts.
        command.args(flags.split_whitespace());
        let printed = child::output(&mut command, &self.load_cores)?;
        serde_json::from_str(&printed).with_context(|| format!("the generator printed {printed:?}"))
    }

    /// Starts a stub that takes at most `rate` writes per second, and writes its kubeconfig.
    pub(super) fn stub(&self, rate: Option<f64>) -> anyhow::Result<(Child, PathBuf)> {
        let (child, address) = self.upstream(rate)?;
        Ok((child, self.kubeconfig(address)?))
    }

    /// Starts a stub, and returns its address.
    pub(super) fn upstream(&self, rate: Option<f64>) -> anyhow::Result<(Child, SocketAddr)> {
        let mut command = Self::part("stub")?;
        if let Some(rate) = rate {
            command.args(["--rate", &rate.to_string()]);
        }
        Self::server(&mut command, &self.load_cores)
    }

    /// Writes a kubeconfig for this server.
    pub(super) fn kubeconfig(&self, address: SocketAddr) -> anyhow::Result<PathBuf> {
        let path = self.folder.join("stub.kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: stub\nclusters:\n- {{name: stub, cluster: {{server: \"http://{address}\"}}}}\n\
             contexts:\n- {{name: stub, context: {{cluster: stub, user: stub}}}}\nusers:\n- {{name: stub, user: {{}}}}\n"
        );
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Starts a build of eventweir with the server of a kubeconfig as its upstream.
    pub(super) fn weir(&self, program: &Path, kubeconfig: &Path, config: &str) -> anyhow::Result<Weir> {
        Weir::start(program, &self.folder, kubeconfig, config, &self.server_cores)
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // A leftover folder in the temporary directory is harmless.
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// Whether this process may start programs with real-time priority: as root, with util-linux.
fn may_be_real_time() -> bool {
    static MAY: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *MAY.get_or_init(|| {
        let tried = Command::new("chrt").args(["--fifo", "1", "true"]).stderr(std::process::Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    })
}
