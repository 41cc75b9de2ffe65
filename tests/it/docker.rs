//! What `docker/` says is run as far as it goes without an engine: its config, its Redis servers, its checks of health.

use std::fs::read_to_string;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use tollgate::config::{self, Settings, Surroundings};

use crate::support::{Ask, Gateway, Limits, Redis, Upstream, python, unused_port, wait_until};

const DOCKERFILE: &str = include_str!("../../docker/Dockerfile");
const COMPOSE: &str = include_str!("../../docker/compose.yaml");
const CONFIG: &str = include_str!("../../docker/gateway.toml");
/// How long servers may take to agree.
const PATIENCE: Duration = Duration::from_secs(15);
const TOKEN: &str = "a-token";
/// Where the config is in the container.
const FOLDER: &str = "/etc/tollgate";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The instructions of the Dockerfile, those on several lines joined: their word and their arguments.
fn instructions() -> Vec<(String, String)> {
    let lines = DOCKERFILE.lines().filter(|line| !line.starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let instructions = text.lines().filter_map(|line| line.split_once(' '));
    instructions
        .map(|(word, arguments)| (word.to_owned(), arguments.trim().to_owned()))
        .collect()
}

/// The arguments of the only instruction of a kind in the last stage.
#[track_caller]
fn last_stage(word: &str) -> String {
    let all = instructions();
    let start = all.iter().rposition(|(word, _)| word == "FROM").unwrap();
    let found: Vec<_> = all[start..].iter().filter(|(own, _)| own == word).collect();
    assert_eq!(found.len(), 1, "{word}: {found:?}");
    found[0].1.clone()
}

/// What the builder copies from the root.
fn copied() -> Vec<String> {
    let all = instructions();
    let copies = all
        .iter()
        .filter(|(word, arguments)| word == "COPY" && !arguments.starts_with("--from="));
    let sources = copies.flat_map(|(_, arguments)| {
        let mut names: Vec<_> = arguments.split_whitespace().map(str::to_owned).collect();
        names.pop();
        names
    });
    sources.collect()
}

fn compose() -> Value {
    serde_json::from_str(&python("compose.py", &[], COMPOSE.as_bytes()).printed()).unwrap()
}

fn service(name: &str) -> Value {
    compose()["services"][name].take()
}

#[track_caller]
fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().unwrap_or_else(|| panic!("{list} is no list"));
    let texts = list.iter().map(|item| item.as_str().unwrap().to_owned());
    texts.collect()
}

/// The variables that the gateway gets, with the value that a person gives each: there is none by default.
fn variables() -> Vec<(String, &'static str)> {
    let service = service("gateway");
    let variables = service["environment"].as_object().unwrap().iter();
    let variables = variables.map(|(name, value)| {
        let value = value.as_str().unwrap();
        assert!(value.starts_with(&format!("${{{name}:?")), "{name} is {value}");
        (name.clone(), TOKEN)
    });
    variables.collect()
}

/// The config as the container reads it.
fn settings() -> Settings {
    let variables = variables();
    let surroundings = Surroundings {
        variable: &|name| {
            let found = variables.iter().find(|(own, _)| own == name);
            found.map(|(_, value)| value.into())
        },
        folder: Path::new(FOLDER),
    };
    match config::parse("gateway.toml", CONFIG, &surroundings) {
        Ok(loaded) => loaded.settings,
        Err(report) => panic!("{report}"),
    }
}

fn check(variables: &[(String, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["check", "--config"])
        .arg(root().join("docker/gateway.toml"))
        .env_clear()
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap()
}

/// A server with the command line that a service has, but its own port and folder.
#[track_caller]
fn redis(name: &str, primary: Option<&Redis>) -> Redis {
    let port = primary.map(|primary| primary.port().to_string());
    let command = texts(&service(name)["command"]);
    assert_eq!(command[0], "redis-server");
    let mut options: Vec<&str> = command[1..].iter().map(String::as_str).collect();
    if let Some(port) = &port {
        let place = options
            .iter()
            .position(|option| *option == "--replicaof")
            .unwrap();
        assert_eq!(options[place + 1..place + 3], ["redis", "6379"]);
        options[place + 1] = "127.0.0.1";
        options[place + 2] = port;
    }
    Redis::with(&options)
}

/// A gateway with the config of the container, but other places, and patience with a busy machine.
fn gateway(upstream: &Upstream, redis: &Redis) -> Gateway {
    let mut text = CONFIG.to_owned();
    for (theirs, own) in [
        ("0.0.0.0:8080", "127.0.0.1:0".to_owned()),
        ("0.0.0.0:9901", "127.0.0.1:0".to_owned()),
        ("http://upstream:80", format!("http://{}", upstream.addr())),
        ("redis://redis:6379", redis.url()),
        (
            "kind = \"redis\"",
            "kind = \"redis\"\ndeadline = \"5s\"".to_owned(),
        ),
    ] {
        assert!(text.contains(theirs), "no {theirs}");
        text = text.replace(theirs, &own);
    }
    let variables = variables();
    let variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| (name.as_str(), *value))
        .collect();
    Gateway::start_text(&text, &variables)
}

