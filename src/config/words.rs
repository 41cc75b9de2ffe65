//! Words that nobody knows, and the known one that was probably meant.

/// Alike enough to be a slip of the fingers or of the memory.
const ALIKE: f64 = 0.8;

/// What would be right in place of `word`: the known one that is most like it, or all of them.
pub(super) fn suggestion(word: &str, known: &[&str]) -> String {
    let lower = word.to_lowercase();
    let nearest = known
        .iter()
        .map(|known| (strsim::jaro_winkler(&lower, known), known))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest {
        Some((_, nearest)) => format!("did you mean `{nearest}`?"),
        None if known.is_empty() => "nothing is known here".to_owned(),
        None if known.len() == 1 => format!("only {} is known", listed(known)),
        None => format!("known are {}", listed(known)),
    }
}

/// `` `a`, `b` and `c` ``.
pub(super) fn listed(words: &[&str]) -> String {
    joined(words, "and")
}

/// `` `a`, `b` or `c` ``.
pub(super) fn either(words: &[&str]) -> String {
    joined(words, "or")
}

fn joined(words: &[&str], link: &str) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} {link} {last}", first.join(", ")),
    }
}

/// A word of the file in a message: quoted, and nothing in it can move the cursor of a terminal.
pub(super) fn quoted(word: &str) -> String {
    const LONGEST: usize = 60;
    match word.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("\"{}…\"", word[..end].escape_debug()),
        None => format!("\"{}\"", word.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_known_word_is_named() {
        let known = ["fixed-window", "sliding-log", "sliding-window", "gcra"];
        for (word, hint) in [
            ("sliding_window", "did you mean `sliding-window`?"),
            ("fixed", "did you mean `fixed-window`?"),
            ("GCRA", "did you mean `gcra`?"),
            (
                "leaky",
                "known are `fixed-window`, `sliding-log`, `sliding-window` and `gcra`",
            ),
        ] {
            assert_eq!(suggestion(word, &known), hint);
        }
    }
}
