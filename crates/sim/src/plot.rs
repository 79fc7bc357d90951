//! One picture of a comparison, as SVG: allocation and fragmentation against demand, and the
//! cards of the cluster at the end. The only file that knows the drawing library.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::blocks::{Blocks, Mark};
use crate::compare::Compared;
use crate::report::{Mean, Report};
use crate::table::grouped_u64;

/// The size of the picture, that of a slide.
const SIZE: (u32, u32) = (1600, 900);
/// Where the charts begin, from the top.
const CHARTS: i32 = 104;
/// The most room for the cards below them, and for the line above the cards.
const MOST_CARDS: i32 = 320;
const CARDS_TITLE: i32 = 46;
/// The size of small texts.
const LABEL: i32 = 17;
/// Blank space at the sides.
const MARGIN: i32 = 40;

/// Colours that people tell apart whatever their eyes (Okabe and Ito), then greys and browns.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(110, 80, 40),
    RGBColor(120, 120, 120),
    RGBColor(150, 40, 90),
    RGBColor(60, 60, 60),
];
const INK: RGBColor = RGBColor(38, 50, 56);
const SOFT: RGBColor = RGBColor(96, 110, 118);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;
/// A measure of a report at each demand.
type Curve = fn(&(u64, Mean, Mean)) -> f64;

/// Draws the comparison into `path`.
pub fn draw(path: &Path, workload: &str, compared: &Compared, bound: Option<f64>) -> Result<()> {
    let svg = svg(workload, compared, bound)?;
    std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))
}

/// The picture as text.
pub fn svg(workload: &str, compared: &Compared, bound: Option<f64>) -> Result<String> {
    let mut svg = String::new();
    paint(&mut svg, workload, compared, bound).map_err(|error| anyhow!("drawing: {error}"))?;
    Ok(svg)
}

#[expect(clippy::cast_precision_loss, reason = "a percentage")]
fn paint(svg: &mut String, workload: &str, compared: &Compared, bound: Option<f64>) -> Drawn {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let reports = &compared.reports;
    let cards: usize = compared.first.iter().map(|node| node.devices.len()).sum();
    let (nodes, cards) = (grouped_u64(compared.first.len() as u64), grouped_u64(cards as u64));
    let seeds = match reports.first().map_or(0, |report| report.seeds.len()) {
        1 => String::new(),
        seeds => format!(", mean of {seeds} seeds"),
    };
    let title = format!("{workload}: {nodes} nodes, {cards} cards{seeds}");
    say(&root, (MARGIN, 36), &title, 30, INK)?;
    legend(&root, reports, bound)?;
    // The cards stand at the bottom and take what they need, the charts have the rest.
    let wide = SIZE.0.cast_signed() - 2 * MARGIN;
    let blocks = Blocks::new(&compared.first, (wide, MOST_CARDS), |text| width(text, LABEL));
    let cards = SIZE.1.cast_signed() - blocks.height - CARDS_TITLE - 12;
    let (_, below) = root.split_vertically(CHARTS);
    let (charts, _) = below.split_vertically(cards - CHARTS);
    let (left, right) = charts.split_horizontally(SIZE.0 / 2);
    let from = first_demand(reports);
    Chart {
        reports,
        from,
        y: from as f64..100.0,
        title: "Allocated",
        name: "allocated, % of all cards",
    }
    .draw(&left, |(_, allocated, _)| allocated.mean, bound)?;
    let fragmented: Curve = |(_, _, fragmented)| fragmented.mean;
    let curves = reports.iter().flat_map(|report| &report.curve);
    let most = curves.filter(|at| at.0 >= from).map(fragmented).fold(1.0, f64::max);
    Chart {
        reports,
        from,
        y: 0.0..most * 1.1,
        title: "Fragmented: free, but of no use to the pods that come",
        name: "fragmented, % of all cards",
    }
    .draw(&right, fragmented, None)?;
    if let Some(first) = reports.first() {
        let seed = first.seeds.first().copied().unwrap_or(0);
        let policy = &first.policy;
        let title = format!("The cards in the end, {policy}, seed {seed}: each column is a node");
        say(&root, (MARGIN, cards + 22), &title, 22, INK)?;
        scale(&root, cards + 22)?;
        heat_map(&root, &blocks, cards + CARDS_TITLE)?;
    }
    root.present()
}

/// Where charts begin: below the worst policy, where demand and allocation are still equal.
fn first_demand(reports: &[Report]) -> u64 {
    let last = |report: &Report| report.curve.last().map(|at| at.0);
    let end = reports.iter().filter_map(last).max().unwrap_or(100);
    let at = |report: &Report| {
        let curve = report.curve.iter().find(|at| at.0 == end.min(100));
        curve.map(|(_, allocated, _)| allocated.mean)
    };
    let worst = reports.iter().filter_map(at).fold(100.0, f64::min);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage")]
    let floor = (worst / 5.0).floor().max(1.0) as u64 * 5 - 5;
    floor.min(end.saturating_sub(10))
}

/// Which colour is which policy.
fn legend(root: &Area, reports: &[Report], bound: Option<f64>) -> Drawn {
    let mut x = MARGIN;
    let y = 80;
    for (report, colour) in reports.iter().zip(COLOURS.iter().cycle()) {
        root.draw(&Rectangle::new([(x, y - 3), (x + 26, y + 2)], colour.filled()))?;
        say(root, (x + 34, y), &report.policy, 20, INK)?;
        x += 34 + width(&report.policy, 20) + 26;
    }
    if bound.is_some() {
        for dash in 0..3 {
            let from = x + dash * 10;
            root.draw(&Rectangle::new([(from, y - 1), (from + 6, y + 1)], INK.filled()))?;
        }
        say(root, (x + 34, y), "bound: no policy can allocate more", 20, INK)?;
    }
    Ok(())
}

