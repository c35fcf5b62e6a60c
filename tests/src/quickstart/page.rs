//! What the quick start prints: titles, one aligned table, and a count of what was not as expected.

use std::fmt::Display;

/// Prints as it goes, and remembers what went wrong.
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
    /// What it should have been, where it was not.
    pub(super) wrong: Option<String>,
}

impl Page {
    pub(super) fn title(&self, title: &str) {
        println!("\n{title}\n{}\n", "─".repeat(title.chars().count()));
    }

    pub(super) fn say(&self, text: impl Display) {
        println!("  {text}");
    }

    pub(super) fn table(&mut self, lines: &[Line]) {
        let head = Line {
            from: "FROM".to_owned(),
            to: "TO".to_owned(),
            answered: "ANSWERED BY".to_owned(),
            saw: "WHICH SAW AS SOURCE".to_owned(),
            masqueraded: "MASQUERADED",
            why: Vec::new(),
            wrong: None,
        };
        let widest = |cell: fn(&Line) -> &str| {
            let lengths = lines.iter().chain([&head]).map(|line| cell(line).chars().count());
            lengths.max().unwrap_or_default()
        };
        let widths = [
            widest(|it| &it.from),
            widest(|it| &it.to),
            widest(|it| &it.answered),
            widest(|it| &it.saw),
        ];
        print(&head, widths);
        for line in lines {
            print(line, widths);
            self.check(line.wrong.as_deref());
        }
    }

    /// Counts something checked, and prints what was wrong with it.
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
            println!(
                "\n{} of {} checks were NOT as they should be.",
                self.wrong, self.checked
            );
        }
    }

    pub(super) fn is_well(&self) -> bool {
        self.wrong == 0
    }
}

fn print(line: &Line, [from, to, answered, saw]: [usize; 4]) {
    println!(
        "  {:from$}  {:to$}  {:answered$}  {:saw$}  {}",
        line.from, line.to, line.answered, line.saw, line.masqueraded
    );
    for why in &line.why {
        println!("      · {why}");
    }
}
