//! The comparison as a picture: in each row a bar for each contender, in proportion to the row's
//! largest value.

use std::fmt::Write as _;

use super::table::Comparison;

const WIDTH: usize = 760;
/// Where bars begin, and how long the longest is.
const LEFT: usize = 290;
const LONGEST: f64 = 340.0;
const BAR: usize = 16;
const GAP: usize = 18;
const COLOURS: [&str; 2] = ["#2a78b5", "#b0b0b0"];

/// The picture, as SVG.
pub fn svg(comparison: &Comparison) -> String {
    let mut body = String::new();
    let mut y = GAP;
    for (name, colour) in comparison.names.iter().zip(COLOURS) {
        rectangle(&mut body, (LEFT, y, BAR as f64), colour);
        label(&mut body, (LEFT + BAR + 8, y), "start", name);
        y += BAR + 4;
    }
    y += GAP;
    for row in &comparison.rows {
        let values = row.values.iter().flatten().map(|(value, _)| *value);
        let most = values.fold(0.0, f64::max);
        label(&mut body, (LEFT - 10, y), "end", row.what);
        for (value, colour) in row.values.iter().zip(COLOURS) {
            let (length, text) = match value {
                Some((value, text)) if most > 0.0 => (LONGEST * value / most, text.as_str()),
                Some((_, text)) => (0.0, text.as_str()),
                None => (0.0, "–"),
            };
            rectangle(&mut body, (LEFT, y, length), colour);
            label(&mut body, (LEFT + 6 + length as usize, y), "start", text);
            y += BAR;
        }
        y += GAP;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\" \
         viewBox=\"0 0 {WIDTH} {y}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{y}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// A bar at this place, of this length.
fn rectangle(body: &mut String, (x, y, length): (usize, usize, f64), colour: &str) {
    let height = BAR - 2;
    let _ = writeln!(
        body,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{length:.1}\" height=\"{height}\" fill=\"{colour}\"/>"
    );
}

fn label(body: &mut String, (x, y): (usize, usize), anchor: &str, text: &str) {
    let (baseline, text) = (y + BAR - 5, escaped(text));
    let _ = writeln!(
        body,
        "<text x=\"{x}\" y=\"{baseline}\" text-anchor=\"{anchor}\" fill=\"#202020\">{text}</text>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::comparison;
    use super::*;

    #[test]
    fn each_figure_has_a_bar_and_its_text() {
        let comparison = comparison();
        let picture = svg(&comparison);
        let bars = comparison.rows.len() * 2 + 2;
        assert_eq!(picture.matches("<rect x=").count(), bars);
        assert_eq!(picture.matches("<text ").count(), comparison.rows.len() * 3 + 2);
        for part in ["550 ms", "10.0 MiB", "&lt;nft&gt; &amp; co", "one connection"] {
            assert!(picture.contains(&format!(">{part}</text>")), "{part}: {picture}");
        }
        assert!(picture.contains("width=\"340.0\""), "the largest is as long as there is room");
        // 100 of 550 milliseconds.
        assert!(picture.contains("width=\"61.8\""), "{picture}");
        assert_eq!(picture.matches('<').count(), picture.matches('>').count());
    }
}
