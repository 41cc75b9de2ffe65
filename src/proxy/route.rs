//! Which upstream a request goes to.

use std::collections::HashMap;

use matchit::Router;

use super::Route;
use crate::rules::{HostPattern, PathPattern, spellings};

/// The routes in force. A route of the asked host is better than one for all hosts below a name, and that is better than
/// one for any host; among those of one host the most specific path wins, segment by segment from the left,
/// then the first.
#[derive(Debug, Default)]
pub struct RouteTable {
    exact: HashMap<String, Paths>,
    /// The longest name first.
    below: Vec<(HostPattern, Paths)>,
    any: Paths,
}

/// The paths of one host. A router of the matching crate does not hold `/{a}` beside `/{*b}`, so there may be several.
#[derive(Debug, Default)]
struct Paths {
    routers: Vec<Router<Found>>,
    shapes: Vec<String>,
}

/// The less, the better.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    specificity: Vec<Segment>,
    route: usize,
}

/// What a pattern says of one segment, the most specific first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Literal,
    Mixed,
    Capture,
    Rest,
}

/// A route with the host and the path of an earlier one: no request could tell them apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no request could tell route {} from an earlier one", .route + 1)]
pub struct RouteConflict {
    /// The place of the route in the list.
    pub route: usize,
}

impl RouteTable {
    /// Makes a table of `routes`; what it finds are places in that list.
    ///
    /// # Errors
    /// A route cannot be told from an earlier one.
    pub fn new(routes: &[Route]) -> Result<Self, RouteConflict> {
        let mut table = Self::default();
        for (route, Route { host, path, .. }) in routes.iter().enumerate() {
            if !table.paths(host.as_ref()).insert(path, route) {
                return Err(RouteConflict { route });
            }
        }
        table
            .below
            .sort_by_key(|(host, _)| std::cmp::Reverse(host.text().len()));
        Ok(table)
    }

    fn paths(&mut self, host: Option<&HostPattern>) -> &mut Paths {
        match host {
            None => &mut self.any,
            Some(host) if host.is_exact() => self.exact.entry(host.name().to_owned()).or_default(),
            Some(host) => {
                let place = self
                    .below
                    .iter()
                    .position(|(known, _)| known.name() == host.name());
                let place = place.unwrap_or_else(|| {
                    self.below.push((host.clone(), Paths::default()));
                    self.below.len() - 1
                });
                &mut self.below[place].1
            }
        }
    }

    /// The place of the route for a host (without port; asked for only if a route has one) and a normal path.
    pub fn find<'h>(&self, host: impl FnOnce() -> Option<&'h str>, path: &str) -> Option<usize> {
        let named = !self.exact.is_empty() || !self.below.is_empty();
        let host = if named { host() } else { None };
        host.and_then(|host| self.find_named(host, path))
            .or_else(|| self.any.find(path))
    }

    fn find_named(&self, host: &str, path: &str) -> Option<usize> {
        let exact = if self.exact.is_empty() {
            None
        } else {
            self.exact.get(&host.to_ascii_lowercase())
        };
        let below = self
            .below
            .iter()
            .filter(|(pattern, _)| pattern.matches(host))
            .map(|(_, paths)| paths);
        exact.into_iter().chain(below).find_map(|paths| paths.find(path))
    }
}

impl Paths {
    /// Adds a pattern; `false` if one of its shape is there already.
    fn insert(&mut self, pattern: &PathPattern, route: usize) -> bool {
        let shape = pattern.shape();
        let specificity = shape.split('/').skip(1).map(Segment::of).collect();
        if self.shapes.contains(&shape) {
            return false;
        }
        self.shapes.push(shape);
        let found = Found { specificity, route };
        for spelling in spellings(pattern.text()) {
            let fits = self
                .routers
                .iter_mut()
                .any(|router| router.insert(spelling, found.clone()).is_ok());
            if !fits {
                let mut router = Router::new();
                if router.insert(spelling, found.clone()).is_ok() {
                    self.routers.push(router);
                }
            }
        }
        true
    }

    fn find(&self, path: &str) -> Option<usize> {
        let found = self.routers.iter().filter_map(|router| router.at(path).ok());
        found.map(|found| found.value).min().map(|found| found.route)
    }
}

impl Segment {
    fn of(shape: &str) -> Self {
        match shape {
            "{*}" => Self::Rest,
            "{}" => Self::Capture,
            mixed if mixed.contains("{}") => Self::Mixed,
            _ => Self::Literal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(routes: &[(&str, &str)]) -> Result<RouteTable, RouteConflict> {
        let routes: Vec<Route> = routes
            .iter()
            .map(|(host, path)| Route {
                host: (!host.is_empty()).then(|| HostPattern::parse(host).unwrap()),
                path: PathPattern::parse(path).unwrap(),
                upstream: String::new(),
            })
            .collect();
        RouteTable::new(&routes)
    }

    #[test]
    fn the_most_specific_route_wins() {
        let table = table(&[
            ("", "/{*rest}"),
            ("", "/v1/{*rest}"),
            ("", "/v1/users/{id}"),
            ("", "/v1/users/me"),
            ("*.example.com", "/{*rest}"),
            ("*.api.example.com", "/{*rest}"),
            ("API.example.com", "/v1/{*rest}"),
            ("", "/v1/{name}/{*more}"),
            ("", "/v1/orders"),
            ("", "/v1/orders/{*rest}"),
            ("", "/{version}/x"),
            ("", "/v3/x{id}"),
            ("", "/v3/{id}x"),
        ])
        .unwrap();
        for (host, path, expected) in [
            (None, "/", 0),
            (None, "/x", 0),
            (None, "/v1", 1),
            (None, "/v1/x", 7),
            (None, "/v1/users/7", 2),
            (None, "/v1/users/me", 3),
            (None, "/v1/users/7/x", 7),
            (None, "/v1/orders", 8),
            (None, "/v1/orders/1", 9),
            (Some("a.example.com"), "/v1/users/me", 4),
            (Some("b.api.example.com"), "/", 5),
            (Some("api.Example.com"), "/v1/x", 6),
            (Some("api.example.com"), "/v2", 4),
            (Some("other.test"), "/v1/users/me", 3),
            (None, "/v2/x", 10),
            (None, "/v2/x/y", 0),
            (None, "/v3/xx", 11),
            (None, "/v3/yx", 12),
        ] {
            assert_eq!(table.find(|| host, path), Some(expected), "{host:?} {path}");
        }
    }

    #[test]
    fn routes_that_nothing_can_tell_apart_are_conflicts() {
        let conflict = table(&[("", "/a/{x}"), ("", "/b"), ("", "/a/{y}")]).unwrap_err();
        assert_eq!(conflict, RouteConflict { route: 2 });
        assert!(table(&[("a.test", "/{*rest}"), ("b.test", "/{*rest}"), ("", "/{*rest}")]).is_ok());
    }

    #[test]
    fn without_a_route_there_is_none() {
        let table = table(&[("a.test", "/{*rest}"), ("", "/x")]).unwrap();
        assert_eq!(table.find(|| None, "/"), None);
        assert_eq!(table.find(|| Some("b.test"), "/y"), None);
    }
}
