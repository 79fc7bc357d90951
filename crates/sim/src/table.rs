//! Results for people: a table under one line that says what was replayed.

use std::fmt::Write;

use crate::churn::TYPE_BOUND;
use crate::report::{ChurnReport, DEMANDS, Report};
use crate::trace::Class;

/// Rows of text in columns: the first to the left, the others to the right.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Headings over several columns: the first of them, how many, the text.
    spans: Vec<(usize, usize, String)>,
}

impl Table {
    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Puts `text` above `count` columns from the one at `first` on.
    pub fn span(&mut self, first: usize, count: usize, text: &str) {
        self.spans.push((first, count, text.to_owned()));
    }

    /// The table as text.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..columns).map(width).collect();
        for (first, count, text) in &self.spans {
            let have: usize =
                widths[*first..first + count].iter().sum::<usize>() + GAP * (count - 1);
            widths[*first] += text.chars().count().saturating_sub(have);
        }
        let mut text = String::new();
        if !self.spans.is_empty() {
            let mut line = String::new();
            for (first, count, span) in &self.spans {
                let end = widths[..first + count].iter().sum::<usize>() + GAP * (first + count - 1);
                let pad = end - line.chars().count();
                let _ = write!(line, "{span:>pad$}");
            }
            let _ = writeln!(text, "{line}");
        }
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                let _ = match column {
                    0 => write!(line, "{cell:<width$}"),
                    _ => write!(line, "{:GAP$}{cell:>width$}", ""),
                };
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

/// Blanks between columns.
const GAP: usize = 2;

/// The results of all policies.
pub fn results(reports: &[Report]) -> String {
    let mut table = Table::default();
    let demands: Vec<u64> = DEMANDS
        .into_iter()
        .filter(|demand| reports.iter().any(|r| r.points.iter().any(|p| p.demand == *demand)))
        .collect();
    let classes = Class::ALL.map(Class::as_str);
    let first_class = 1 + demands.len();
    if !demands.is_empty() {
        table.span(1, demands.len(), "% of the cards allocated at a demand of");
    }
    table.span(first_class, classes.len(), "pods without a place");
    table.span(first_class + classes.len(), 1, "fragmented");
    table.span(first_class + classes.len() + 1, 3, "a decision");
    let headings = ["policy".to_owned()].into_iter();
    let headings = headings.chain(demands.iter().map(|demand| format!("{demand} %")));
    let headings = headings.chain(["cpu-only", "share", "1 card", "more"].map(str::to_owned));
    let rest = ["at 100 %", "p50 us", "p99 us", "per s"].map(str::to_owned);
    table.row(headings.chain(rest));
    for report in reports {
        table.row(row(report, &demands, &classes));
    }
    let mut text = table.render();
    if reports.iter().any(|report| report.nearness.is_some()) {
        text.push('\n');
        text.push_str(&nearness(reports));
    }
    if reports.iter().any(|report| report.churn.is_some()) {
        text.push('\n');
        text.push_str(&churn(reports));
    }
    text
}

fn row(report: &Report, demands: &[u64], classes: &[&str]) -> Vec<String> {
    let several = report.seeds.len() > 1;
    let mut cells = vec![report.policy.clone()];
    cells.extend(demands.iter().map(|demand| {
        let point = report.points.iter().find(|point| point.demand == *demand);
        point.map_or_else(none, |p| with_sd(p.allocated_mean, p.allocated_sd, several))
    }));
    cells.extend(classes.iter().map(|class| {
        let failed = report.failed_by_class.get(*class).copied().unwrap_or(0.0);
        grouped(failed)
    }));
    let fragmented = report.fragmentation.iter().find(|point| point.demand == 100);
    cells.push(fragmented.map_or_else(none, |point| format!("{:.2}", point.fragmented_mean)));
    cells.push(format!("{:.1}", report.decision_us_p50));
    cells.push(format!("{:.1}", report.decision_us_p99));
    cells.push(grouped(report.decisions_per_second));
    cells
}

/// What became of the pods with several cards.
fn nearness(reports: &[Report]) -> String {
    let mut table = Table::default();
    table.span(1, 1, "near cards required:");
    table.span(2, 1, "preferred:");
    let headings = ["policy", "% without a place", "% got them", "link quality"];
    table.row(headings.map(str::to_owned));
    for report in reports {
        let Some(near) = &report.nearness else { continue };
        let numbers = [near.rejected_percent, near.as_preferred_percent, near.link_quality];
        let cells = [report.policy.clone()].into_iter();
        table.row(cells.chain(numbers.map(|number| format!("{number:.1}"))));
    }
    format!(
        "Pods with several cards. Link quality: 100 if every two of a pod's cards are joined by \
         NVLink,\n50 on one PCIe switch, 10 across sockets.\n\n{}",
        table.render()
    )
}

/// What the churn did.
fn churn(reports: &[Report]) -> String {
    let mut table = Table::default();
    let mut classes = Class::ALL.map(Class::as_str).to_vec();
    classes.push(TYPE_BOUND);
    table.span(2, classes.len(), "% of the pods that came and found no place");
    let headings = ["policy", "allocated"].into_iter().chain(classes.iter().copied());
    table.row(headings.map(str::to_owned));
    let mut events = 0;
    for report in reports {
        let Some(churn) = &report.churn else { continue };
        events = churn.events;
        let several = report.seeds.len() > 1;
        let mut cells = vec![report.policy.clone()];
        cells.push(with_sd(churn.allocated_mean, churn.allocated_sd, several));
        cells.extend(classes.iter().map(|class| rejected(churn, class)));
        table.row(cells);
    }
    let events = grouped_u64(events);
    format!("Then churn: {events} departures; the second half of them.\n\n{}", table.render())
}

fn rejected(churn: &ChurnReport, class: &str) -> String {
    churn.rejected_percent(class).map_or_else(none, |percent| format!("{percent:.2}"))
}

fn none() -> String {
    "-".to_owned()
}

fn with_sd(mean: f64, sd: f64, several: bool) -> String {
    if several { format!("{mean:.2}±{sd:.2}") } else { format!("{mean:.2}") }
}

/// A number of things, rounded, with its thousands apart.
pub fn grouped(number: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    grouped_u64(number.round() as u64)
}

/// A number with its thousands apart.
pub fn grouped_u64(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
