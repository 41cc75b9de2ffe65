//! A request without a body once more.

use http::{HeaderName, HeaderValue, Method, Request, Uri};
use http_body::Body;

use super::outgoing::Outgoing;

/// What is to be sent again where the first is gone.
pub(super) fn copy<B: Body>(request: &Request<Outgoing<B>>) -> Request<Outgoing<B>> {
    let mut copy = Request::new(Outgoing::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// The request whose head was written to an HTTP/1.1 connection; `None` if that is not a whole one. To keep what was
/// written costs less than a copy of every head, and few are needed.
pub(super) fn request<B: Body>(head: &[u8]) -> Option<Request<Outgoing<B>>> {
    let head = head.strip_suffix(b"\r\n\r\n")?;
    let mut lines = head
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut start = lines.next()?.split(|byte| *byte == b' ');
    let mut request = Request::new(Outgoing::Empty);
    *request.method_mut() = Method::from_bytes(start.next()?).ok()?;
    *request.uri_mut() = Uri::try_from(start.next()?).ok()?;
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(colon);
        let name = HeaderName::from_bytes(name).ok()?;
        let value = HeaderValue::from_bytes(value.strip_prefix(b": ")?).ok()?;
        request.headers_mut().append(name, value);
    }
    Some(request)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;

    use super::*;

    fn read(head: &[u8]) -> Option<Request<Outgoing<Full<Bytes>>>> {
        request(head)
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let head = b"PUT /a?b=c HTTP/1.1\r\nhost: a:80\r\nx-two: 1: 2\r\nx-two: \r\nx-raw: \xfe\r\n\r\n";
        let request = read(head).unwrap();
        assert_eq!(
            (request.method(), request.uri()),
            (&Method::PUT, &Uri::from_static("/a?b=c"))
        );
        let fields: Vec<(&str, &[u8])> = request
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        let written: [(&str, &[u8]); 4] = [
            ("host", b"a:80"),
            ("x-two", b"1: 2"),
            ("x-two", b""),
            ("x-raw", b"\xfe"),
        ];
        assert_eq!(fields, written);
        let request = read(b"OPTIONS * HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(request.uri(), "*");
        assert!(request.headers().is_empty());
    }

    #[test]
    fn a_part_of_a_head_is_none() {
        for part in [
            "",
            "\r\n\r\n",
            "GET / HTTP/1.1\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n",
        ] {
            assert!(read(part.as_bytes()).is_none(), "{part}");
        }
    }
}
