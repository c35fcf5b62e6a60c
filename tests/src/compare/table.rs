//! The figures of two contenders, side by side.

use std::fmt::Write as _;

use super::measured::Figures;
use crate::bench::timing::text;

/// One thing that was measured: its name, and for each contender the value and its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub what: &'static str,
    /// `None` where a contender has no such value.
    pub values: Vec<Option<(f64, String)>>,
}

/// All that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub names: Vec<String>,
    pub rows: Vec<Row>,
}

type Pick = fn(&Figures) -> Option<(f64, String)>;

/// The rows, in the order in which they are shown. Less is better in each.
const ROWS: [(&str, Pick); 7] = [
    ("start: until the last service answers", |figures| {
        Some((figures.start.as_secs_f64(), text(figures.start)))
    }),
    ("change: until the new endpoint answers", |figures| {
        Some((figures.change.as_secs_f64(), text(figures.change)))
    }),
    ("one connection", |figures| Some((figures.connect.as_secs_f64(), text(figures.connect)))),
    ("memory", |figures| figures.memory.map(|memory| kibibytes(memory.resident))),
    ("memory of its own", |figures| figures.memory.map(|memory| kibibytes(memory.anonymous))),
    ("from the API server at the start", |figures| figures.bytes.map(|[start, _]| bytes(start))),
    ("from the API server for a change", |figures| figures.bytes.map(|[_, change]| bytes(change))),
];

impl Comparison {
    /// Of contenders and their figures, in the same order.
    pub fn new(names: Vec<String>, figures: &[Figures]) -> Self {
        let row = |(what, pick): &(&'static str, Pick)| Row {
            what,
            values: figures.iter().map(pick).collect(),
        };
        Self { names, rows: ROWS.iter().map(row).collect() }
    }

    /// The table, in Markdown.
    pub fn table(&self) -> String {
        let mut table = format!("| | {} | times |\n", self.names.join(" | "));
        table += &format!("| --- |{}\n", " ---: |".repeat(self.names.len() + 1));
        for row in &self.rows {
            let cells =
                row.values.iter().map(|value| value.as_ref().map_or("–", |(_, text)| text));
            let cells: Vec<&str> = cells.collect();
            let _ = writeln!(table, "| {} | {} | {} |", row.what, cells.join(" | "), row.times());
        }
        table
    }
}

impl Row {
    /// The last contender's value divided by the first one's.
    fn times(&self) -> String {
        match (self.values.first(), self.values.last()) {
            (Some(Some((first, _))), Some(Some((last, _)))) if *first > 0.0 => {
                format!("{:.1}", last / first)
            }
            _ => "–".to_owned(),
        }
    }
}

fn kibibytes(number: u64) -> (f64, String) {
    let mebibytes = number as f64 / 1024.0;
    (mebibytes, format!("{mebibytes:.1} MiB"))
}

fn bytes(number: u64) -> (f64, String) {
    let text = match number {
        ..10_000 => format!("{number} B"),
        10_000..10_000_000 => format!("{:.0} kB", number as f64 / 1e3),
        10_000_000.. => format!("{:.1} MB", number as f64 / 1e6),
    };
    (number as f64, text)
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::Memory;

    /// Denizen, and a contender without a process.
    pub fn comparison() -> Comparison {
        let memory = Memory { resident: 10_240, anonymous: 5_120, of_files: 0, most: 0 };
        let ours = Figures {
            start: Duration::from_millis(100),
            change: Duration::from_millis(2),
            connect: Duration::from_micros(40),
            memory: Some(memory),
            bytes: Some([2_000_000, 900]),
        };
        let other = Figures {
            start: Duration::from_millis(550),
            memory: None,
            bytes: None,
            ..ours.clone()
        };
        Comparison::new(vec!["Denizen".into(), "<nft> & co".into()], &[ours, other])
    }

    #[test]
    fn the_table_has_each_figure_and_what_it_is_times_the_first() {
        let table = comparison().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "| | Denizen | <nft> & co | times |");
        assert_eq!(lines[1], "| --- | ---: | ---: | ---: |");
        assert_eq!(lines[2], "| start: until the last service answers | 100 ms | 550 ms | 5.5 |");
        assert_eq!(lines[4], "| one connection | 40.0 µs | 40.0 µs | 1.0 |");
        assert_eq!(lines[5], "| memory | 10.0 MiB | – | – |");
        assert_eq!(lines[7], "| from the API server at the start | 2000 kB | – | – |");
        assert_eq!(lines[8], "| from the API server for a change | 900 B | – | – |");
        assert_eq!(lines.len(), 2 + ROWS.len());
    }
}
