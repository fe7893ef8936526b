//! `top`: shows the noisiest objects, reasons, components or namespaces, live in the terminal.

use std::io::IsTerminal as _;
use std::time::Duration;

use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use unicode_width::UnicodeWidthChar as _;

use super::explain::{WIDTH, explained, print_tap};
use super::keys::{Key, Keys, size};
use super::remote::Server;
use super::report::thousands;
use super::{Error, print, print_document, printable, table, write};
use crate::cli::{By, Format, Top};
use crate::explain::{Order, Window, clean, saved};

/// Help for the keys, below a live table.
const HELP: &str = "o object  r reason  c component  n namespace  tab next  1 2 3 last 1m, 10m, 1h\n\
    q quit  j k move  enter explain  t tap  / filter  s sort  S reverse  p pause";

/// Lines of the screen that are neither rows of the table nor help, with the empty one of the cursor.
const FRAME: usize = 9;

/// LIMIT: characters of a filter; further ones are ignored.
const FILTER: usize = 60;

/// Escape sequence that clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Heading of the losses, which are not those of the window.
const LOST: &str = "LOST IN ALL";

/// Numbers by which rows can be sorted, with their headings.
const COLUMNS: [(Order, &str); 4] =
    [(Order::Received, "RECV"), (Order::PerSecond, "RECV/s"), (Order::Writes, "WRITES"), (Order::Lost, LOST)];

/// A table: its key, its rows' member of the answer, and the query of a row by the row's members.
type Table = (char, By, &'static str, &'static [(&'static str, &'static str)]);

const TABLES: [Table; 4] = [
    ('o', By::Object, "objects", &[("namespace", "namespace"), ("object", "object"), ("reason", "reason")]),
    ('r', By::Reason, "reasons", &[("reason", "name")]),
    ('c', By::Component, "components", &[("source", "name")]),
    ('n', By::Namespace, "namespaces", &[("namespace", "name")]),
];

/// The table that is shown, and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
struct View {
    by: By,
    window: Window,
    /// Text that rows must contain.
    filter: String,
    /// The filter while it is being typed.
    typed: Option<String>,
    /// Index of the sort number in `COLUMNS`; the next index after the last sorts by name.
    sort: usize,
    is_reversed: bool,
    is_paused: bool,
    /// The selected row.
    marked: usize,
}

/// The effect of a key.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Draw,
    /// Query the server again.
    Look,
    Explain,
    Tap,
    End,
}

impl View {
    const fn new(by: By, window: Window, filter: String) -> Self {
        Self { by, window, filter, typed: None, sort: 0, is_reversed: false, is_paused: false, marked: 0 }
    }

    /// Sorts by a number, if the table has it.
    fn sorted(self, order: Order) -> Result<Self, Error> {
        let sort = COLUMNS.iter().position(|(known, _)| *known == order).filter(|_| self.has(order));
        let without = || Error::Input(format!("--sort {}: only the table of objects has this number", order.label()));
        Ok(Self { sort: sort.ok_or_else(without)?, ..self })
    }

    /// Applies a key, with this many rows in the table.
    fn press(&mut self, key: Key, rows: usize) -> Action {
        if let Some(typed) = self.typed.take() {
            return self.type_on(typed, key);
        }
        match key {
            Key::Up | Key::Letter('k') => self.marked = self.marked.saturating_sub(1),
            Key::Down | Key::Letter('j') => self.marked = (self.marked + 1).min(rows.saturating_sub(1)),
            Key::Enter => return Action::Explain,
            Key::Escape => return self.look_for(String::new()),
            Key::Letter('q') => return Action::End,
            Key::Letter('t') => return Action::Tap,
            Key::Letter('\t') => return self.show(TABLES[(self.place() + 1) % TABLES.len()].1),
            Key::Letter('1') => return self.look_at(Window::Minute),
            Key::Letter('2') => return self.look_at(Window::TenMinutes),
            Key::Letter('3') => return self.look_at(Window::Hour),
            Key::Letter('/') => self.typed = Some(String::new()),
            Key::Letter('s') => return self.sort_by(self.sort + 1),
            Key::Letter('S') => self.is_reversed = !self.is_reversed,
            Key::Letter('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Letter(letter) => {
                if let Some((_, by, ..)) = TABLES.into_iter().find(|(key, ..)| *key == letter) {
                    return self.show(by);
                }
            }
            Key::Erase | Key::Resized => {}
        }
        Action::Draw
    }