/// Whether the gateway's check of health finds it well at this port, with this token.
fn is_well(admin: SocketAddr, token: &str) -> bool {
    let command = texts(&service("gateway")["healthcheck"]["test"]);
    assert_eq!(command[0], "CMD");
    let place = settings().admin.listen.unwrap().port();
    let place = format!("/dev/tcp/127.0.0.1/{place}");
    let script = command.last().unwrap();
    assert!(script.contains(&place), "{script}");
    let script = script.replace(&place, &format!("/dev/tcp/127.0.0.1/{}", admin.port()));
    let output = Command::new(&command[1])
        .args(&command[2..command.len() - 1])
        .arg(script)
        .env("TOLLGATE_ADMIN", token)
        .output();
    output.unwrap().status.success()
}

#[test]
fn the_config_is_good_with_the_variables_of_compose_and_not_without() {
    let variables = variables();
    let output = check(&variables);
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("no warnings"), "{said}");
    for (place, (name, _)) in variables.iter().enumerate() {
        let mut others = variables.clone();
        others.remove(place);
        assert_eq!(check(&others).status.code(), Some(1), "{name} is not needed");
    }
}

#[test]
fn services_names_and_ports_agree() {
    let (compose, settings) = (compose(), settings());
    let services = &compose["services"];
    let networks = |name: &str| texts(&services[name]["networks"]);
    let redis = settings.store.redis.unwrap();
    let shards = redis.servers.listed();
    let targets = settings.upstreams.iter().flat_map(|upstream| &upstream.targets);
    let mut hosts: Vec<_> = targets.map(|target| target.host().unwrap().to_owned()).collect();
    for shard in shards {
        assert_eq!(shard.port, 6_379);
        hosts.push(shard.host.clone());
    }
    assert_eq!(hosts, ["upstream", "redis"]);
    for host in &hosts {
        let own = networks(host);
        let shared = networks("gateway")
            .into_iter()
            .any(|network| own.contains(&network));
        assert!(shared, "the gateway does not reach {host}");
        assert!(!services["gateway"]["depends_on"][host].is_null(), "{host}");
    }
    for (name, service) in services.as_object().unwrap() {
        assert!(service["restart"].is_string(), "{name}");
        assert!(service["healthcheck"]["test"].is_array(), "{name}");
        assert_eq!(service["ports"].is_null(), name != "gateway", "{name}");
        for network in networks(name) {
            assert!(compose["networks"].get(&network).is_some(), "{network} of {name}");
        }
    }
    for name in ["redis", "replica"] {
        assert_eq!(networks(name), ["store"]);
        let volume = texts(&services[name]["volumes"]);
        assert_eq!(volume, [format!("{name}:/data")]);
        assert!(compose["volumes"].get(name).is_some(), "{name}");
    }
    assert_eq!(compose["networks"]["store"]["internal"], true);
    let port = settings.server.listen[0].port();
    let admin = settings.admin.listen.unwrap().port();
    let ports = texts(&services["gateway"]["ports"]);
    assert_eq!(
        ports,
        [format!("{port}:{port}"), format!("127.0.0.1:{admin}:{admin}")]
    );
    assert_eq!(last_stage("EXPOSE"), format!("{port} {admin}"));
    let grace = services["gateway"]["stop_grace_period"].as_str().unwrap();
    let grace = grace.strip_suffix('s').unwrap().parse().unwrap();
    assert!(Duration::from_secs(grace) > settings.server.drain, "{grace}");
}

#[test]
fn the_container_finds_its_config() {
    let service = service("gateway");
    let (source, target) = ("docker", format!(".:{FOLDER}:ro"));
    assert_eq!(texts(&service["volumes"]), [target]);
    assert_eq!(last_stage("ENTRYPOINT"), "[\"tollgate\"]");
    let command: Vec<String> = serde_json::from_str(&last_stage("CMD")).unwrap();
    let config = format!("{FOLDER}/gateway.toml");
    assert_eq!(command, ["run", "--config", &config]);
    assert!(service["command"].is_null() && service["entrypoint"].is_null());
    let folder = root().join(source);
    let context = folder.join(service["build"]["context"].as_str().unwrap());
    let file: PathBuf = context.join(service["build"]["dockerfile"].as_str().unwrap());
    assert_eq!(read_to_string(file).unwrap(), DOCKERFILE);
}

