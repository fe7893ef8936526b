//! A changed configuration file is taken over while the program runs: whole, or not at all.

use crate::shadow::Rules;
use std::time::Duration;

use super::App;
use crate::config;

/// How often the configuration file is looked at.
const RELOAD_POLL: Duration = Duration::from_secs(5);

impl App {
    /// Follows the configuration file and requests to reload it, until a new configuration has been taken over.
    pub async fn follow_config(&self) {
        let Some(path) = &self.source.path else {
            // There are flags alone, which do not change; whoever asks is told so by the metrics and the log.
            loop {
                self.admin.reload_asked().await;
                if self.reload() {
                    return;
                }
            }
        };
        let mut stamp = config::FileStamp::of(path).ok();
        // What is in force was loaded before the file was looked at: a change in between would be told by no later look.
        if self.is_behind() && self.reload() {
            return;
        }
        loop {
            let asked = tokio::select! {
                () = self.admin.reload_asked() => true,
                () = tokio::time::sleep(RELOAD_POLL) => false,
            };
            let changed = match &mut stamp {
                Some(stamp) => stamp.refresh(path).unwrap_or(false),
                None => {
                    stamp = config::FileStamp::of(path).ok();
                    stamp.is_some()
                }
            };
            if (asked || changed) && self.reload() {
                return;
            }
        }
    }

    /// Whether the file has a good configuration other than what is in force.
    fn is_behind(&self) -> bool {
        config::load(self.source.path.as_deref(), &self.source.overrides)
            .is_ok_and(|new| !self.config.lock().reload_diff(&new).is_empty())
    }

    /// Loads the configuration again. A bad one is refused and reported, and the old one stays in force.
    pub fn reload(&self) -> bool {
        self.reread_files();
        let new = match config::load(self.source.path.as_deref(), &self.source.overrides) {
            Ok(new) => new,
            Err(errors) => {
                self.metrics.config_refused();
                tracing::error!(%errors, "the new configuration is refused; the old one stays in force");
                return false;
            }
        };
        let mut config = self.config.lock();
        // What a restart would change is told each time until there is one; what applies at once, by what it was before.
        let at_restart = self.started_with.reload_diff(&new).at_restart;
        if !at_restart.is_empty() {
            tracing::warn!(fields = ?at_restart, "these fields of the configuration are not in force; they apply after a restart");
        }
        self.shards.reload(&new.shard, new.policy.clone());
        self.shadow.set(new.shadow.as_ref().map(rules));
        self.monitor.set_settings(new.gate);
        self.access.reload(&new.access);
        self.collector.set_limits(new.shard.clone());
        self.admin.set_limits(new.shard.clone());
        self.metrics.config_loaded(&new.hash(), self.shards.clock().now().wall_seconds());
        self.admin.set_config(shown(&new, &at_restart));
        tracing::info!(fields = ?config.reload_diff(&new).at_run_time, "the configuration was reloaded");
        *config = new;
        true
    }
}

/// What a second configuration is tried with.
pub(super) fn rules(shadow: &config::Shadow) -> Rules {
    let config::Shadow { file, policy, shard } = shadow;
    Rules { file: file.display().to_string(), policy: policy.clone(), settings: shard.clone() }
}

/// The configuration as it is shown, with the fields that are not in force yet.
fn shown(config: &config::Config, at_restart: &[String]) -> String {
    let yaml = config.to_yaml();
    if at_restart.is_empty() {
        yaml
    } else {
        format!("# Not in force before a restart: {}\n{yaml}", at_restart.join(", "))
    }
}
