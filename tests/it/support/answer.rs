//! A response, whatever the protocol that it came by.

/// A complete response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case, in the order that they came in.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// The interim statuses that came before.
    pub(crate) interim: Vec<u16>,
    /// The head as it was read; empty over HTTP/2.
    pub(crate) head: Vec<u8>,
}

impl Answer {
    /// The value of a field that occurs at most once.
    #[track_caller]
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() <= 1, "{name} occurs {} times in {self:#?}", all.len());
        all.first().copied()
    }

    /// The value of a field that must be there once.
    #[track_caller]
    pub(crate) fn must(&self, name: &str) -> &str {
        self.field(name)
            .unwrap_or_else(|| panic!("no {name} in {} {:#?}\n{}", self.status, self.fields, self.text()))
    }

    /// Every line of a field.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.fields
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body of an answer that the gateway made itself, checked for what all of them have in common.
    #[track_caller]
    pub(crate) fn problem(&self) -> serde_json::Value {
        assert_eq!(
            self.must("content-type"),
            "application/problem+json",
            "{}",
            self.text()
        );
        let problem: serde_json::Value = serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON: {error}: {}", self.text()));
        assert_eq!(problem["status"], self.status, "{problem}");
        assert!(
            problem["title"].as_str().is_some_and(|title| !title.is_empty()),
            "no title: {problem}"
        );
        problem
    }
}
