//! `observe`: the events of a cluster as they are stored, through client-go's correlator and a configuration. Writes nothing there.

use std::io::Write as _;
use std::pin::pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use prometheus::Registry;

use super::replay::{Progress, compare};
use super::report::{Compared, finish, length, plural};
use super::{Error, runtime};
use crate::app;
use crate::cli::Observe;
use crate::clock::Clock;
use crate::replay::{Comparison, Seen, Until};
use crate::upstream::apiserver::{self, News};
use crate::upstream::{self, Apiserver};

/// Between two looks of the progress line.
const TICK: Duration = Duration::from_millis(500);

/// `observe`
///
/// # Errors
/// When the configuration is wrong or the cluster cannot be read.
pub fn observe(observe: &Observe) -> Result<(), Error> {
    let mut compared = compare(observe.report.config.as_deref(), None)?;
    runtime()?.block_on(watch(observe, &mut compared))?;
    compared.until = compared.comparison.run_on(Until::Settled);
    compared.notes.push(
        "Seen after the clients' own limits: what client-go never wrote is nowhere. An audit log at level\n\
         Request has each request; replay reads it."
            .to_owned(),
    );
    finish(&compared, &observe.report)
}

async fn watch(observe: &Observe, compared: &mut Compared) -> Result<(), Error> {
    let clock = Clock::system();
    let settings = apiserver::Settings {
        kubeconfig: observe.kubeconfig.clone(),
        context: observe.context.clone(),
        ..apiserver::Settings::default()
    };
    let metrics = upstream::Metrics::new(&Registry::new()).map_err(app::Error::from)?;
    let apiserver = Apiserver::connect(&settings, clock.clone(), metrics).await.map_err(app::Error::from)?;
    let end = async {
        match observe.time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    let end = async {
        tokio::select! {
            () = end => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    follow(apiserver.history_of(observe.namespace.as_deref()), end, observe, &clock, &mut compared.comparison).await
}

/// Reports what is stored from the first whole list on, until `end`.
async fn follow(
    news: impl Stream<Item = News>,
    end: impl Future<Output = ()>,
    observe: &Observe,
    clock: &Clock,
    comparison: &mut Comparison,
) -> Result<(), Error> {
    if !observe.report.quiet {
        drop(writeln!(std::io::stderr(), "observing events; nothing is written to the cluster"));
    }
    let progress = Progress::new(observe.report.quiet);
    let mut seen = Seen::default();
    let (mut is_listed, mut fault) = (false, None);
    let (mut news, mut end, mut ticks) = (pin!(news), pin!(end), tokio::time::interval(TICK));
    loop {
        let news = tokio::select! {
            () = &mut end => break,
            _ = ticks.tick() => {
                let time = length(clock.now().mono.0 / 1_000_000_000);
                progress.show(&format!("  observing, {time}   {}", plural(comparison.sent(), "event")));
                continue;
            }
            news = news.next() => news,
        };
        match news {
            None => break,
            Some(News::Begins) => {}
            Some(News::Complete) => is_listed = true,
            Some(News::Listed(event) | News::Stored(event)) => {
                let occurrences = seen.change(&event);
                // What is there at the beginning happened before.
                if is_listed && occurrences > 0 {
                    comparison.report(*event, occurrences, Some(clock.now().wall));
                }
            }
            Some(News::Gone(event)) => seen.forget(&event),
            Some(News::Trouble { is_forbidden: true, .. }) => {
                let what = observe.namespace.as_ref().map_or_else(
                    || "all namespaces: grant get, list and watch on events, or name one with -n".to_owned(),
                    |name| format!("namespace {name}: grant get, list and watch on events there"),
                );
                return Err(Error::Observe(what));
            }
            Some(News::Trouble { error, .. }) => fault = Some(error),
        }
    }
    progress.end();
    match fault {
        Some(fault) if !is_listed => Err(Error::Observe(format!("the cluster: {fault}"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::event::Event;

    fn stored(name: &str, count: i32) -> Box<Event> {
        let mut event = Event { count, reason: "BackOff".into(), event_type: "Normal".into(), ..Event::default() };
        event.metadata.name = name.into();
        event.metadata.namespace = "default".into();
        event.involved_object.name = name.into();
        event.involved_object.kind = "Pod".into();
        event.involved_object.namespace = "default".into();
        Box::new(event)
    }

    async fn observed(news: Vec<News>) -> (Result<(), Error>, u64) {
        let cli = Cli::try_parse_from(["eventweir", "observe", "-n", "shop", "-q"]).unwrap();
        let Command::Observe(observe) = cli.command else { unreachable!() };
        let mut compared = compare(None, None).unwrap();
        let news = futures_util::stream::iter(news);
        let clock = Clock::manual(1_772_352_000_000_000_000);
        let end = std::future::pending();
        let result = follow(news, end, &observe, &clock, &mut compared.comparison).await;
        assert!(compared.comparison.balances());
        (result, compared.comparison.sent())
    }

    #[tokio::test]
    async fn a_record_brings_as_many_occurrences_as_its_count_grows() {
        let trouble = |is_forbidden| News::Trouble { error: "no".to_owned(), is_forbidden, is_expired: false };
        let news = vec![
            News::Begins,
            News::Listed(stored("old", 5)),
            News::Complete,
            News::Stored(stored("old", 7)),
            News::Stored(stored("new", 1)),
            News::Gone(stored("new", 1)),
            News::Stored(stored("new", 1)),
            News::Begins,
            News::Listed(stored("old", 7)),
            News::Complete,
        ];
        let (result, sent) = observed(news).await;
        assert_eq!((result.is_ok(), sent), (true, 4));
        let (result, _) = observed(vec![trouble(true)]).await;
        assert!(result.unwrap_err().to_string().contains("namespace shop"));
        assert!(observed(vec![News::Begins, trouble(false)]).await.0.is_err());
    }
}
