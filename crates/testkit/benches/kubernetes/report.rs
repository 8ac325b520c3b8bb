//! The results: a table on the terminal, JSON for programs, a chart for the documentation.

use std::{fmt::Write as _, io::Write as _, path::Path};

use serde::{Deserialize, Serialize};

use crate::subject::Subject;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Number {
    subject: String,
    name: String,
    unit: String,
    value: f64,
}

#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Number>);

/// Rows of the chart, each with the unit of its bars.
const CHART: [(&str, &str); 4] = [
    ("warm claim at 5/s, p50", "ms"),
    ("burst of 300, p99", "ms"),
    ("pool of 300 filled", "s"),
    ("2,000 cold Sandboxes Ready", "s"),
];

impl Report {
    /// Loads the results of earlier runs.
    pub(crate) fn load(path: Option<&Path>) -> anyhow::Result<Self> {
        match path.map(std::fs::read) {
            Some(Ok(bytes)) => Ok(Self(serde_json::from_slice(&bytes)?)),
            _ => Ok(Self::default()),
        }
    }

    pub(crate) fn note(&mut self, subject: &Subject, name: &str, unit: &str, value: f64) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{name:<72} {value:>10.2} {unit}");
        let number = Number { subject: subject.name().into(), name: name.into(), unit: unit.into(), value };
        match self.0.iter_mut().find(|old| old.subject == number.subject && old.name == number.name) {
            Some(old) => *old = number,
            None => self.0.push(number),
        }
    }

    fn subjects(&self) -> Vec<&str> {
        let mut subjects: Vec<&str> = Vec::new();
        for number in &self.0 {
            if !subjects.contains(&number.subject.as_str()) {
                subjects.push(&number.subject);
            }
        }
        subjects
    }

    fn get(&self, subject: &str, name: &str) -> Option<f64> {
        self.0.iter().find(|number| number.subject == subject && number.name == name).map(|number| number.value)
    }

    /// All numbers side by side.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        let subjects = self.subjects();
        writeln!(out, "\n{:<72} {}", "", subjects.iter().map(|name| format!("{name:>14}")).collect::<String>())?;
        let mut names: Vec<(&str, &str)> = Vec::new();
        for number in &self.0 {
            if !names.iter().any(|(name, _)| *name == number.name) {
                names.push((&number.name, &number.unit));
            }
        }
        for (name, unit) in names {
            let cell = |subject: &&str| {
                self.get(subject, name).map_or(format!("{:>14}", "–"), |value| format!("{value:>14.2}"))
            };
            writeln!(out, "{name:<72} {} {unit}", subjects.iter().map(cell).collect::<String>())?;
        }
        Ok(())
    }

    pub(crate) fn store(&self, json: Option<&Path>, svg: Option<&Path>) -> anyhow::Result<()> {
        if let Some(path) = json {
            std::fs::write(path, serde_json::to_string_pretty(&self.0)? + "\n")?;
        }
        if let Some(path) = svg {
            std::fs::write(path, self.chart()?)?;
        }
        Ok(())
    }

    /// One group of bars per row, each row to its own scale.
    fn chart(&self) -> anyhow::Result<String> {
        const WIDTH: f64 = 720.0;
        const BAR: f64 = 18.0;
        const LABEL: f64 = 140.0;
        let subjects = self.subjects();
        let height = CHART.len() as f64 * (subjects.len() as f64 * (BAR + 4.0) + 34.0) + 20.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" font-size=\"13\">\n"
        );
        let mut y = 20.0;
        for (name, unit) in CHART {
            writeln!(svg, "<text x=\"0\" y=\"{y:.0}\" font-weight=\"bold\">{name} ({unit})</text>")?;
            y += 8.0;
            let largest =
                subjects.iter().filter_map(|subject| self.get(subject, name)).fold(f64::MIN_POSITIVE, f64::max);
            for (index, subject) in subjects.iter().enumerate() {
                let Some(value) = self.get(subject, name) else { continue };
                let length = (WIDTH - LABEL - 80.0) * value / largest;
                let colour = ["#9aa5b1", "#3f51b5", "#e08e45"][index % 3];
                writeln!(svg, "<text x=\"10\" y=\"{:.0}\">{subject}</text>", y + BAR - 4.0)?;
                writeln!(
                    svg,
                    "<rect x=\"{LABEL}\" y=\"{y:.0}\" width=\"{length:.0}\" height=\"{BAR}\" fill=\"{colour}\"/>"
                )?;
                writeln!(svg, "<text x=\"{:.0}\" y=\"{:.0}\">{value:.1}</text>", LABEL + length + 6.0, y + BAR - 4.0)?;
                y += BAR + 4.0;
            }
            y += 26.0;
        }
        svg.push_str("</svg>\n");
        Ok(svg)
    }
}
