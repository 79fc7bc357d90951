//! Cells that a tab ends, in columns two blanks apart, as Go's `text/tabwriter` sets them.
//!
//! A column is a run of lines that have a cell in the same place; the text after a line's last tab
//! belongs to none. Written for `--gpushare`, whose tables must match to the byte.

/// Sets `text`, padding by two.
pub(crate) fn set(text: &str) -> String {
    let lines: Vec<Vec<&str>> = text.split('\n').map(|line| line.split('\t').collect()).collect();
    let mut widths: Vec<Vec<usize>> = lines.iter().map(|cells| vec![0; cells.len()]).collect();
    columns(&lines, &mut widths, 0, 0, lines.len());
    let mut set = String::new();
    for (row, cells) in lines.iter().enumerate() {
        if row > 0 {
            set.push('\n');
        }
        for (place, cell) in cells.iter().enumerate() {
            set.push_str(cell);
            if place + 1 < cells.len() {
                let blanks = widths[row][place].saturating_sub(cell.chars().count());
                set.extend(std::iter::repeat_n(' ', blanks));
            }
        }
    }
    set
}

/// Finds the runs of lines from `from` to `to` that have a cell at `place`, and their widths.
fn columns(lines: &[Vec<&str>], widths: &mut [Vec<usize>], place: usize, from: usize, to: usize) {
    let has = |row: usize| place + 1 < lines[row].len();
    let mut row = from;
    while row < to {
        if !has(row) {
            row += 1;
            continue;
        }
        let start = row;
        while row < to && has(row) {
            row += 1;
        }
        let widest = lines[start..row].iter().map(|cells| cells[place].chars().count()).max();
        // A column of nothing takes no room.
        let width = widest.filter(|widest| *widest > 0).map_or(0, |widest| widest + 2);
        for line in &mut widths[start..row] {
            line[place] = width;
        }
        columns(lines, widths, place + 1, start, row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_the_cell_ends_the_column() {
        let text = "a\tb\nlong\tc\n-----\nx\ty\t\n";
        assert_eq!(set(text), "a     b\nlong  c\n-----\nx  y  \n");
    }
}
