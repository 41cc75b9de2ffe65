//! The request that an explanation is asked for, from words of the command line.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use clap::CommandFactory;
use clap::error::ErrorKind;
use http::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
use http::uri::{PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version};
use http_body::{Body, Frame, SizeHint};

use crate::cli::Cli;

/// A method as a request may have it.
pub(super) fn method(text: &str) -> Result<Method, String> {
    Method::from_bytes(text.as_bytes()).map_err(|_| "not a method, like GET".to_owned())
}

/// What a client is told to ask for.
#[derive(Clone, Debug)]
pub(super) struct Target(Uri);

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

const URL: &str = "http:// or https:// with a host, or only a path that begins with \"/\"";

/// A URL with a host, or the path of one.
pub(super) fn target(text: &str) -> Result<Target, String> {
    let uri: Uri = text
        .parse()
        .map_err(|error| format!("not a URL ({error}): {URL}"))?;
    let web = uri.scheme() == Some(&Scheme::HTTP) || uri.scheme() == Some(&Scheme::HTTPS);
    let whole = web && uri.host().is_some_and(|host| !host.is_empty());
    if text.contains('@')
        && uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return Err("no place for a user name or a password: `-H 'Authorization: …'`".to_owned());
    }
    if whole || text.starts_with('/') || text == "*" {
        return Ok(Target(uri));
    }
    Err(URL.to_owned())
}

/// A header field.
pub(super) type Field = (HeaderName, HeaderValue);

/// `Name: value`.
pub(super) fn field(text: &str) -> Result<Field, String> {
    let (name, value) = text
        .split_once(':')
        .ok_or("a header field is written `Name: value`")?;
    let value = value.trim_matches([' ', '\t']);
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no field name"))?;
    let value =
        HeaderValue::from_bytes(value.as_bytes()).map_err(|_| format!("{value:?} is no field value"))?;
    Ok((name, value))
}

/// The request as it reaches a gateway that `listens` there, over HTTP/1.1.
pub(super) fn request(
    method: Method,
    Target(uri): &Target,
    fields: Vec<Field>,
    listens: Option<SocketAddr>,
) -> Result<Request<Announced>, String> {
    let path = uri.path_and_query().cloned();
    let mut request = Request::new(Announced(announced(&fields)?));
    *request.uri_mut() = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    *request.method_mut() = method;
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    if !fields.iter().any(|(name, _)| name == HOST) {
        let host = match (uri.authority(), listens) {
            (Some(authority), _) => authority.to_string(),
            (None, Some(address)) => address.to_string(),
            (None, None) => String::new(),
        };
        let host = HeaderValue::try_from(host).map_err(|error| error.to_string())?;
        headers.insert(HOST, host);
    }
    for (name, value) in fields {
        headers
            .try_append(name, value)
            .map_err(|error| error.to_string())?;
    }
    Ok(request)
}

/// The length of the body that the fields announce.
fn announced(fields: &[Field]) -> Result<u64, String> {
    let mut lengths = fields.iter().filter(|(name, _)| name == CONTENT_LENGTH);
    let Some((_, length)) = lengths.next() else {
        return Ok(0);
    };
    let digits = length
        .to_str()
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match (digits.and_then(|digits| digits.parse().ok()), lengths.next()) {
        (Some(length), None) => Ok(length),
        _ => Err("Content-Length is one number, and there is one of it".to_owned()),
    }
}

/// Ends the process as the parser of arguments does when one is wrong.
pub(super) fn usage(problem: &str) -> ! {
    Cli::command().error(ErrorKind::ValueValidation, problem).exit()
}

/// A body of which only the length is known.
pub(super) struct Announced(u64);

impl Body for Announced {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}
