//! What is found while a file is read.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::Path;

use super::finding::{Finding, Severity};
use super::known::{Known, Shape};
use super::source::{Source, Span};
use super::syntax::Readable;

/// Where a config is read: what its secrets refer to.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The environment variables.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The folder that file names are relative to.
    pub folder: &'a Path,
}

impl<'a> Surroundings<'a> {
    /// The environment of this process.
    pub fn of_process(folder: &'a Path) -> Self {
        Self {
            variable: &|name| std::env::var_os(name),
            folder,
        }
    }
}

/// The findings so far, and what every part of the reader needs to make more.
pub(super) struct Notes<'a> {
    pub(super) source: &'a Source,
    pub(super) surroundings: Surroundings<'a>,
    /// The lines that could not be read.
    unread: String,
    /// Where they begin not to be TOML.
    faults: Vec<usize>,
    findings: RefCell<Vec<Finding>>,
    secrets: RefCell<Vec<Span>>,
    /// The keys that were asked for, where somebody wants to know.
    known: Option<RefCell<Vec<Known>>>,
}

impl<'a> Notes<'a> {
    pub(super) fn new(source: &'a Source, surroundings: Surroundings<'a>, readable: Readable) -> Self {
        let places = readable.findings.iter().filter_map(|finding| finding.place);
        Self {
            source,
            surroundings,
            unread: readable.unread,
            faults: places.map(|place| place.span.start).collect(),
            findings: RefCell::new(readable.findings),
            secrets: RefCell::default(),
            known: None,
        }
    }

    /// Remembers from now on which keys are asked for.
    pub(super) fn recording(self) -> Self {
        Self {
            known: Some(RefCell::default()),
            ..self
        }
    }

    /// A key is asked for. Whoever knows more of it says so after it was asked for as such.
    pub(super) fn asked(&self, table: &str, key: &'static str, shape: impl FnOnce() -> Shape) {
        let Some(known) = &self.known else { return };
        let (mut known, shape) = (known.borrow_mut(), shape());
        let place = known
            .iter_mut()
            .find(|known| known.table == table && known.key == key);
        match place {
            Some(_) if shape == Shape::Own => {}
            Some(known) => known.shape = shape,
            None => known.push(Known {
                table: table.to_owned(),
                key,
                shape,
                required: false,
            }),
        }
    }

    /// A table must have a key that was asked for.
    pub(super) fn required(&self, table: &str, key: &'static str) {
        let Some(known) = &self.known else { return };
        let mut known = known.borrow_mut();
        let same = |known: &&mut Known| known.table == table && known.key == key;
        if let Some(known) = known.iter_mut().find(same) {
            known.required = true;
        }
    }

    /// The keys that were asked for.
    pub(super) fn known(self) -> Vec<Known> {
        self.known.map(RefCell::into_inner).unwrap_or_default()
    }

    /// Something is wrong. A value of which only a part could be read is not judged.
    pub(super) fn error(&self, span: Span, problem: impl Into<String>, hint: impl Into<String>) {
        let inside = |&at: &usize| (span.start..span.end).contains(&at);
        if !self.faults.iter().any(inside) {
            self.note(Severity::Error, span, problem.into(), hint.into());
        }
    }

    /// Something is wrong because `word` is nowhere, not even in lines that could not be read.
    pub(super) fn absent(&self, word: &str, span: Span, problem: impl Into<String>, hint: impl Into<String>) {
        if !self.unread.contains(word) {
            self.error(span, problem, hint);
        }
    }

    /// Something is odd.
    pub(super) fn warn(&self, span: Span, problem: impl Into<String>, hint: impl Into<String>) {
        self.note(Severity::Warning, span, problem.into(), hint.into());
    }

    /// Remembers what must not be shown.
    pub(super) fn hide(&self, secret: Span) {
        self.secrets.borrow_mut().push(secret);
    }

    /// Whether anything is wrong so far.
    pub(super) fn refused(&self) -> bool {
        let findings = self.findings.borrow();
        findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    /// The line of a place, for messages that point to another.
    pub(super) fn line(&self, span: Span) -> usize {
        self.source.line(span.start)
    }

    /// The findings, and where the secrets are.
    pub(super) fn finish(self) -> (Vec<Finding>, Vec<Span>) {
        (self.findings.into_inner(), self.secrets.into_inner())
    }

    fn note(&self, severity: Severity, span: Span, problem: String, hint: String) {
        self.findings.borrow_mut().push(Finding {
            severity,
            file: self.source.name.clone(),
            place: Some(self.source.place(span)),
            problem,
            hint: Some(hint),
        });
    }
}
