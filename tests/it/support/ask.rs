//! A request, whatever the protocol that it goes by.

/// A request to be sent; its fields keep their order and their bytes.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) host: Option<String>,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) chunked: bool,
    pub(crate) trailers: Vec<(String, String)>,
}

impl Ask {
    pub(crate) fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            host: Some("test.example".to_owned()),
            fields: Vec::new(),
            body: None,
            chunked: false,
            trailers: Vec::new(),
        }
    }

    pub(crate) fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// A POST whose length is announced.
    pub(crate) fn post(target: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", target).body(body)
    }

    pub(crate) fn field(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.fields.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    pub(crate) fn host(mut self, host: &str) -> Self {
        self.host = Some(host.to_owned());
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// The body goes in chunks, its length is not announced.
    pub(crate) fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    /// Trailers after the (chunked) body; announcing them is up to the test.
    pub(crate) fn trailer(mut self, name: &str, value: &str) -> Self {
        self.chunked = true;
        self.trailers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The request as HTTP/1.1 writes it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        if let Some(host) = &self.host {
            bytes.extend(format!("Host: {host}\r\n").into_bytes());
        }
        for (name, value) in &self.fields {
            bytes.extend(name.as_bytes());
            bytes.extend(b": ");
            bytes.extend(value);
            bytes.extend(b"\r\n");
        }
        let body = self.body.as_deref().unwrap_or_default();
        if self.chunked {
            bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
            for chunk in body.chunks(7_001) {
                bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                bytes.extend(chunk);
                bytes.extend(b"\r\n");
            }
            bytes.extend(b"0\r\n");
            for (name, value) in &self.trailers {
                bytes.extend(format!("{name}: {value}\r\n").into_bytes());
            }
            bytes.extend(b"\r\n");
        } else {
            if self.body.is_some() {
                bytes.extend(format!("Content-Length: {}\r\n", body.len()).into_bytes());
            }
            bytes.extend(b"\r\n");
            bytes.extend(body);
        }
        bytes
    }
}
