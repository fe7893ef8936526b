//! Tables for people: the first column to the left, numbers to the right.

/// Rows under headings; columns as wide as their widest cell.
pub(super) fn render(headings: &[&str], left_columns: usize, rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut rendered = String::new();
        for (index, (cell, width)) in cells.zip(&widths).enumerate() {
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "10".to_owned()], vec!["long".to_owned(), "5".to_owned()]];
        assert_eq!(render(&["what", "n"], 1, &rows), "  what    n\n  a      10\n  long    5\n");
    }
}
