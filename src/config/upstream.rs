//! `[upstream.*]` and `[[route]]`.

use std::time::Duration;

use http::Uri;

use super::item::{At, Item};
use super::reader::Section;
use super::server::{CONNECTIONS_MOST, Server};
use super::words::{quoted, suggestion};
use crate::proxy::Route;
use crate::rules::{HostPattern, PathPattern};
use crate::upstream;

const UPSTREAM: &str = "upstream";
const ROUTE: &str = "route";
/// HTTP/1.1, and HTTP/2 with prior knowledge.
const SCHEMES: [&str; 2] = ["http", "h2c"];
const MILLI: Duration = Duration::from_millis(1);
const TARGET: &str = "`http://` or `h2c://`, a host and perhaps a port, like \"http://127.0.0.1:3000\"";
/// The pattern of a route that does not say.
pub(super) const EVERYTHING: &str = "/{*rest}";

/// Reads `[upstream.*]`; whether one is `needed` depends on what the config is for.
pub(super) fn upstreams(root: &Section<'_>, server: &Server, needed: bool) -> Vec<upstream::Settings> {
    let Some(sections) = root.named(UPSTREAM) else {
        return Vec::new();
    };
    if sections.is_empty() && needed {
        let problem = "there is no upstream to forward to";
        let hint = "`[upstream.api]` with `targets = [\"http://127.0.0.1:3000\"]`";
        root.notes
            .absent(UPSTREAM, root.value_span(UPSTREAM), problem, hint);
    }
    let read = |(name, section)| upstream(name, &section, server);
    sections.into_iter().map(read).collect()
}

fn upstream(name: &str, section: &Section<'_>, server: &Server) -> upstream::Settings {
    let targets = section.required("targets", "`targets = [\"http://127.0.0.1:3000\"]`");
    let items = targets.and_then(|targets| {
        let items = targets.list()?;
        if items.is_empty() {
            targets.refuse("`targets` is empty", TARGET);
        }
        Some(items)
    });
    let targets: Vec<Uri> = items.unwrap_or_default().iter().filter_map(target).collect();
    if let Some(first) = targets.first()
        && targets.iter().any(|target| target.scheme() != first.scheme())
    {
        section.notes.error(
            section.value_span("targets"),
            "some targets are http:// and some h2c://",
            "an upstream for each protocol",
        );
    }
    let connections = section.number("connections", 1_024, 1, CONNECTIONS_MOST);
    let timeouts = section.section("timeouts");
    let connect = timeouts.duration("connect", server.connect, MILLI);
    let response = timeouts.duration("response", server.response, MILLI);
    timeouts.finish();
    section.finish();
    upstream::Settings {
        name: name.to_owned(),
        targets,
        connections,
        connect,
        response,
    }
}

fn target(item: &Item<'_>) -> Option<Uri> {
    let text = item.text()?;
    let refuse = |problem: &str| {
        item.refuse(format!("the target is {problem}"), TARGET);
        None
    };
    if text.contains('@') {
        return refuse("no place for a user name or a password");
    }
    let Ok(uri) = text.parse::<Uri>() else {
        return refuse("not a URL");
    };
    let scheme = uri.scheme_str().filter(|scheme| SCHEMES.contains(scheme));
    let (Some(authority), Some(scheme)) = (uri.authority(), scheme) else {
        return refuse("neither an http:// nor an h2c:// URL");
    };
    // The parser drops a fragment, and answers an empty path with a slash.
    let bare = text.len() == scheme.len() + "://".len() + authority.as_str().len();
    if !bare {
        return refuse("more than a host and a port");
    }
    if authority.host().is_empty() || (authority.as_str() != authority.host() && port(authority).is_none()) {
        return refuse("without a host, or without a port behind its colon");
    }
    Some(uri)
}

fn port(authority: &http::uri::Authority) -> Option<u16> {
    authority.port_u16().filter(|&port| port > 0)
}