    /// Applies a key to the filter that is being typed.
    fn type_on(&mut self, mut typed: String, key: Key) -> Action {
        match key {
            Key::Enter => return self.look_for(typed),
            Key::Escape => return Action::Draw,
            Key::Letter(letter) if !letter.is_control() && typed.len() < FILTER => typed.push(letter),
            Key::Erase => drop(typed.pop()),
            Key::Letter(_) | Key::Up | Key::Down | Key::Resized => {}
        }
        self.typed = Some(typed);
        Action::Draw
    }

    fn show(&mut self, by: By) -> Action {
        (self.by, self.marked) = (by, 0);
        if self.has(self.order()) { Action::Draw } else { self.sort_by(0) }
    }

    /// Sorts by the number at this index of `COLUMNS`, or by the next that the table has. The server has chosen the rows
    /// by the number before.
    fn sort_by(&mut self, sort: usize) -> Action {
        self.sort = sort % (COLUMNS.len() + 1);
        if self.has(self.order()) { Action::Look } else { self.sort_by(self.sort + 1) }
    }

    /// Returns the number by which the server chooses the rows.
    fn order(&self) -> Order {
        COLUMNS.get(self.sort).map_or(Order::Received, |(order, _)| *order)
    }

    /// Whether the table has this number.
    fn has(&self, order: Order) -> bool {
        self.is_of_objects() || order != Order::Lost
    }

    fn look_at(&mut self, window: Window) -> Action {
        (self.window, self.marked) = (window, 0);
        Action::Look
    }

    fn look_for(&mut self, filter: String) -> Action {
        (self.filter, self.marked) = (filter, 0);
        Action::Look
    }

    fn sorted_by(&self) -> String {
        COLUMNS.get(self.sort).map_or("name".to_owned(), |(order, _)| self.heading(*order))
    }

    fn heading(&self, order: Order) -> String {
        let name = COLUMNS.into_iter().find(|(known, _)| *known == order).map_or("", |(_, name)| name);
        let is_of_window = matches!(order, Order::Received | Order::Writes);
        if is_of_window { format!("{name} {}", self.window.label()) } else { name.to_owned() }
    }

    /// Returns the index of the table in `TABLES`.
    fn place(&self) -> usize {
        TABLES.iter().position(|(_, by, ..)| *by == self.by).unwrap_or(0)
    }

    fn is_of_objects(&self) -> bool {
        self.place() == 0
    }

    fn rows(&self, document: &Value, most: usize) -> Vec<Value> {
        let mut rows = document[TABLES[self.place()].2].as_array().cloned().unwrap_or_default();
        let number = |row: &Value, member: &str| row[member].as_f64().unwrap_or_default();
        let name =
            |row: &Value| ["namespace", "object", "name", "reason"].map(|part| row[part].as_str().map(str::to_owned));
        rows.sort_by(|one, other| match COLUMNS.get(self.sort) {
            Some((order, _)) => number(other, order.label()).total_cmp(&number(one, order.label())),
            None => name(one).cmp(&name(other)),
        });
        if self.is_reversed {
            rows.reverse();
        }
        rows.truncate(if most == 0 { usize::MAX } else { most });
        rows
    }

