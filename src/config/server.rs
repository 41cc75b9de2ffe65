//! `[server]`, `[admin]`, `[log]` and `[headers]`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use super::item::{At, Item, Word};
use super::reader::Section;
use super::secret;
use super::words::quoted;
use crate::proxy::Profile;
use crate::telemetry::{Format, Level};
use crate::{admin, server, telemetry};

const LEVELS: [Word<Level>; 5] = [
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("trace", Level::Trace),
];
const FORMATS: [Word<Format>; 2] = [("text", Format::Text), ("json", Format::Json)];
pub(super) const PROFILES: [Word<Profile>; 2] = [("github", Profile::Github), ("draft", Profile::Draft)];
const LATER_PROFILES: [&str; 5] = ["draft-7", "draft-6", "gitlab", "discord", "twitter"];

/// The HTTP library reads heads into a buffer that is never smaller.
pub(super) const HEADER_BYTES_LEAST: u64 = 8_192;
/// So many fields fit into the HTTP library's table of them.
const HEADER_COUNT_MOST: usize = 24_576;
/// More than a process can have files open.
pub(super) const CONNECTIONS_MOST: usize = 1 << 28;
const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const ADDRESS: &str = "an address and a port, like \"127.0.0.1:8080\" or \"[::1]:8080\"";

/// `[server]`, before it is shared out to the modules that each part is for.
pub(super) struct Server {
    pub(super) sockets: server::Settings,
    /// With their places.
    pub(super) listen: Vec<At<SocketAddr>>,
    pub(super) trusted_proxies: Vec<IpNet>,
    pub(super) body: Duration,
    pub(super) connect: Duration,
    pub(super) response: Duration,
    pub(super) uri_bytes: usize,
    pub(super) body_bytes: u64,
}

/// Reads `[server]`.
pub(super) fn server(root: &Section<'_>) -> Server {
    let server = root.section("server");
    let listen = listen(&server);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = server.number("workers", cores, 1, 1_024);
    let trusted_proxies = networks(&server);

    let timeouts = server.section("timeouts");
    let timeout = |key, secs| timeouts.duration(key, SECOND * secs, MILLI);
    let (header, body, idle) = (timeout("header", 10), timeout("body", 30), timeout("idle", 75));
    let (connect, response) = (timeout("connect", 2), timeout("response", 30));
    let drain = timeouts.duration("drain", SECOND * 30, Duration::ZERO);
    timeouts.finish();

    let limits = server.section("limits");
    let header_bytes = header_bytes(&limits);
    let header_count = limits.number("header_count", 100, 1, HEADER_COUNT_MOST);
    let uri_bytes = limits.size("uri_bytes", 16 << 10, 1, u64::from(u32::MAX));
    let body_bytes = limits.size("body_bytes", 0, 0, u64::MAX);
    let connections = limits.number("connections", 10_000, 1, CONNECTIONS_MOST);
    let connections_per_ip = limits.number("connections_per_ip", 0, 0, CONNECTIONS_MOST);
    limits.finish();
    server.finish();

    Server {
        sockets: server::Settings {
            listen: listen.iter().map(|listen| listen.value).collect(),
            workers,
            header,
            idle,
            drain,
            header_bytes,
            header_count,
            connections,
            connections_per_ip,
        },
        listen,
        trusted_proxies,
        body,
        connect,
        response,
        uri_bytes: usize::try_from(uri_bytes).unwrap_or(usize::MAX),
        body_bytes,
    }
}

fn listen(server: &Section<'_>) -> Vec<At<SocketAddr>> {
    const KEY: &str = "listen";
    let Some(items) = server.list(KEY) else {
        let default = SocketAddr::from(([127, 0, 0, 1], 8080));
        return vec![At {
            value: default,
            span: server.header,
        }];
    };
    if items.is_empty() {
        server
            .notes
            .error(server.value_span(KEY), "`listen` is empty", ADDRESS);
    }
    let mut listen: Vec<At<SocketAddr>> = Vec::new();
    for item in &items {
        let Some(address) = item.text().and_then(|text| address(item, text)) else {
            continue;
        };
        if address.port() != 0 && listen.iter().any(|other| other.value == address) {
            item.refuse(format!("{address} is listed twice"), "each address once");
        }
        listen.push(item.at(address));
    }
    listen
}

