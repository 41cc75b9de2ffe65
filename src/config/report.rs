//! All that there is to say about a config.

use std::fmt;

use super::finding::{Finding, Severity};
use super::render;

/// All that there is to say about one config, in the order of the file.
#[derive(Clone, Debug)]
pub struct Report {
    file: String,
    /// What the file says, secrets covered up.
    text: String,
    findings: Vec<Finding>,
}

/// One line for each finding.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            finding.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

impl Report {
    pub(super) fn new(file: &str, text: String, mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| finding.place.map(|place| place.span));
        findings.dedup();
        Self {
            file: file.to_owned(),
            text,
            findings,
        }
    }

    /// A report on a file that cannot be looked into.
    pub(super) fn of_file(file: &str, problem: String, hint: String) -> Self {
        let finding = Finding {
            severity: Severity::Error,
            file: file.to_owned(),
            place: None,
            problem,
            hint: Some(hint),
        };
        Self::new(file, String::new(), vec![finding])
    }

    /// The name of the file, as it was given.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Everything that was found, in the order of the file.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// How many findings of this severity there are.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    }

    /// The findings as a compiler would show them, each under its line of the file, and a last line that counts them.
    /// Secrets are covered up.
    pub fn render(&self, colour: bool) -> String {
        format!("{}{}: {}", self.shown(colour), self.file, self.counts())
    }

    /// The findings, each with an empty line behind it.
    pub(super) fn shown(&self, colour: bool) -> String {
        let mut shown = String::new();
        for finding in &self.findings {
            shown.push_str(&render::finding(finding, &self.text, colour));
            shown.push_str("\n\n");
        }
        shown
    }

    /// `2 errors, 1 warning`.
    pub(super) fn counts(&self) -> String {
        let count = |severity| match self.count(severity) {
            0 => None,
            1 => Some(format!("1 {severity}")),
            many => Some(format!("{many} {severity}s")),
        };
        let counts: Vec<String> = [Severity::Error, Severity::Warning]
            .into_iter()
            .filter_map(count)
            .collect();
        match counts.is_empty() {
            true => "no warnings".to_owned(),
            false => counts.join(", "),
        }
    }
}