    /// Renders these rows in a table of at most `columns`, with at most `width` characters of each text.
    fn table(&self, rows: &[Value], columns: usize, width: usize) -> String {
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        let whole = |value: &Value| thousands(value.as_u64().unwrap_or_default());
        let rows = rows.iter().map(|row| {
            let cell = |member: &str| clean(row[member].as_str().unwrap_or_default(), width);
            let mut cells = match self.is_of_objects() {
                true => vec![format!("{} {}", cell("namespace"), cell("object")), cell("reason")],
                false => vec![cell("name")],
            };
            cells.extend([format!("{:.1}", number(&row["perSecond"])), whole(&row["received"]), whole(&row["writes"])]);
            if self.is_of_objects() {
                cells.push(whole(&row["lost"]));
            }
            cells
        });
        let [received, writes] = [Order::Received, Order::Writes].map(|order| self.heading(order));
        let headings: &[&str] = match self.is_of_objects() {
            true => &["OBJECT", "REASON", "RECV/s", &received, &writes, LOST],
            false => &["NAME", "RECV/s", &received, &writes],
        };
        table::render(columns, headings, if self.is_of_objects() { 2 } else { 1 }, &rows.collect::<Vec<_>>())
    }

    /// Renders one screen of this size: the page of rows with the selected one, and the help.
    fn screen(&self, document: &Value, rows: &[Value], (columns, lines): (usize, usize), help: &str) -> String {
        let room = lines.saturating_sub(FRAME + help.lines().count()).max(1);
        let first = self.marked / room * room;
        let shown = rows.get(first..rows.len().min(first + room)).unwrap_or_default();
        let mut text = totals(document) + "\n";
        for (number, line) in self.table(shown, columns, WIDTH).lines().enumerate() {
            let is_marked = number > 0 && first + number - 1 == self.marked;
            text += &if is_marked { line.replacen("  ", "> ", 1) } else { line.to_owned() };
            text.push('\n');
        }
        let state = if self.is_paused { "  PAUSED" } else { "" };
        let filter = match (&self.typed, self.filter.as_str()) {
            (Some(typed), _) => format!("  filter: {typed}_"),
            (None, "") => String::new(),
            (None, filter) => format!("  filter: {}", clean(filter, FILTER)),
        };
        text += &format!("\nsorted by {}{filter}{state}\n{help}", self.sorted_by());
        // A longer line would fold, and move the first ones out of sight.
        text.lines().map(|line| table::cut(line, columns)).collect::<Vec<_>>().join("\n")
    }

    /// Returns the query of a row for `explain` or the tap; `None` for a row that sums up several.
    fn question<'a>(&self, row: &'a Value) -> Option<Vec<(&'static str, &'a str)>> {
        let text = |member: &str| row[member].as_str().filter(|text| !text.starts_with('('));
        TABLES[self.place()].3.iter().map(|(parameter, member)| Some((*parameter, text(member)?))).collect()
    }
}

/// Runs `top`.
///
/// # Errors
/// When the server does not answer.
pub fn top(top: &Top) -> Result<(), Error> {
    let (server, runtime) = Server::of(&top.remote)?;
    let is_live = std::io::stdout().is_terminal() && !top.once && top.output == Format::Table;
    let window = Window::parse(&top.window).map_err(Error::Input)?;
    let order = Order::parse(&top.sort).map_err(Error::Input)?;
    let view = View::new(top.by, window, top.filter.clone().unwrap_or_default()).sorted(order)?;
    let ended = runtime.block_on(async {
        if is_live {
            let handled = signal(SignalKind::terminate());
            let mut terminate = handled.map_err(|source| Error::Io { what: "handling SIGTERM".to_owned(), source })?;
            return tokio::select! {
                // First, so that a signal never ends the program before the terminal is restored.
                biased;
                _ = tokio::signal::ctrl_c() => Ok(()),
                _ = terminate.recv() => Ok(()),
                ended = live(&server, top, view) => ended,
            };
        }
        let document = look(&server, top, &view).await?;
        match top.output {
            Format::Json => print_document(&format!("{document:#}\n")),
            Format::Yaml => print_document(&serde_saphyr::to_string(&document).unwrap_or_default()),
            Format::Table | Format::Wide => {
                let rows = view.rows(&document, top.top);
                let width = if top.output == Format::Wide { usize::MAX } else { WIDTH };
                print(&format!("{}\n{}", totals(&document), view.table(&rows, usize::MAX, width)))
            }
        }
    });
    // Does not wait for the thread that reads keys.
    runtime.shutdown_background();
    ended
}

