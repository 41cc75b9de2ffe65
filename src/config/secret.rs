//! Secrets: literal, or the name of the place that holds them.

use std::fs;

use super::item::Item;
use super::words::quoted;

const ENV: &str = "env:";
const FILE: &str = "file:";

/// The text of a secret: `"literal"`, `"env:NAME"` or `"file:PATH"`, whose last line end does not count. A literal is
/// never shown.
pub(super) fn read(item: &Item<'_>) -> Option<String> {
    let text = if item.is_text() { item.text()? } else { "" };
    let secret = if let Some(name) = text.strip_prefix(ENV) {
        variable(item, name)?
    } else if let Some(path) = text.strip_prefix(FILE) {
        file(item, path)?
    } else {
        item.notes.hide(item.span);
        item.text()?.to_owned()
    };
    if secret.is_empty() {
        item.refuse(
            "the secret is empty",
            "\"env:NAME\", \"file:PATH\", or the secret itself",
        );
        return None;
    }
    Some(secret)
}

fn variable(item: &Item<'_>, name: &str) -> Option<String> {
    // A name with one of these in it is no name, and the system panics over it.
    let valid = !name.is_empty() && !name.contains(['=', '\0']);
    let value = valid.then(|| (item.notes.surroundings.variable)(name)).flatten();
    let Some(value) = value else {
        let problem = format!("the environment variable {} is not set", quoted(name));
        item.refuse(problem, "set it where the gateway is started");
        return None;
    };
    let value = value.into_string().ok();
    if value.is_none() {
        let problem = format!("the environment variable {} is not UTF-8", quoted(name));
        item.refuse(problem, "set it to a text");
    }
    value
}

fn file(item: &Item<'_>, path: &str) -> Option<String> {
    let whole = item.notes.surroundings.folder.join(path);
    match fs::read_to_string(&whole) {
        Ok(text) => {
            let line = text.strip_suffix('\n').unwrap_or(&text);
            Some(line.strip_suffix('\r').unwrap_or(line).to_owned())
        }
        Err(error) => {
            let problem = format!("cannot read {}: {error}", quoted(&whole.to_string_lossy()));
            item.refuse(
                problem,
                "a file that holds the secret; a relative name starts at the config's folder",
            );
            None
        }
    }
}
