//! Text tables: texts are aligned left, numbers right.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::explain::clean;

/// Columns of the narrowest terminal that tables are made for.
pub(super) const WIDTH: usize = 80;

/// Columns to which a text is cut at most.
const LEAST: usize = 8;

/// Renders rows under headings; each column is as wide as its widest cell. In more than `width` columns, the widest
/// texts are cut; numbers are never cut.
pub(super) fn render(width: usize, headings: &[&str], left_columns: usize, rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.width()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    while widths.iter().map(|width| width + 3).sum::<usize>() - 1 > width {
        let Some(widest) = widths.iter_mut().take(left_columns).max().filter(|widest| **widest > LEAST) else { break };
        *widest -= 1;
    }
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut rendered = String::new();
        for (index, (cell, width)) in cells.zip(&widths).enumerate() {
            let cell = if index < left_columns { &clean(&cut(cell, *width), usize::MAX) } else { cell };
            let padding = " ".repeat(width.saturating_sub(cell.width()));
            rendered.push_str(if index == 0 { "  " } else { "   " });
            if index < left_columns {
                rendered.push_str(cell);
                rendered.push_str(&padding);
            } else {
                rendered.push_str(&padding);
                rendered.push_str(cell);
            }
        }
        text.push_str(rendered.trim_end());
        text.push('\n');
    };
    line(&mut headings.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// Removes the columns of these headings that have no value in any row.
pub(super) fn without_empty<'a>(headings: &[&'a str], optional: &[&str], rows: &mut [Vec<String>]) -> Vec<&'a str> {
    let is_empty = |rows: &[Vec<String>], column: usize| rows.iter().all(|row| matches!(&*row[column], "" | "-" | "0"));
    let mut left = headings.to_vec();
    for name in optional {
        if let Some(column) = left.iter().position(|heading| heading == name).filter(|column| is_empty(rows, *column)) {
            left.remove(column);
            rows.iter_mut().for_each(|row| drop(row.remove(column)));
        }
    }
    left
}

/// Cuts a text to at most `width` columns of a terminal.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let fits = |letter: &char| {
        let left = room.checked_sub(letter.width().unwrap_or_default());
        room = left.unwrap_or_default();
        left.is_some()
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Wraps words into lines of at most [`WIDTH`] columns.
pub(super) fn wrap(text: &str) -> String {
    let (mut wrapped, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let width = word.width();
        let breaks = column > 0 && column + 1 + width > WIDTH;
        wrapped.push_str(if column == 0 {
            ""
        } else if breaks {
            "\n"
        } else {
            " "
        });
        wrapped.push_str(word);
        column = if breaks || column == 0 { width } else { column + 1 + width };
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_and_numbers_are_not() {
        let rows = [vec!["a".repeat(20), "b".repeat(12), "1000000".to_owned()]];
        let text = render(36, &["x", "y", "n"], 2, &rows);
        assert_eq!(text, "  x             y                  n\n  aaaaaaaaaa…   bbbbbbbbb…   1000000\n");
    }

    #[test]
    fn columns_line_up_in_any_script() {
        let rows =
            ["abcd", "漢字", "e\u{301}\u{200b}bcd", "漢字ポッド"].map(|name| vec![name.to_owned(), "1".to_owned()]);
        let text = render(11, &["x", "n"], 1, &rows);
        assert_eq!(
            text,
            "  x          n\n  abcd       1\n  漢字       1\n  e\u{301}\u{200b}bcd       1\n  漢字ポ…    1\n"
        );
    }

    #[test]
    fn words_stay_whole() {
        let text = ["word"; 40].join(" ");
        assert!(wrap(&text).lines().all(|line| line.len() <= WIDTH && line.ends_with("word")));
        assert_eq!(wrap(&text).replace('\n', " "), text);
    }
}