async fn look(server: &Server, top: &Top, view: &View) -> Result<Value, Error> {
    let namespace = top.namespace.as_deref().unwrap_or_default();
    let (window, sort) = (view.window.label(), view.order().label());
    let query = [("namespace", namespace), ("window", window), ("filter", &view.filter), ("sort", sort)];
    server.document("top", &query).await
}

async fn pressed(keys: &mut Option<Keys>) -> Key {
    match keys {
        Some(keys) => keys.next().await,
        None => std::future::pending().await,
    }
}

fn draw(text: &str) -> Result<(), Error> {
    write(&format!("{CLEAR}{}\n", printable(text)))
}

/// Refreshes the table until `q`. Once a table is shown, a request that fails is reported below it and tried again.
/// Dropping this restores the terminal.
async fn live(server: &Server, top: &Top, mut view: View) -> Result<(), Error> {
    let (mut keys, mut document) = (Keys::open(), look(server, top, &view).await?);
    let (pause, mut fault) = (top.interval.max(Duration::from_millis(500)), None);
    loop {
        let rows = view.rows(&document, top.top);
        view.marked = view.marked.min(rows.len().saturating_sub(1));
        let help = if keys.is_some() { HELP } else { "" };
        let below = fault.take().map_or_else(|| help.to_owned(), |fault: Error| format!("{fault}\n{help}"));
        draw(&view.screen(&document, &rows, size(), &below))?;
        let action = tokio::select! {
            () = tokio::time::sleep(pause), if !view.is_paused => Action::Look,
            key = pressed(&mut keys) => view.press(key, rows.len()),
        };
        let question = rows.get(view.marked).and_then(|row| view.question(row));
        let mut looks = action == Action::Look;
        match (action, question) {
            (Action::End, _) => return Ok(()),
            (Action::Explain, Some(question)) if view.is_of_objects() => {
                match server.document("explain", &question).await {
                    Ok(known) => read(&explained(&known, WIDTH), &mut keys).await?,
                    Err(error) => fault = Some(error),
                }
            }
            // Lists the objects with this reason, component or namespace.
            (Action::Explain, Some(question)) => {
                view.filter = question[0].1.to_owned();
                view.show(By::Object);
                looks = true;
            }
            (Action::Tap, Some(question)) => {
                draw("Press any key to go back.")?;
                let question: Vec<_> = question.into_iter().chain([("max-rate", "100")]).collect();
                tokio::select! {
                    ended = print_tap(server, &question, Format::Table, None) => fault = ended.err(),
                    () = async { while pressed(&mut keys).await == Key::Resized {} } => {}
                }
            }
            (Action::Draw | Action::Look | Action::Explain | Action::Tap, _) => {}
        }
        if looks {
            match look(server, top, &view).await {
                Ok(new) => document = new,
                Err(error) => fault = Some(error),
            }
        }
    }
}

/// Shows a text until a key that does not scroll it.
async fn read(text: &str, keys: &mut Option<Keys>) -> Result<(), Error> {
    let mut first = 0;
    loop {
        let (columns, height) = size();
        let lines = folded(text, columns);
        let room = height.saturating_sub(3).max(1);
        first = first.min(lines.len().saturating_sub(room));
        let shown: Vec<&str> = lines.iter().skip(first).take(room).map(String::as_str).collect();
        draw(&format!("{}\n\nj k scroll  any other key goes back", shown.join("\n")))?;
        match pressed(keys).await {
            Key::Down | Key::Letter('j') => first += 1,
            Key::Up | Key::Letter('k') => first = first.saturating_sub(1),
            Key::Resized => {}
            Key::Letter(_) | Key::Enter | Key::Escape | Key::Erase => return Ok(()),
        }
    }
}

/// Folds a text into lines of at most `columns`.
fn folded(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let (mut part, mut width) = (String::new(), 0);
        for letter in line.chars() {
            width += letter.width().unwrap_or_default();
            if width > columns && !part.is_empty() {
                lines.push(std::mem::take(&mut part));
                width = letter.width().unwrap_or_default();
            }
            part.push(letter);
        }
        lines.push(part);
    }
    lines
}