struct Chart<'a> {
    reports: &'a [Report],
    from: u64,
    y: std::ops::Range<f64>,
    title: &'a str,
    name: &'a str,
}

#[expect(clippy::cast_precision_loss, reason = "percentages")]
impl Chart<'_> {
    fn draw(&self, area: &Area, curve: Curve, bound: Option<f64>) -> Drawn {
        let ends = self.reports.iter().filter_map(|report| report.curve.last());
        let to = ends.map(|at| at.0).max().unwrap_or(self.from + 1).max(self.from + 1);
        let (from, to) = (self.from as f64, to as f64);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 22, &INK))
            .margin(12)
            .margin_left(24)
            .margin_right(32)
            .x_label_area_size(52)
            .y_label_area_size(64)
            .build_cartesian_2d(from..to, self.y.clone())?;
        chart
            .configure_mesh()
            .x_desc("demand of the pods that came, % of all cards")
            .y_desc(self.name)
            .axis_desc_style(("sans-serif", 19, &INK))
            .label_style(("sans-serif", 17, &SOFT))
            .axis_style(SOFT)
            .bold_line_style(RGBColor(222, 228, 232))
            .light_line_style(TRANSPARENT)
            .x_labels(8)
            .y_labels(7)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .draw()?;
        if let Some(bound) = bound {
            let dashes = 60;
            let step = (to - from) / f64::from(dashes);
            for dash in 0..dashes {
                let x = from + step * f64::from(dash);
                let ends = [(x, bound), (x + step * 0.6, bound)];
                chart.draw_series([PathElement::new(ends, INK.stroke_width(2))])?;
            }
            let above = Pos::new(HPos::Left, VPos::Bottom);
            let style = ("sans-serif", 18, &INK).into_text_style(area).pos(above);
            let at = (from + (to - from) * 0.01, bound + (self.y.end - self.y.start) * 0.01);
            chart.draw_series([Text::new(format!("bound {bound}"), at, style)])?;
        }
        // The first policy is drawn last, on top of the others.
        for (place, report) in self.reports.iter().enumerate().rev() {
            let colour = COLOURS[place % COLOURS.len()];
            let points = report.curve.iter().map(|at| (at.0 as f64, curve(at)));
            // Cut at the edge, or the library draws along it.
            let points = points.filter(|(x, y)| *x >= from && self.y.contains(y));
            let thick = if place == 0 { 4 } else { 3 };
            chart.draw_series(LineSeries::new(points, colour.stroke_width(thick)))?;
        }
        Ok(())
    }
}

/// Every card as a square.
fn heat_map(root: &Area, blocks: &Blocks, top: i32) -> Drawn {
    let size = (blocks.cell - 1).max(1);
    let mut drawn = Ok(());
    blocks.lay(|(x, y), mark| {
        let at = (x + MARGIN, y + top);
        let one = match mark {
            Mark::Label(text) => say(root, at, text, LABEL, SOFT),
            Mark::Card(free) => {
                let corners = [at, (at.0 + size, at.1 + size)];
                root.draw(&Rectangle::new(corners, heat(free).filled()))
            }
        };
        if let (Ok(()), Err(error)) = (&drawn, one) {
            drawn = Err(error);
        }
    });
    drawn
}

/// What the colours of squares mean.
fn scale(root: &Area, y: i32) -> Drawn {
    let start = SIZE.0.cast_signed() - MARGIN - 382;
    say(root, (start - 100, y), "nothing free", LABEL, SOFT)?;
    for step in 0..=10_i32 {
        let at = (start + step * 28, y - 8);
        let colour = heat(step.unsigned_abs() * 10);
        root.draw(&Rectangle::new([at, (at.0 + 26, y + 8)], colour.filled()))?;
    }
    say(root, (start + 318, y), "all free", LABEL, SOFT)
}

/// Taken cards recede; the more of a card is free, the more it glows.
fn heat(free: u32) -> RGBColor {
    const STOPS: [(u32, RGBColor); 5] = [
        (1, RGBColor(254, 240, 190)),
        (25, RGBColor(253, 200, 90)),
        (50, RGBColor(244, 135, 50)),
        (75, RGBColor(210, 65, 45)),
        (100, RGBColor(125, 15, 60)),
    ];
    if free == 0 {
        return RGBColor(205, 217, 226);
    }
    let next = STOPS.iter().position(|(stop, _)| free <= *stop).unwrap_or(STOPS.len() - 1);
    let ((from, a), (to, b)) = (STOPS[next.saturating_sub(1)], STOPS[next]);
    let part = |a: u8, b: u8| {
        let (a, b) = (i64::from(a), i64::from(b));
        let along = i64::from(free - from.min(free)) * (b - a) / i64::from((to - from).max(1));
        u8::try_from((a + along).clamp(0, 255)).unwrap_or(u8::MAX)
    };
    RGBColor(part(a.0, b.0), part(a.1, b.1), part(a.2, b.2))
}

fn say(root: &Area, at: (i32, i32), text: &str, size: i32, colour: RGBColor) -> Drawn {
    let style = ("sans-serif", size, &colour).into_text_style(root);
    root.draw_text(text, &style.pos(Pos::new(HPos::Left, VPos::Center)), at)
}

/// About how wide a text is.
fn width(text: &str, size: i32) -> i32 {
    i32::try_from(text.chars().count()).unwrap_or(0) * size * 46 / 100
}
