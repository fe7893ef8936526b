//! Reloads a changed configuration file while the program runs: all of it, or nothing.

use std::time::Duration;

use super::App;
use crate::config::{self, Config, Errors};

/// Time between two checks of the configuration file.
const RELOAD_POLL: Duration = Duration::from_secs(5);

impl App {
    /// Follows the configuration file and requests to reload it, until a new configuration has been applied.
    pub async fn follow_config(&self) {
        let Some(path) = &self.source.path else {
            // Flags do not change, but a requested reload still updates metrics and log.
            loop {
                self.admin.reload_asked().await;
                if self.reload() {
                    return;
                }
            }
        };
        let (mut known, mut is_pressing) = (config::file_hash(path).ok(), false);
        // The hash is newer than the active configuration: it would hide a change in between. A pipe was read at the start
        // only, and is not followed before a file replaces it.
        let mut may_be_behind = !config::is_read_once(path);
        loop {
            if is_pressing || may_be_behind {
                let loaded = self.load();
                may_be_behind = is_unread(&loaded);
                let differs = |new: &Config| !self.config.lock().reload_diff(new).is_empty();
                let is_due = match &loaded {
                    // After a refusal also if it equals the active one, for the metric and the log.
                    Ok(new) => self.metrics.is_config_refused() || differs(new),
                    // Once, and not with each try.
                    Err(_) => !self.metrics.is_config_refused(),
                };
                if (is_pressing || is_due) && self.apply(loaded) {
                    return;
                }
            }
            let asked = tokio::select! {
                () = self.admin.reload_asked() => true,
                () = tokio::time::sleep(RELOAD_POLL) => false,
            };
            let read = config::file_hash(path).ok();
            is_pressing = asked || (read.is_some() && read != known);
            // The next round reports it once, and applies the file when it is back.
            may_be_behind |= read.is_none() && known.is_some();
            // A requested reload is refused without the file, which may come back as it was.
            known = if asked { read } else { read.or(known) };
        }
    }

    /// Loads the configuration again. An invalid one is refused and logged, and the old one stays active.
    pub fn reload(&self) -> bool {
        self.apply(self.load())
    }

    fn load(&self) -> Result<Config, Errors> {
        let active = self.config.lock().clone();
        config::load_again(self.source.path.as_deref(), &self.source.overrides, &active)
    }

    fn apply(&self, loaded: Result<Config, Errors>) -> bool {
        self.reread_files();
        let new = match loaded {
            Ok(new) => new,
            Err(errors) => {
                self.metrics.config_refused();
                tracing::error!(%errors, "the new configuration is refused; the old one stays active");
                return false;
            }
        };
        if self.access.would_open(&new.access) {
            self.metrics.config_refused();
            tracing::error!(
                "the new configuration is refused: without auth.policy every caller could do everything; a restart accepts it"
            );
            return false;
        }
        let mut config = self.config.lock();
        // Keys that need a restart are compared with the start, and logged at every reload until then.
        let at_restart = self.started_with.reload_diff(&new).at_restart;
        if !at_restart.is_empty() {
            tracing::warn!(keys = ?at_restart, "these keys of the configuration apply after a restart");
        }
        // First, because the shards wake delivery, which follows these settings.
        self.delivery.set_settings(new.gate);
        self.shards.reload(&new.shard, new.policy.clone());
        self.shadow.set(new.shadow.clone());
        self.access.reload(&new.access);
        self.metrics.config_loaded(&new.hash(), self.shards.clock().now().wall_seconds());
        self.admin.set_config(shown(&new, &at_restart));
        tracing::info!(keys = ?config.reload_diff(&new).at_run_time, "the configuration was reloaded");
        *config = new;
        true
    }
}

/// Whether files could not be read, for example without a free file descriptor. They are tried again.
fn is_unread(loaded: &Result<Config, Errors>) -> bool {
    loaded.as_ref().is_err_and(|errors| errors.are_of_files())
}

/// Returns the configuration as YAML, with a comment on the keys that are not active yet.
fn shown(config: &Config, at_restart: &[String]) -> String {
    let yaml = config.to_yaml();
    if at_restart.is_empty() {
        yaml
    } else {
        format!("# Not active before a restart: {}\n{yaml}", at_restart.join(", "))
    }
}