/// Formats the totals above the table.
fn totals(document: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let (received, written) = (number(&document["receivedLastHour"]), number(&document["writtenLastHour"]));
    let mut text = if document["enabled"] == false {
        "explain.enabled is false: the server keeps no rates and no tables\n".to_owned()
    } else {
        format!(
            "received {:.2}/s   written {:.2}/s   saved {} of last hour   not shown yet {}\n",
            number(&document["receivedPerSecond"]),
            number(&document["writtenPerSecond"]),
            saved(received, written),
            thousands(document["unseen"]["facts"].as_u64().unwrap_or_default()),
        )
    };
    for what in ["waiting", "lost", "rejected"] {
        let Some(members) = document["ledger"][what].as_object() else { continue };
        let all = members.iter().map(|(why, number)| format!("{why} {number}")).collect::<Vec<_>>().join(", ");
        text += &format!("{what} {}\n", if all.is_empty() { "0" } else { &all });
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const fn view(by: By) -> View {
        View::new(by, Window::Hour, String::new())
    }

    fn press(view: &mut View, keys: &str) -> Action {
        let mut action = Action::Draw;
        for letter in keys.chars() {
            action = view.press(if letter == '\n' { Key::Enter } else { Key::Letter(letter) }, 3);
        }
        action
    }

    #[test]
    fn keys_choose_the_table_and_its_order() {
        let row =
            |name: &str, received: u64, writes: u64| json!({ "name": name, "received": received, "writes": writes });
        let document = json!({ "reasons": [row("BackOff", 30, 1), row("Pulled", 20, 9), row("Alarm", 10, 5)] });
        let mut view = view(By::Object);
        let order = |view: &View| {
            let rows = view.rows(&document, 0);
            rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(order(&view), [""; 0]);
        press(&mut view, "\t");
        assert_eq!((view.by, order(&view)), (By::Reason, ["BackOff", "Pulled", "Alarm"].map(str::to_owned).into()));
        press(&mut view, "ss");
        assert_eq!(
            (&*view.sorted_by(), &*order(&view)),
            ("WRITES 1h", &["Pulled", "Alarm", "BackOff"].map(str::to_owned)[..])
        );
        press(&mut view, "S");
        assert_eq!(order(&view), ["BackOff", "Alarm", "Pulled"]);
        press(&mut view, "Ss");
        assert_eq!(
            (&*view.sorted_by(), &*order(&view)),
            ("name", &["Alarm", "BackOff", "Pulled"].map(str::to_owned)[..])
        );
        press(&mut view, " ");
        assert!(view.is_paused);
        for (key, by) in [("n", By::Namespace), ("c", By::Component), ("r", By::Reason), ("o", By::Object)] {
            press(&mut view, key);
            assert_eq!(view.by, by);
        }
        assert_eq!((press(&mut view, "x"), press(&mut view, "q")), (Action::Draw, Action::End));
        // Fault: rows were sorted only among those that the server had chosen by another number.
        assert_eq!((press(&mut view, "s"), view.order()), (Action::Look, Order::Received));
        assert_eq!((press(&mut view, "sss"), view.order()), (Action::Look, Order::Lost));
        // Fault: other tables were sorted by losses, which they do not have.
        assert_eq!((press(&mut view, "r"), view.order()), (Action::Look, Order::Received));
        assert_eq!((press(&mut view, "sss"), &*view.sorted_by()), (Action::Look, "name"));
        assert_eq!(press(&mut view, "c"), Action::Draw);
    }

    #[test]
    fn digits_choose_the_window_and_a_slash_begins_a_filter() {
        let mut view = view(By::Object);
        for (key, window) in [("1", "RECV 1m"), ("2", "RECV 10m"), ("3", "RECV 1h")] {
            assert_eq!((press(&mut view, key), &*view.sorted_by()), (Action::Look, window));
        }
        assert_eq!((press(&mut view, "/qo1"), &*view.filter), (Action::Draw, ""));
        assert_eq!(view.press(Key::Erase, 3), Action::Draw);
        assert_eq!((press(&mut view, "\n"), &*view.filter, view.by), (Action::Look, "qo", By::Object));
        assert_eq!(
            (press(&mut view, "/x"), view.press(Key::Escape, 3), &*view.filter),
            (Action::Draw, Action::Draw, "qo")
        );
        assert_eq!((view.press(Key::Escape, 3), &*view.filter), (Action::Look, ""));
    }

    #[test]
    fn the_marked_row_is_the_one_that_is_explained() {
        let row = |name: &str| json!({ "namespace": "shop", "object": format!("Pod/{name}"), "reason": "BackOff", "received": 1 });
        let document = json!({ "objects": [row("a"), row("b"), row("c")], "components": [{ "name": "kubelet" }, { "name": "(others)" }] });
        let mut view = view(By::Object);
        let marked = |view: &View, lines: usize| {
            let text = view.screen(&document, &view.rows(&document, 0), (80, lines), HELP);
            assert!(text.lines().count() < lines.max(12), "{text}");
            text.lines().find(|line| line.starts_with('>')).map(|line| line[2..12].to_owned())
        };
        let narrow = view.screen(&document, &view.rows(&document, 0), (20, 24), HELP);
        assert!(narrow.lines().all(|line| line.chars().count() <= 20), "{narrow}");
        assert_eq!(marked(&view, 24).as_deref(), Some("shop Pod/a"));
        // The end of the last line would otherwise move the first line out of sight.
        let ledger = json!({ "waiting": {}, "lost": {}, "rejected": {} });
        let full = json!({ "ledger": ledger, "objects": vec![row("a"); 30] });
        for help in [HELP, "a fault\n", ""] {
            assert_eq!(
                view.screen(&full, &view.rows(&full, 0), (80, 24), help).trim_end().lines().count(),
                23,
                "{help}"
            );
        }
        assert_eq!(press(&mut view, "jjjj"), Action::Draw);
        assert_eq!(marked(&view, 24).as_deref(), Some("shop Pod/c"));
        assert_eq!(marked(&view, 11).as_deref(), Some("shop Pod/c"), "there is room for one row");
        press(&mut view, "k");
        let rows = view.rows(&document, 0);
        assert_eq!(press(&mut view, "\n"), Action::Explain);
        let question = [("namespace", "shop"), ("object", "Pod/b"), ("reason", "BackOff")];
        assert_eq!(view.question(&rows[view.marked]).unwrap(), question);
        press(&mut view, "c");
        let rows = view.rows(&document, 0);
        assert_eq!(view.question(&rows[0]), Some(vec![("source", "kubelet")]));
        assert_eq!(view.question(&rows[1]), None);
        assert_eq!(press(&mut view, "t"), Action::Tap);
    }

    #[test]
    fn a_few_events_an_hour_are_not_none() {
        let document = json!({ "receivedPerSecond": 0.03, "writtenPerSecond": 0.02 });
        assert!(totals(&document).starts_with("received 0.03/s   written 0.02/s   "));
    }

    /// Fault: with `explain.enabled: false`, rates and the noisiest objects seemed to be zero.
    #[test]
    fn rates_that_are_not_recorded_are_not_zero() {
        let document = json!({ "enabled": false, "receivedPerSecond": 0.0, "ledger": { "lost": { "expired": 1 } } });
        let text = totals(&document);
        assert!(text.starts_with("explain.enabled is false: ") && !text.contains("0.00/s"), "{text}");
        assert!(text.ends_with("lost expired 1\n"), "{text}");
    }

    /// Fault: the column seemed to be of the window, as the others.
    #[test]
    fn losses_are_named_those_since_the_start() {
        let row = json!({ "namespace": "shop", "object": "Pod/a", "reason": "R", "lost": 3 });
        let mut view = view(By::Object);
        let table = view.table(&[row], 100, WIDTH);
        assert!(table.lines().next().unwrap().ends_with("WRITES 1h   LOST IN ALL"), "{table}");
        press(&mut view, "sss");
        assert_eq!(view.sorted_by(), "LOST IN ALL");
    }

    #[test]
    fn long_lines_are_folded() {
        assert_eq!(folded("abcde\n\nf", 2), ["ab", "cd", "e", "", "f"]);
        assert_eq!(folded("a漢字e\u{301}b", 2), ["a", "漢", "字", "e\u{301}b"]);
    }
}
