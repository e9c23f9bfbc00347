//! A drawing surface for charts: axes with round ticks, points, lines, bars and a legend, as SVG.
//!
//! Drawn by hand because colours have to come from a style sheet: the picture is a card with its own background, light,
//! or dark where the reader's system is.

use std::fmt::Write;

/// Width and height of a picture, in SVG's units, which are pixels at 100 %.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 470.0;
/// Space around the plot: title above, labels left and below, legend on the right.
const TOP: f64 = 74.0;
const RIGHT: f64 = 196.0;
const BOTTOM: f64 = 60.0;
const LEFT: f64 = 74.0;

/// Colours that people with any colour vision tell apart (Okabe and Ito), darkened a little where white is behind them;
/// the second of each pair stands on the dark card.
const SERIES: [(&str, &str); 7] = [
    ("#0072b2", "#58a6ff"),
    ("#d55e00", "#ff8a4c"),
    ("#009e73", "#3fcf9f"),
    ("#b8860b", "#f0c040"),
    ("#a1478a", "#e08ccc"),
    ("#6e7781", "#9ea7b3"),
    ("#000000", "#ffffff"),
];

/// The least and the most of an axis and how values lie between them.
#[derive(Clone, Debug)]
pub struct Axis {
    label: String,
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// From zero to a little above `high`.
    pub fn linear(label: &str, high: f64) -> Self {
        let high = if high > 0.0 { high * 1.08 } else { 1.0 };
        Self { label: label.into(), low: 0.0, high, log: false }
    }

    /// From a little below `low` to a little above `high`; equal ratios are equal distances.
    pub fn log(label: &str, low: f64, high: f64) -> Self {
        let low = if low > 0.0 { low } else { 1.0 };
        Self { label: label.into(), low: low / 1.25, high: high.max(low) * 1.25, log: true }
    }

    /// From zero to `high`, with no label and no ticks: for bars that have words of their own.
    pub fn bars(high: f64) -> Self {
        Self { label: String::new(), low: 0.0, high, log: false }
    }

    /// Where a value lies, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }

    /// Round values along the axis.
    fn ticks(&self) -> Vec<f64> {
        let decade = |value: f64| 10f64.powf(value.log10().floor());
        if self.label.is_empty() {
            return Vec::new();
        }
        if self.log {
            let decades = (self.high / self.low).log10();
            let steps: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let powers = (decade(self.low).log10() as i32)..=(decade(self.high).log10() as i32);
            let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
            return all.filter(|tick| (self.low..=self.high).contains(tick)).collect();
        }
        // Five to ten of them.
        let rough = (self.high - self.low) / 10.0;
        let unit = decade(rough);
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * unit).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * unit);
        (0..=10).map(|i| step * f64::from(i)).take_while(|tick| *tick <= self.high).collect()
    }
}

/// A number as short as it stays exact to the eye.
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v == 0.0 || v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// How a point looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A disc.
    Circle,
    /// A square.
    Square,
    /// A triangle.
    Triangle,
}

/// Colour and fill of what is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// Index of the colour.
    pub series: usize,
    /// Filled, or only its outline.
    pub filled: bool,
}

/// A picture in the making.
#[derive(Debug)]
pub struct Chart {
    x: Axis,
    y: Axis,
    body: String,
    legend: Vec<String>,
    title: [String; 2],
}

impl Chart {
    /// An empty plot with axes and grid; `title` is a heading and the line below it.
    pub fn new(title: [&str; 2], x: Axis, y: Axis) -> Self {
        let mut chart = Self { x, y, body: String::new(), legend: vec![], title: title.map(String::from) };
        for tick in chart.y.ticks() {
            let y = chart.y_at(tick);
            chart.draw(format!(
                "<line class='grid' x1='{LEFT}' x2='{:.1}' y1='{y:.1}' y2='{y:.1}'/>",
                WIDTH - RIGHT
            ));
            chart.text(LEFT - 8.0, y + 4.0, "end", "minor", &short(tick));
        }
        for tick in chart.x.ticks() {
            let x = chart.x_at(tick);
            let (top, bottom) = (TOP, HEIGHT - BOTTOM);
            chart.draw(format!("<line class='grid' x1='{x:.1}' x2='{x:.1}' y1='{top}' y2='{bottom}'/>"));
            chart.text(x, bottom + 18.0, "middle", "minor", &short(tick));
        }
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        chart.draw(format!("<path class='axis' d='M{LEFT} {TOP}V{bottom}H{right}'/>"));
        let (x_label, y_label) = (chart.x.label.clone(), chart.y.label.clone());
        chart.text((LEFT + right) / 2.0, HEIGHT - 20.0, "middle", "label", &x_label);
        let middle = (TOP + bottom) / 2.0;
        chart.draw(format!(
            "<text class='label' text-anchor='middle' transform='translate(22 {middle:.1}) rotate(-90)'>{}</text>",
            escaped(&y_label)
        ));
        chart
    }

    fn x_at(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (WIDTH - RIGHT - LEFT)
    }

