//! Findings as a compiler shows them.

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::finding::{Finding, Severity};
use super::source::{Place, boundary};

/// One finding under its line of `text`.
pub(super) fn finding(finding: &Finding, text: &str, colour: bool) -> String {
    let level = match finding.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(finding.problem.as_str());
    let group = match finding.place {
        Some(place) => title.element(snippet(&finding.file, text, place)),
        None => title.element(Origin::path(finding.file.as_str())),
    };
    let help = finding.hint.as_deref().map(|hint| Level::HELP.message(hint));
    let group: Group<'_> = group.elements(help);
    let renderer = match colour {
        true => Renderer::styled(),
        false => Renderer::plain(),
    };
    renderer.render(&[group])
}

/// The first line of what the place spans; a table that goes on for pages is shown by where it begins.
fn snippet<'t>(file: &'t str, text: &'t str, place: Place) -> Snippet<'t, Annotation<'t>> {
    let start = boundary(text, place.span.start);
    let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[line_start..].lines().next().unwrap_or_default();
    let start = (start - line_start).min(line.len());
    let end = boundary(line, place.span.end.saturating_sub(line_start)).max(start);
    Snippet::source(line)
        .line_start(place.line)
        .path(file)
        .annotation(AnnotationKind::Primary.span(start..end))
}