#[test]
fn the_image_runs_as_nobody_and_stops_on_term() {
    let user = last_stage("USER");
    let ids: Vec<u32> = user.split(':').map(|id| id.parse().unwrap()).collect();
    assert!(ids.len() == 2 && !ids.contains(&0), "{user}");
    assert_eq!(last_stage("STOPSIGNAL"), "SIGTERM");
    let all = instructions();
    let stages = all.iter().filter(|(word, _)| word == "FROM");
    let releases: Vec<_> = stages.map(|(_, image)| image.contains("bookworm")).collect();
    assert_eq!(releases, [true, true], "the two stages have the same C library");
}

#[test]
fn what_is_copied_is_there_and_enough_to_build() {
    let ignored = read_to_string(root().join(".dockerignore")).unwrap();
    let lines: Vec<_> = ignored.lines().filter(|line| !line.starts_with('#')).collect();
    let mut kept: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix('!')).collect();
    let mut copied = copied();
    kept.sort_unstable();
    copied.sort_unstable();
    assert_eq!(lines[0], "*");
    assert_eq!(copied, kept);
    let folder = tempfile::tempdir().unwrap();
    for name in &copied {
        let status = Command::new("cp")
            .arg("-r")
            .args([&root().join(name), folder.path()])
            .status();
        assert!(status.unwrap().success(), "{name}");
    }
    // It says that there is no such program, once it has found everything else that the manifest names.
    let cargo = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--offline", "--bin", "none"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&cargo.stderr);
    assert!(said.contains("no bin target named `none`"), "{said}");
    let mut folders = vec![folder.path().join("src")];
    let mut included = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = read_to_string(&path).unwrap();
            for rest in text.split("include_str!(\"").skip(1) {
                let name = rest.split('"').next().unwrap();
                assert!(folder.join(name).is_file(), "{name} in {}", path.display());
                included += 1;
            }
        }
    }
    assert!(included > 5, "{included}");
}

#[test]
fn the_servers_keep_what_was_charged() {
    let upstream = Upstream::start();
    let mut primary = redis("redis", None);
    for (option, value) in [
        ("maxmemory-policy", "noeviction"),
        ("appendonly", "yes"),
        ("appendfsync", "everysec"),
    ] {
        let (_, found): (String, String) = primary.ask(&["CONFIG", "GET", option]);
        assert_eq!(found, value, "{option}");
    }
    let (_, most): (String, u64) = primary.ask(&["CONFIG", "GET", "maxmemory"]);
    assert!(most > 0, "without a bound the machine's memory is what is full");
    // It would wait for more replicas.
    primary.ask::<()>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let replica = redis("replica", Some(&primary));
    let gateway = gateway(&upstream, &primary);
    let left = || {
        let answer = gateway.ask(&Ask::post("/login", ""));
        assert_eq!(answer.status, 200, "{}", answer.text());
        Limits::of(&answer)
    };
    let first = left();
    assert_eq!((first.resource.as_str(), first.remaining), ("login", 9));
    // Compared afresh each time: the bucket of an address is gone a second after it is full again.
    let keys = |server: &Redis| {
        let mut keys: Vec<String> = server.ask(&["KEYS", "*"]);
        keys.sort_unstable();
        keys
    };
    wait_until("the replica has it", PATIENCE, || {
        let (own, theirs) = (keys(&replica), keys(&primary));
        !own.is_empty() && own == theirs
    });
    let told: String = replica.ask(&["INFO", "replication"]);
    assert!(told.contains("role:slave"), "{told}");
    primary.kill();
    primary.revive();
    wait_until("the primary decides again", PATIENCE, || {
        gateway.ask(&Ask::post("/login", "")).status == 200
    });
    assert!(left().remaining <= 7, "the charge before the crash counts");
}

#[test]
fn the_check_of_health_tells_well_from_unwell() {
    let (upstream, server) = (Upstream::start(), redis("redis", None));
    let gateway = gateway(&upstream, &server);
    let admin = gateway.admin_addr();
    assert!(is_well(admin, TOKEN));
    assert!(!is_well(admin, "another"), "it is refused");
    assert!(!is_well(unused_port(), TOKEN), "nobody is there");
}

#[test]
fn the_servers_check_of_health_tells_well_from_unwell() {
    let server = redis("redis", None);
    for name in ["redis", "replica"] {
        let command = texts(&service(name)["healthcheck"]["test"]);
        assert_eq!(command[0], "CMD-SHELL");
        let well = |port: u16| {
            let script = command[1].replace("redis-cli", &format!("redis-cli -p {port}"));
            let output = Command::new("sh").args(["-c", &script]).output();
            output.unwrap().status.success()
        };
        assert!(well(server.port()), "{command:?}");
        assert!(!well(unused_port().port()), "{command:?}");
    }
}