/// Reads `[[route]]`. Without any, everything goes to the only upstream.
pub(super) fn routes(root: &Section<'_>, upstreams: &[upstream::Settings]) -> Vec<Route> {
    let sections = root.sections(ROUTE);
    if sections.is_empty() {
        if let [_, _, ..] = upstreams {
            let span = root.value_span(UPSTREAM);
            let problem = "there are several upstreams and no route";
            root.notes.absent(
                ROUTE,
                span,
                problem,
                "a `[[route]]` for each upstream, with `path` or `host`",
            );
        }
        let everything = |upstream: &upstream::Settings| {
            Some(Route {
                host: None,
                path: PathPattern::parse(EVERYTHING).ok()?,
                upstream: upstream.name.clone(),
            })
        };
        return upstreams.first().and_then(everything).into_iter().collect();
    }
    let mut routes: Vec<At<Route>> = Vec::new();
    for section in &sections {
        if let Some(route) = route(section, upstreams) {
            clash(section, &route, &routes);
            routes.push(route);
        }
    }
    routes.into_iter().map(|route| route.value).collect()
}

fn route(section: &Section<'_>, upstreams: &[upstream::Settings]) -> Option<At<Route>> {
    let path = match section.item("path") {
        Some(item) => path(&item),
        None => PathPattern::parse(EVERYTHING).ok(),
    };
    let host_item = section.item("host");
    let has_host = host_item.is_some();
    let host = host_item.and_then(|item| host(&item));
    let names: Vec<&str> = upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    let upstream = section.required(
        "upstream",
        &format!("the name of one; {}", suggestion("", &names)),
    );
    let upstream = upstream.and_then(|item| {
        let name = item.text()?;
        if !names.contains(&name) {
            let problem = format!("there is no upstream {}", quoted(name));
            item.notes
                .absent(UPSTREAM, item.span, problem, suggestion(name, &names));
        }
        Some(name)
    });
    section.finish();
    if has_host && host.is_none() {
        return None;
    }
    Some(At {
        value: Route {
            host,
            path: path?,
            upstream: upstream?.to_owned(),
        },
        span: section.header,
    })
}

/// Refuses a route that no request can be told from an earlier one for.
fn clash(section: &Section<'_>, route: &At<Route>, earlier: &[At<Route>]) {
    let host = |route: &Route| route.host.as_ref().map(host_key);
    let same_host: Vec<&At<Route>> = earlier
        .iter()
        .filter(|other| host(&other.value) == host(&route.value))
        .collect();
    let shape = route.value.path.shape();
    if let Some(same) = same_host.iter().find(|other| other.value.path.shape() == shape) {
        let line = section.notes.line(same.span);
        let problem = format!("the route in line {line} has the same host and the same path pattern");
        section.notes.error(
            section.value_span("path"),
            problem,
            "one route for each host and pattern",
        );
    }
}

/// A host pattern as it is compared: in any case, with or without its last dot.
pub(super) fn host_key(host: &HostPattern) -> String {
    host.text().trim_end_matches('.').to_ascii_lowercase()
}

/// A path pattern.
pub(super) fn path(item: &Item<'_>) -> Option<PathPattern> {
    let text = item.text()?;
    PathPattern::parse(text)
        .inspect_err(|error| {
            let problem = format!("{} is not a path pattern: {error}", quoted(text));
            item.refuse(problem, "like \"/v1/users/{id}\" or \"/files/{*rest}\"");
        })
        .ok()
}

/// A host pattern.
pub(super) fn host(item: &Item<'_>) -> Option<HostPattern> {
    let text = item.text()?;
    HostPattern::parse(text)
        .inspect_err(|error| {
            let problem = format!("{} is not a host pattern: {error}", quoted(text));
            item.refuse(
                problem,
                "like \"api.example.com\" or \"*.example.com\", without port",
            );
        })
        .ok()
}
