//! `top`: the noisiest, live in the terminal.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use serde_json::Value;

use super::keys::Keys;
use super::look::{Server, WIDTH};
use super::report::thousands;
use super::{Error, print, table};
use crate::cli::{By, Format, Top};
use crate::explain::clean;

/// What the keys are, under a live table.
const HELP: &str = "o object  r reason  c component  n namespace  t next  s sort  S reverse  p pause  q quit";

/// The numbers that rows can be sorted by, and their names.
const COLUMNS: [(&str, &str); 4] =
    [("received", "RECV 1h"), ("perSecond", "RECV/s"), ("writes", "WRITES 1h"), ("lost", "LOST")];

/// Which table is shown, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct View {
    by: By,
    /// The number that rows are sorted by; one behind the last are the names.
    sort: usize,
    is_reversed: bool,
    is_paused: bool,
}

/// Whether a key ends it.
type Flow = std::ops::ControlFlow<()>;

impl View {
    const fn new(by: By) -> Self {
        Self { by, sort: 0, is_reversed: false, is_paused: false }
    }

    fn press(&mut self, key: u8) -> Flow {
        let next = |by| match by {
            By::Object | By::Type => By::Reason,
            By::Reason => By::Component,
            By::Component => By::Namespace,
            By::Namespace => By::Object,
        };
        match key {
            b'q' => return Flow::Break(()),
            b'o' => self.by = By::Object,
            b'r' => self.by = By::Reason,
            b'c' => self.by = By::Component,
            b'n' => self.by = By::Namespace,
            b't' | b'\t' => self.by = next(self.by),
            b's' => self.sort = (self.sort + 1) % (COLUMNS.len() + 1),
            b'S' => self.is_reversed = !self.is_reversed,
            b'p' | b' ' => self.is_paused = !self.is_paused,
            _ => {}
        }
        Flow::Continue(())
    }

    fn sorted_by(&self) -> &'static str {
        COLUMNS.get(self.sort).map_or("name", |(_, name)| name)
    }

    fn sort(&self, rows: &mut [Value]) {
        let number = |row: &Value, member: &str| row[member].as_f64().unwrap_or_default();
        let name =
            |row: &Value| ["namespace", "object", "name", "reason"].map(|part| row[part].as_str().map(str::to_owned));
        rows.sort_by(|one, other| match COLUMNS.get(self.sort) {
            Some((member, _)) => number(other, member).total_cmp(&number(one, member)),
            None => name(one).cmp(&name(other)),
        });
        if self.is_reversed {
            rows.reverse();
        }
    }
}

/// `top`
///
/// # Errors
/// When the server does not answer.
pub fn top(top: &Top) -> Result<(), Error> {
    let (server, runtime) = Server::of(&top.remote)?;
    let is_live = std::io::stdout().is_terminal() && !top.once && top.output == Format::Table;
    let namespace = top.namespace.clone().unwrap_or_default();
    let ended = runtime.block_on(async {
        let mut view = View::new(top.by);
        let document = server.document("top", &[("namespace", &namespace)]).await?;
        if !is_live {
            return match top.output {
                Format::Json => print(&format!("{document:#}\n")),
                Format::Yaml => print(&serde_saphyr::to_string(&document).unwrap_or_default()),
                Format::Table => print(&toplist(&document, top.top, view)),
            };
        }
        live(&server, &namespace, top, &mut view, document).await
    });
    // A thread may wait for a key.
    runtime.shutdown_background();
    ended
}

