//! What each key is for: the comments of the example config, and what it has no line for.

const EXAMPLE: &str = include_str!("../../../gateway.toml");

/// Keys of tables that the example writes in one line, and keys that need no comment there.
const MORE: [(&str, &str, &str); 33] = [
    ("", "server", "Where the gateway listens, and its limits"),
    ("", "admin", "The listener for operators"),
    ("", "log", "What is logged, and how"),
    (
        "",
        "upstream",
        "What requests are forwarded to, by a name for each",
    ),
    (
        "",
        "route",
        "Which upstream a request goes to: the most specific pattern wins; what no route matches is answered 404",
    ),
    ("", "store", "Where the state of limiters is"),
    ("", "identity", "How callers are told apart"),
    ("", "headers", "What clients are told"),
    ("", "rule", "The rule table: all rules that match a request apply"),
    ("server", "timeouts", "How long things may take"),
    ("server", "limits", "How large and how many things may be"),
    ("upstream.*", "timeouts", "How long this upstream may take"),
    (
        "upstream.*.timeouts",
        "response",
        "from the request sent to the response head; by default as in [server.timeouts]",
    ),
    ("route", "upstream", "the name of an upstream"),
    ("", "edge", "What is decided before Redis is asked"),
    ("", "alarm", "Who hears when a store fails"),
    ("store", "username", "who logs in, where servers ask for it"),
    ("store", "password", "what with"),
    ("store.sentinel", "master", "what Sentinels call the primary"),
    ("store.sentinel", "nodes", "the Sentinels that are asked first"),
    ("store", "database", "the number of a logical database"),
    (
        "rule",
        "name",
        "unique; shown in the limit fields, in metrics and in the log: letters, digits, dots, underscores, hyphens",
    ),
    (
        "rule",
        "match",
        "which requests the rule is for: all that is given must hold; by default every request",
    ),
    (
        "rule",
        "window",
        "the time in which `limit` units are admitted: an integer and one unit of ms, s, m, h, d",
    ),
    (
        "rule",
        "refund",
        "what is free: statuses, \"4xx\", \"upstream-error\", \"client-abort\"; [] for nothing",
    ),
    (
        "match",
        "path",
        "a pattern that the path fits, like \"/v1/users/{id}\" or \"/files/{*rest}\"",
    ),
    ("match", "methods", "the methods that the rule is for"),
    ("match", "host", "exact, or \"*.example.com\"; without port"),
    ("match", "not_path", "patterns of paths that the rule is not for"),
    ("match", "not_methods", "methods that the rule is not for"),
    (
        "override",
        "key",
        "the caller: a text, or a list with a text for each part of the rule's key, \"*\" for any; for ip an address or a network",
    ),
    (
        "override",
        "limit",
        "units a window, \"unlimited\" or \"blocked\"",
    ),
    ("override", "burst", "as the rule's"),
];

/// What a key is for.
pub(super) fn about(table: &str, key: &str) -> Option<&'static str> {
    let more = MORE
        .iter()
        .find(|(inside, name, _)| (*inside, *name) == (table, key));
    more.map(|(_, _, about)| *about).or_else(|| commented(table, key))
}

/// The comment behind the first line of the example that sets a key, perhaps commented out.
fn commented(table: &str, key: &str) -> Option<&'static str> {
    let mut inside = String::new();
    for line in EXAMPLE.lines() {
        let line = line.strip_prefix('#').unwrap_or(line);
        if let Some(header) = line.strip_prefix('[') {
            let header = header
                .trim_start_matches('[')
                .split(']')
                .next()
                .unwrap_or_default();
            inside = header.replace("upstream.api", "upstream.*");
        }
        let Some((name, rest)) = line.split_once(" = ") else {
            continue;
        };
        if name == key && inside == table {
            let comment = rest.rsplit_once("# ").map(|(_, comment)| comment.trim());
            if comment.is_some() {
                return comment;
            }
        }
    }
    None
}
