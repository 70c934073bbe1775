//! Draws bars and lines on axes as SVG text.
//!
//! Colours are CSS classes, which the style sheet of the page defines for light and dark mode.

use std::fmt::Write as _;

/// Sizes in pixels of the drawing.
const WIDTH: f64 = 760.0;
const LABELS: f64 = 285.0;
const BARS: f64 = 315.0;
const ROW: f64 = 28.0;

/// One bar, with one or several parts.
pub(super) struct Bar {
    pub(super) label: String,
    /// CSS class and length of each part.
    pub(super) parts: Vec<(&'static str, f64)>,
    /// The label after the bar.
    pub(super) text: String,
    /// The least and the greatest value of several runs.
    pub(super) range: Option<(f64, f64)>,
}

/// Draws bars below each other, with one scale that starts at zero.
pub(super) fn bars(bars: &[Bar]) -> String {
    let total = |bar: &Bar| bar.parts.iter().map(|(_, value)| value).sum::<f64>();
    let longest = bars
        .iter()
        .map(|bar| total(bar).max(bar.range.map_or(0.0, |(_, most)| most)))
        .fold(f64::MIN_POSITIVE, f64::max);
    let scale = BARS / longest;
    let mut svg = open(WIDTH, ROW * bars.len() as f64 + 6.0);
    line(
        &mut svg,
        "axis",
        (LABELS, 0.0),
        (LABELS, ROW * bars.len() as f64),
    );
    for (at, bar) in bars.iter().enumerate() {
        let (top, middle) = (ROW * at as f64 + 5.0, ROW * at as f64 + ROW / 2.0);
        text(
            &mut svg,
            "label end",
            (LABELS - 10.0, middle + 4.5),
            &bar.label,
        );
        let mut x = LABELS;
        for (class, value) in &bar.parts {
            let width = value * scale;
            let _ = write!(
                svg,
                r#"<rect class="{class}" x="{x:.1}" y="{top:.1}" width="{width:.1}" height="{:.1}"/>"#,
                ROW - 10.0
            );
            x += width;
        }
        if let Some((least, most)) = bar.range {
            line(
                &mut svg,
                "range",
                (LABELS + least * scale, middle),
                (LABELS + most * scale, middle),
            );
            x = x.max(LABELS + most * scale);
        }
        text(&mut svg, "value", (x + 8.0, middle + 4.5), &bar.text);
    }
    svg + "</svg>"
}

/// One line of a panel.
pub(super) struct Line {
    pub(super) class: &'static str,
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Logarithmic axes that several panels share.
pub(super) struct Axes {
    pub(super) x: Vec<f64>,
    pub(super) y: (f64, f64),
}

const PANEL: (f64, f64) = (300.0, 270.0);
/// Width of a character in the label of a tick.
const SIGN: f64 = 6.5;
/// Room around the axes for titles and labels: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (48.0, 12.0, 18.0, 44.0);

/// The frame of a panel in pixels, and the values that it shows: the least and the greatest.
struct Frame {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
    x_range: (f64, f64),
    y_range: (f64, f64),
}

impl Frame {
    fn new(axes: &Axes) -> Frame {
        Frame {
            left: MARGIN.0,
            top: MARGIN.1,
            right: PANEL.0 - MARGIN.2,
            bottom: PANEL.1 - MARGIN.3,
            x_range: (
                axes.x.first().copied().unwrap_or(1.0),
                axes.x.last().copied().unwrap_or(1.0),
            ),
            y_range: axes.y,
        }
    }

    /// The pixel of a value on the x axis. It keeps the points away from the frame.
    fn x(&self, value: f64) -> f64 {
        self.left + 16.0 + share(value, self.x_range) * (self.right - self.left - 32.0)
    }