    fn y_at(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.place(value) * (HEIGHT - BOTTOM - TOP)
    }

    fn draw(&mut self, element: String) {
        self.body += &element;
        self.body.push('\n');
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        self.draw(format!(
            "<text class='{class}' x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{}</text>",
            escaped(text)
        ));
    }

    /// A point at a value; `hint` shows when one points at it.
    pub fn point(&mut self, x: f64, y: f64, mark: Mark, look: Look, hint: &str) {
        let element = shape(self.x_at(x), self.y_at(y), mark, look);
        self.draw(format!("<g><title>{}</title>{element}</g>", escaped(hint)));
    }

    /// A vertical stroke from the least to the most of a value, behind the points.
    pub fn whisker(&mut self, x: f64, (low, high): (f64, f64), look: Look) {
        let (x, low, high) = (self.x_at(x), self.y_at(low), self.y_at(high));
        self.draw(format!("<path class='l{} whisker' d='M{x:.1} {low:.1}V{high:.1}'/>", look.series));
    }

    /// A line through values; `dashed` for bounds.
    pub fn line(&mut self, points: &[(f64, f64)], series: usize, dashed: bool) {
        let mut path = String::new();
        for (i, &(x, y)) in points.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { 'M' } else { 'L' }, self.x_at(x), self.y_at(y));
        }
        let dash = if dashed { " stroke-dasharray='7 5'" } else { "" };
        self.draw(format!("<path class='l{series} line' clip-path='url(#plot)'{dash} d='{path}'/>"));
    }

    /// The largest values of the axes, for lines that run through.
    pub fn ends(&self) -> (f64, f64) {
        (self.x.high, self.y.high)
    }

    /// An area between two lines that start at the same point.
    pub fn fan(&mut self, from: (f64, f64), low: (f64, f64), high: (f64, f64), series: usize) {
        let at = |(x, y): (f64, f64)| format!("{:.1} {:.1}", self.x_at(x), self.y_at(y));
        let path = format!("M{}L{}L{}Z", at(from), at(low), at(high));
        self.draw(format!("<path class='s{series}' clip-path='url(#plot)' fill-opacity='0.14' d='{path}'/>"));
    }

    /// Words to the upper left of a value: where nothing lies beside a front, nor its own line.
    pub fn note(&mut self, x: f64, y: f64, text: &str) {
        // Letters of this size are 7 wide at most; words beside the leftmost value must not run over the axis.
        let least = LEFT + 4.0 + 7.0 * text.len() as f64;
        let x = self.x_at(x) - 4.0;
        // Moved to the right they would lie on the value's mark, so they go above it.
        let y = self.y_at(y) - if x < least { 12.0 } else { 8.0 };
        let x = x.max(least);
        self.text(x, y, "end", "note", text);
    }

    /// Words below the horizontal axis.
    pub fn below(&mut self, x: f64, text: &str) {
        self.text(self.x_at(x), HEIGHT - BOTTOM + 24.0, "middle", "label", text);
    }

    /// A bar of `width` around x, with words on it and a stroke for the range.
    pub fn bar(&mut self, x: f64, width: f64, (low, value, high): (f64, f64, f64), look: Look, words: &str) {
        let (left, right) = (self.x_at(x - width / 2.0), self.x_at(x + width / 2.0));
        let (top, bottom) = (self.y_at(value), self.y_at(0.0));
        self.draw(format!(
            "<rect class='s{}' x='{left:.1}' y='{top:.1}' width='{:.1}' height='{:.1}' rx='3'/>",
            look.series,
            right - left,
            bottom - top
        ));
        let (x, y) = (self.x_at(x), self.y_at(high));
        self.draw(format!("<path class='l6 whisker' d='M{x:.1} {:.1}V{y:.1}'/>", self.y_at(low)));
        self.text(x, y - 8.0, "middle", "value", words);
    }

    /// An entry of the legend: a point, with its words.
    pub fn key(&mut self, mark: Mark, look: Look, words: &str) {
        let y = self.key_at();
        let element = shape(WIDTH - RIGHT + 28.0, y - 4.0, mark, look);
        self.legend.push(element + &self.key_words(y, words));
    }

    /// An entry of the legend: a line, with its words.
    pub fn key_line(&mut self, series: usize, dashed: bool, words: &str) {
        let y = self.key_at();
        let x = WIDTH - RIGHT + 16.0;
        let dash = if dashed { " stroke-dasharray='7 5'" } else { "" };
        let line = format!("<path class='l{series} line'{dash} d='M{x} {:.1}h24'/>", y - 4.0);
        self.legend.push(line + &self.key_words(y, words));
    }

    fn key_at(&self) -> f64 {
        TOP + 12.0 + 21.0 * self.legend.len() as f64
    }

    fn key_words(&self, y: f64, words: &str) -> String {
        format!("<text class='label' x='{}' y='{y:.1}'>{}</text>", WIDTH - RIGHT + 48.0, escaped(words))
    }

    /// The picture.
    pub fn svg(&self) -> String {
        let [title, below] = self.title.each_ref().map(|text| escaped(text));
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' \
             role='img' aria-label='{title}'>\n<style>{}</style>\n\
             <clipPath id='plot'><rect x='{LEFT}' y='{TOP}' width='{}' height='{}'/></clipPath>\n\
             <rect class='card' x='0.5' y='0.5' width='{}' height='{}' rx='10'/>\n\
             <text class='title' x='24' y='33'>{title}</text>\n<text class='minor' x='24' y='54'>{below}</text>\n\
             {}{}\n</svg>\n",
            style(),
            WIDTH - RIGHT - LEFT,
            HEIGHT - BOTTOM - TOP,
            WIDTH - 1.0,
            HEIGHT - 1.0,
            self.body,
            self.legend.join("\n")
        )
    }
}