/// Shows one table after the other until `q` or Ctrl-C.
async fn live(server: &Server, namespace: &str, top: &Top, view: &mut View, first: Value) -> Result<(), Error> {
    let (mut keys, mut document) = (Keys::open(), first);
    loop {
        let state = if view.is_paused { "  PAUSED" } else { "" };
        let help = if keys.is_some() { format!("\n{HELP}\n") } else { String::new() };
        let text = toplist(&document, top.top, *view);
        print(&format!("\u{1b}[H\u{1b}[2J{text}\nsorted by {}{state}{help}", view.sorted_by()))?;
        drop(std::io::stdout().flush());
        let key = async {
            match &mut keys {
                Some(keys) => keys.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(top.interval.max(Duration::from_millis(500))), if !view.is_paused => {
                document = server.document("top", &[("namespace", namespace)]).await?;
            }
            key = key => if view.press(key).is_break() {
                return Ok(());
            },
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

/// The tables of `top`.
fn toplist(document: &Value, most: usize, view: View) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let whole = |value: &Value| thousands(value.as_u64().unwrap_or_default());
    let saved = 100.0 * (1.0 - number(&document["writtenLastHour"]) / number(&document["receivedLastHour"]).max(1.0));
    let mut text = format!(
        "received {:.1}/s   written {:.2}/s   saved {saved:.1} % of last hour   not shown yet {}\n",
        number(&document["receivedPerSecond"]),
        number(&document["writtenPerSecond"]),
        whole(&document["unseen"]["facts"]),
    );
    for what in ["waiting", "lost", "rejected"] {
        let Some(members) = document["account"][what].as_object() else { continue };
        let all = members.iter().map(|(why, number)| format!("{why} {number}")).collect::<Vec<_>>().join(", ");
        text += &format!("{what} {}\n", if all.is_empty() { "0" } else { &all });
    }
    let (member, is_object) = match view.by {
        By::Object | By::Type => ("objects", true),
        By::Reason => ("reasons", false),
        By::Component => ("components", false),
        By::Namespace => ("namespaces", false),
    };
    let mut rows = document[member].as_array().cloned().unwrap_or_default();
    view.sort(&mut rows);
    let rows = rows.iter().take(if most == 0 { usize::MAX } else { most }).map(|row| {
        let cell = |member: &str| clean(row[member].as_str().unwrap_or_default(), WIDTH);
        let mut cells = match is_object {
            true => vec![format!("{} {}", cell("namespace"), cell("object")), cell("reason")],
            false => vec![cell("name")],
        };
        cells.extend([format!("{:.1}", number(&row["perSecond"])), whole(&row["received"]), whole(&row["writes"])]);
        if is_object {
            cells.push(whole(&row["lost"]));
        }
        cells
    });
    let headings: &[&str] = match is_object {
        true => &["OBJECT", "REASON", "RECV/s", "RECV 1h", "WRITES 1h", "LOST"],
        false => &["NAME", "RECV/s", "RECV 1h", "WRITES 1h"],
    };
    text + "\n" + &table::render(headings, if is_object { 2 } else { 1 }, &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_choose_the_table_and_its_order() {
        let row =
            |name: &str, received: u64, writes: u64| json!({ "name": name, "received": received, "writes": writes });
        let document = json!({ "reasons": [row("BackOff", 30, 1), row("Pulled", 20, 9), row("Alarm", 10, 5)] });
        let mut view = View::new(By::Object);
        let order = |view: View| {
            let text = toplist(&document, 0, view);
            let names = ["BackOff", "Pulled", "Alarm"];
            let mut found: Vec<_> = names.into_iter().filter_map(|name| Some((text.find(name)?, name))).collect();
            found.sort_unstable();
            found.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
        };
        assert_eq!(order(view), [] as [&str; 0]);
        assert!(view.press(b't').is_continue());
        assert_eq!((view.by, order(view)), (By::Reason, vec!["BackOff", "Pulled", "Alarm"]));
        for _ in 0..2 {
            assert!(view.press(b's').is_continue());
        }
        assert_eq!((view.sorted_by(), order(view)), ("WRITES 1h", vec!["Pulled", "Alarm", "BackOff"]));
        assert!(view.press(b'S').is_continue());
        assert_eq!(order(view), ["BackOff", "Alarm", "Pulled"]);
        assert!(view.press(b'S').is_continue() && view.press(b's').is_continue() && view.press(b's').is_continue());
        assert_eq!((view.sorted_by(), order(view)), ("name", vec!["Alarm", "BackOff", "Pulled"]));
        assert!(view.press(b' ').is_continue() && view.is_paused);
        for (key, by) in [(b'n', By::Namespace), (b'c', By::Component), (b'r', By::Reason), (b'o', By::Object)] {
            assert!(view.press(key).is_continue() && view.by == by);
        }
        assert!(view.press(b'x').is_continue() && view.press(b'q').is_break());
    }
}