    fn y(&self, value: f64) -> f64 {
        let value = value.clamp(self.y_range.0, self.y_range.1);
        self.bottom - share(value, self.y_range) * (self.bottom - self.top)
    }
}

/// The place of a value in a logarithmic range, from 0 to 1.
fn share(value: f64, (least, most): (f64, f64)) -> f64 {
    if most > least {
        (value / least).ln() / (most / least).ln()
    } else {
        0.5
    }
}

/// Draws lines on logarithmic axes.
pub(super) fn panel(lines: &[Line], axes: &Axes, x_title: &str, y_title: &str) -> String {
    let frame = Frame::new(axes);
    let mut svg = open(PANEL.0, PANEL.1);
    draw_axes(&mut svg, &frame, axes, x_title, y_title);
    for drawn in lines {
        draw_line(&mut svg, &frame, drawn, lines);
    }
    svg + "</svg>"
}

fn draw_axes(svg: &mut String, frame: &Frame, axes: &Axes, x_title: &str, y_title: &str) {
    let (left, right, bottom) = (frame.left, frame.right, frame.bottom);
    for tick in decades(axes.y) {
        let y = frame.y(tick);
        line(svg, "grid", (left, y), (right, y));
        text(svg, "tick end", (left - 6.0, y + 4.0), &short(tick));
    }
    for tick in apart(&axes.x, |value| frame.x(value)) {
        text(
            svg,
            "tick middle",
            (frame.x(tick), bottom + 16.0),
            &short(tick),
        );
    }
    line(svg, "axis", (left, bottom), (right, bottom));
    text(
        svg,
        "tick middle",
        (f64::midpoint(left, right), PANEL.1 - 8.0),
        x_title,
    );
    let _ = write!(
        svg,
        r#"<g transform="translate(12 {:.1}) rotate(-90)">"#,
        f64::midpoint(frame.top, bottom)
    );
    text(svg, "tick middle", (0.0, 0.0), y_title);
    *svg += "</g>";
}

/// Draws a line with a label at each point. `lines` are all lines of the panel.
fn draw_line(svg: &mut String, frame: &Frame, drawn: &Line, lines: &[Line]) {
    let points: Vec<String> = drawn
        .points
        .iter()
        .map(|(at, value)| format!("{:.1},{:.1}", frame.x(*at), frame.y(*value)))
        .collect();
    let _ = write!(
        svg,
        r#"<polyline class="line {}" points="{}"/>"#,
        drawn.class,
        points.join(" ")
    );
    for (at, value) in &drawn.points {
        let (name, what) = (
            escaped(&drawn.name),
            format!("{} at {}", short(*value), short(*at)),
        );
        let (class, x, y) = (drawn.class, frame.x(*at), frame.y(*value));
        let _ = write!(
            svg,
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="4"><title>{name}: {what}</title></circle>"#
        );
        // If another point is close above, put the label below the point.
        let lower = lines
            .iter()
            .flat_map(|line| &line.points)
            .any(|(there, above)| there == at && above > value && *above < value * 4.0);
        text(
            svg,
            "point middle",
            (x, if lower { y + 17.0 } else { y - 8.0 }),
            &short(*value),
        );
    }
}

/// Selects ticks whose labels do not overlap, starting with the greatest. `ticks` must be
/// ascending.
fn apart(ticks: &[f64], x: impl Fn(f64) -> f64) -> Vec<f64> {
    let half = |tick: f64| short(tick).len() as f64 * SIGN / 2.0;
    let mut kept: Vec<f64> = Vec::new();
    for tick in ticks.iter().copied().rev() {
        if kept
            .last()
            .is_none_or(|next| x(tick) + half(tick) + SIGN <= x(*next) - half(*next))
        {
            kept.push(tick);
        }
    }
    kept
}

/// The powers of ten within a range.
fn decades((least, most): (f64, f64)) -> impl Iterator<Item = f64> {
    (0..9)
        .map(|power| 10f64.powi(power))
        .filter(move |tick| (least..=most).contains(tick))
}

/// Formats a number with few characters: 950, 12k, 1.2M.
pub(super) fn short(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 999_500.0 => (value / 1e6, "M"),
        value if value >= 9_995.0 => (value / 1e3, "k"),
        value => (value, ""),
    };
    let text = format!("{value:.*}", usize::from(value < 9.95));
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn open(width: f64, height: f64) -> String {
    format!(r#"<svg viewBox="0 0 {width} {height}" role="img" xmlns="http://www.w3.org/2000/svg">"#)
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let _ = write!(
        svg,
        r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, class: &str, (x, y): (f64, f64), text: &str) {
    let _ = write!(
        svg,
        r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{}</text>"#,
        escaped(text)
    );
}