fn shape(x: f64, y: f64, mark: Mark, look: Look) -> String {
    let class =
        if look.filled { format!("s{} mark", look.series) } else { format!("l{} hollow", look.series) };
    match mark {
        Mark::Circle => format!("<circle class='{class}' cx='{x:.1}' cy='{y:.1}' r='5'/>"),
        Mark::Square => {
            format!("<rect class='{class}' x='{:.1}' y='{:.1}' width='9' height='9'/>", x - 4.5, y - 4.5)
        }
        Mark::Triangle => {
            format!("<path class='{class}' d='M{:.1} {:.1}l5.5 10h-11z'/>", x, y - 6.0)
        }
    }
}

/// The rules of the light card, then those that differ on the dark one.
fn style() -> String {
    let mut light = String::from(
        "text{font:13px system-ui,'Segoe UI','DejaVu Sans',sans-serif;fill:#1f2328}\
         .title{font-size:17px;font-weight:600}.minor{fill:#59636e;font-size:12px}.note{font-size:11px;font-weight:600}\
         .value{font-weight:600}.card{fill:#fff;stroke:#d1d9e0}.grid{stroke:#e7ebef}.axis{stroke:#818b98;fill:none}\
         .line{fill:none;stroke-width:2}.whisker{fill:none;stroke-width:1.5;stroke-opacity:.55}\
         .hollow{fill:#fff;stroke-width:1.8}.mark{stroke:#fff;stroke-width:.8}",
    );
    let mut dark = String::from(
        "text{fill:#e6edf3}.minor{fill:#9198a1}.card{fill:#151b23;stroke:#3d444d}.grid{stroke:#262d36}\
         .axis{stroke:#7d8590}.hollow{fill:#151b23}.mark{stroke:#151b23}",
    );
    for (i, (on_light, on_dark)) in SERIES.iter().enumerate() {
        for (rules, colour) in [(&mut light, on_light), (&mut dark, on_dark)] {
            // Writing to a string cannot fail.
            let _ = write!(rules, ".s{i}{{fill:{colour}}}.l{i}{{stroke:{colour}}}");
        }
    }
    format!("{light}@media (prefers-color-scheme:dark){{{dark}}}")
}

/// Text as it may stand in XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let linear = Axis::linear("s", 0.33).ticks();
        assert!(linear.len() >= 5 && linear.len() <= 11, "{linear:?}");
        assert_eq!(linear[1], 0.05);
        assert_eq!(Axis::log("MB", 12.0, 700.0).ticks(), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
        let wide = Axis::log("MB", 1.0, 90_000.0).ticks();
        assert_eq!(wide, [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
        assert!(!Axis::linear("s", 0.0).ticks().is_empty());
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.05, 0.5, 5.25, 12.34, 1234.5].map(short);
        assert_eq!(shown, ["0", "0.05", "0.5", "5.25", "12.3", "1234"]);
    }

    #[test]
    fn a_picture_is_well_formed_and_inside_of_its_frame() {
        let mut chart =
            Chart::new(["A & B", "<below>"], Axis::log("MB", 10.0, 100.0), Axis::linear("tok/s", 50.0));
        let look = Look { series: 1, filled: false };
        for mark in [Mark::Circle, Mark::Square, Mark::Triangle] {
            chart.point(10.0, 50.0, mark, look, "it's <here>");
            chart.key(mark, look, "R&D");
        }
        chart.line(&[(10.0, 0.0), (100.0, 50.0)], 0, true);
        chart.fan((10.0, 0.0), (100.0, 10.0), (100.0, 20.0), 0);
        chart.bar(50.0, 5.0, (1.0, 2.0, 3.0), look, "2");
        let svg = chart.svg();
        assert!(svg.contains("A &amp; B") && svg.contains("&lt;below&gt;") && !svg.contains("it's"));
        // Every element that is opened is closed.
        let opened = svg.matches('<').count() - 2 * svg.matches("</").count() - svg.matches("/>").count();
        assert_eq!(opened, 0, "{svg}");
        assert_eq!(chart.x_at(chart.x.low), LEFT);
        assert!((chart.y_at(chart.y.high) - TOP).abs() < 1e-9);
    }
}
