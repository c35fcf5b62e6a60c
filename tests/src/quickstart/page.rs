//! What the quick start prints: titles, one aligned table, and the number of unexpected results.

use std::fmt::Display;

/// Prints at once, and counts what went wrong.
#[derive(Debug, Default)]
pub(super) struct Page {
    checked: usize,
    wrong: usize,
}

/// One line of the table of connections.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) answered: String,
    pub(super) saw: String,
    pub(super) masqueraded: &'static str,
    pub(super) why: Vec<String>,
    /// What was expected instead, if the result is wrong.
    pub(super) wrong: Option<String>,
}

impl Page {
    pub(super) fn title(&self, title: &str) {
        println!("\n{title}\n{}\n", "─".repeat(title.chars().count()));
    }

    pub(super) fn say(&self, text: impl Display) {
        println!("  {text}");
    }

    /// Prints the table, and below it the reasons that its last column refers to by number.
    pub(super) fn table(&mut self, lines: &[Line]) {
        let mut reasons: Vec<&str> = Vec::new();
        for why in lines.iter().flat_map(|line| &line.why) {
            if !reasons.contains(&why.as_str()) {
                reasons.push(why);
            }
        }
        let number = |why: &String| {
            reasons.iter().position(|reason| reason == why).map(|at| (at + 1).to_string())
        };
        let numbers =
            |line: &Line| line.why.iter().filter_map(number).collect::<Vec<_>>().join(" ");
        let cells = |line: &Line| {
            [&line.from, &line.to, &line.answered, &line.saw, line.masqueraded].map(str::to_owned)
        };
        let head = ["FROM", "TO", "ANSWERED BY", "SAW AS SOURCE", "MASQUERADED"].map(str::to_owned);
        let mut widths = head.clone().map(|cell| cell.chars().count());
        for line in lines {
            let lengths = cells(line).map(|cell| cell.chars().count());
            widths = std::array::from_fn(|at| widths[at].max(lengths[at]));
        }
        print(&head, widths, "WHY");
        for line in lines {
            print(&cells(line), widths, &numbers(line));
            self.check(line.wrong.as_deref());
        }
        println!("\n  Why, in the words of `denizen-agent explain`:");
        for (at, reason) in reasons.iter().enumerate() {
            println!("  {:>3}  {reason}", at + 1);
        }
    }

    /// Counts a check, and prints what was wrong, if anything was.
    pub(super) fn check(&mut self, wrong: Option<&str>) {
        self.checked += 1;
        if let Some(wrong) = wrong {
            self.wrong += 1;
            println!("    ✗ NOT AS EXPECTED: {wrong}");
        }
    }

    pub(super) fn verdict(&self) {
        if self.is_well() {
            println!("\nAll {} checks were as they should be.", self.checked);
        } else {
            println!("\n{} of {} checks were NOT as they should be.", self.wrong, self.checked);
        }
    }

    pub(super) fn is_well(&self) -> bool {
        self.wrong == 0
    }
}

fn print(cells: &[String; 5], widths: [usize; 5], why: &str) {
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
    println!("  {}  {why}", padded.collect::<Vec<_>>().join("  "));
}