fn address(item: &Item<'_>, text: &str) -> Option<SocketAddr> {
    let address = text.parse().ok();
    if address.is_none() {
        item.refuse(format!("{} is no address to listen on", quoted(text)), ADDRESS);
    }
    address
}

fn networks(server: &Section<'_>) -> Vec<IpNet> {
    let network = |item: &Item<'_>| {
        let text = item.text()?;
        let network = network(text);
        if network.is_none() {
            let problem = format!("{} is not a network", quoted(text));
            item.refuse(problem, "a CIDR, like \"10.0.0.0/8\" or \"fd00::/8\"");
        }
        network
    };
    let items = server.list("trusted_proxies").unwrap_or_default();
    items.iter().filter_map(network).collect()
}

/// A CIDR, or an address as the network of itself. IPv4-mapped addresses are the IPv4 addresses that they map.
pub(super) fn network(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address.to_canonical()),
        Err(_) => text.parse::<IpNet>().ok()?.trunc(),
    };
    let mapped = match network {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => v6.addr().to_ipv4_mapped(),
        _ => None,
    };
    match mapped {
        Some(v4) => IpNet::new(IpAddr::V4(v4), network.prefix_len() - 96).ok(),
        None => Some(network),
    }
}

fn header_bytes(limits: &Section<'_>) -> usize {
    let default = 64 << 10;
    let read = |item: Item<'_>| {
        let size = item.size()?;
        if size < HEADER_BYTES_LEAST {
            let problem =
                format!("`header_bytes` is {size}: heads are read into a buffer of at least 8192 bytes");
            item.refuse(problem, "at least \"8KiB\"");
        }
        let size = item.within(size, 0, u64::from(u32::MAX), |size| size.to_string())?;
        usize::try_from(size).ok()
    };
    limits.item("header_bytes").and_then(read).unwrap_or(default)
}

/// Reads `[admin]`. `server` is where the gateway itself listens.
pub(super) fn admin(root: &Section<'_>, server: &[At<SocketAddr>]) -> admin::Settings {
    let admin = root.section("admin");
    let listen = match admin.item("listen") {
        Some(item) => item.text().and_then(|text| match text {
            "" => None,
            _ => address(&item, text).map(|address| item.at(address)),
        }),
        None => Some(At {
            value: SocketAddr::from(([127, 0, 0, 1], 9901)),
            span: admin.header,
        }),
    };
    const TOKEN: &str = "token";
    let token_item = admin.item(TOKEN);
    if let Some(listen) = &listen {
        let address = listen.value;
        if !address.ip().to_canonical().is_loopback() && token_item.is_none() {
            let problem = format!("`{TOKEN}` is missing in [admin]: {address} is not a loopback address");
            admin.notes.absent(
                TOKEN,
                admin.header,
                problem,
                "`token = \"env:NAME\"`, or listen on 127.0.0.1",
            );
        }
        if address.port() != 0 && server.iter().any(|server| server.value == address) {
            let problem = format!("{address} is where [server] listens");
            admin.notes.error(listen.span, problem, "another port");
        }
    }
    let token = token_item.and_then(|item| {
        let token = secret::read(&item)?;
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            item.refuse(
                "the token cannot be sent in a header field",
                "printable ASCII without spaces",
            );
        }
        Some(token)
    });
    admin.finish();
    admin::Settings {
        listen: listen.map(|listen| listen.value),
        token,
    }
}

/// Reads `[log]`.
pub(super) fn log(root: &Section<'_>) -> telemetry::Settings {
    let log = root.section("log");
    let settings = telemetry::Settings {
        level: log.word("level", &LEVELS, &[], Level::Info),
        format: log.word("format", &FORMATS, &[], Format::Text),
    };
    log.finish();
    settings
}

/// Reads `[headers]`.
pub(super) fn headers(root: &Section<'_>) -> Vec<Profile> {
    let headers = root.section("headers");
    let profiles = match headers.list("send") {
        Some(items) => {
            let mut profiles = Vec::new();
            for item in &items {
                let Some(profile) = item.word(&PROFILES, &LATER_PROFILES) else {
                    continue;
                };
                if profiles.contains(&profile) {
                    item.refuse("this profile is listed twice", "each profile once");
                }
                profiles.push(profile);
            }
            profiles
        }
        None => vec![Profile::Github, Profile::Draft],
    };
    headers.finish();
    profiles
}
