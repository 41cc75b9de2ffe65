//! What the documents say is run: every command of the README and of the demo, every config in them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tollgate::config::{self, Surroundings};

use crate::support::{Ask, Cluster, Config, Gateway, Limits, Redis, Sentinel, Upstream, Watched, curl, rule};

const README: &str = include_str!("../../README.md");
const CI: &str = include_str!("../../.ci/run");
const EXAMPLE: &str = include_str!("../../gateway.toml");

const AXUM: &str = include_str!("../../examples/axum.rs");
/// A file that a command of the README writes.
const SCHEMA: &str = "gateway.schema.json";

/// A fenced block of the README: its language and its text.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let fenced = README.split("\n```").skip(1).step_by(2);
    fenced.filter_map(|block| block.split_once('\n')).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `tollgate demo` on free ports, and what it says.
struct Demo {
    child: Child,
    gateway: String,
    commands: Vec<String>,
}

impl Demo {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut lines = Vec::new();
        for line in said.lines() {
            let line = line.unwrap();
            let last = line.contains("/metrics");
            lines.push(line);
            if last {
                break;
            }
        }
        let address = lines[0]
            .split("http://")
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap();
        let commands = lines
            .iter()
            .filter_map(|line| line.strip_prefix("  "))
            .map(str::to_owned)
            .collect();
        Self {
            child,
            gateway: address.to_owned(),
            commands,
        }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

fn shell(command: &str) -> String {
    let output = Command::new("bash")
        .args(["-ec", command])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn every_command_of_the_readme_does_what_it_says() {
    curl(&["--version"]);
    let demo = Demo::start();
    let blocks = blocks();
    let mut run = 0;
    for (place, (_, text)) in blocks
        .iter()
        .enumerate()
        .filter(|(_, (language, _))| *language == "sh")
    {
        for command in text.lines() {
            match command {
                "cargo run --release -- demo" | "cargo run --example axum" | "scripts/test" => continue,
                "tollgate run --config gateway.toml" => continue,
                _ => run += 1,
            }
            let command = command
                .replace("127.0.0.1:8080", &demo.gateway)
                .replace(SCHEMA, &format!("{}/{SCHEMA}", env!("CARGO_TARGET_TMPDIR")));
            let command = match command.strip_prefix("tollgate ") {
                Some(arguments) => format!("{} {arguments}", env!("CARGO_BIN_EXE_tollgate")),
                None => command,
            };
            let said = shell(&command);
            if let Some(("text", expected)) = blocks.get(place + 1) {
                for line in expected.lines() {
                    assert!(
                        said.lines().any(|said| said == line),
                        "no {line:?} from {command}:\n{said}"
                    );
                }
            }
        }
    }
    assert!(run >= 5, "only {run} commands were found");
}

#[test]
fn every_command_of_the_demo_works() {
    curl(&["--version"]);
    let demo = Demo::start();
    assert!(demo.commands.len() >= 5, "{:?}", demo.commands);
    let said: Vec<String> = demo.commands.iter().map(|command| shell(command)).collect();
    assert!(said[0].starts_with("HTTP/1.1 200"), "{}", said[0]);
    assert!(said[1].contains("200 left: 0\n429 left: 0\n"), "{}", said[1]);
    assert!(
        said[2].starts_with("HTTP/1.1 304") && said[2].contains("x-ratelimit-remaining: 5"),
        "{}",
        said[2]
    );
    assert!(said[3].contains("x-ratelimit-limit: 25"), "{}", said[3]);
    assert!(said[4].contains("x-ratelimit-resource: per-ip"), "{}", said[4]);
    let metrics = said.last().unwrap();
    assert!(
        metrics.contains("tollgate_decisions_total{rule=\"per-user\",verdict=\"reject\"} 1"),
        "{metrics}"
    );
}

#[test]
fn every_config_of_the_readme_is_accepted_without_a_word() {
    let mut configs = 0;
    for (_, text) in blocks().iter().filter(|(language, _)| *language == "toml") {
        configs += 1;
        match config::parse("README.md", text, &Surroundings::of_process(root())) {
            Ok(loaded) => assert!(loaded.report.findings().is_empty(), "{}", loaded.report),
            Err(report) => panic!("{report}"),
        }
    }
    assert!(configs > 0);
}

#[test]
fn every_topology_of_the_readme_decides() {
    let table = README.split("### More than one Redis").nth(1).unwrap();
    let rows: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split('`').nth(1))
        .filter(|line| line.contains(" = "))
        .collect();
    assert_eq!(rows.len(), 4);
    let (upstream, cluster, watched) = (Upstream::start(), Cluster::start(2, 0), Watched::start(0));
    let shards: Vec<Redis> = (0..3).map(|_| Redis::start()).collect();
    for row in rows {
        let servers: Vec<String> = match row.split(' ').next().unwrap() {
            "shards" => shards.iter().map(Redis::url).collect(),
            "cluster" => cluster.urls(),
            "sentinel" => watched.sentinels.iter().map(Sentinel::url).collect(),
            other => panic!("{other}"),
        };
        let mut store = row.to_owned();
        for (number, server) in servers.iter().enumerate() {
            for port in [6_379, 7_000, 26_379] {
                let documented = format!("redis://10.0.0.{}:{port}\"", number + 1);
                store = store.replace(&documented, &format!("{server}\""));
            }
        }
        assert!(!store.contains("10.0.0"), "{store}");
        let config = Config::new(&upstream)
            .and(&format!(
                "[store]\nkind = \"redis\"\ndeadline = \"2s\"\nprefix = \"{}\"\n{store}\n",
                store.len()
            ))
            .and(&rule("r", "fixed-window", 3, "1d", "key = [\"header:x-user\"]"));
        let gateway = Gateway::start(&config);
        for user in 0..10 {
            let ask = Ask::get("/").field("x-user", format!("user-{user}"));
            let statuses: Vec<u16> = (0..4).map(|_| gateway.ask(&ask).status).collect();
            assert_eq!(statuses, [200, 200, 200, 429], "{store}");
            assert_eq!(Limits::of(&gateway.ask(&ask)).resource, "r");
        }
    }
}

#[test]
fn the_code_of_the_readme_is_that_of_the_example() {
    let code = blocks().into_iter().filter(|(language, _)| *language == "rust");
    let lines: Vec<&str> = code.flat_map(|(_, text)| text.lines()).map(str::trim).collect();
    assert!(lines.len() > 3);
    for line in lines {
        let own = AXUM.lines().map(str::trim);
        assert!(own.clone().any(|own| own == line), "{line}");
    }
}

#[test]
fn the_example_config_runs() {
    let text = EXAMPLE
        .replace("127.0.0.1:8080", "127.0.0.1:0")
        .replace("127.0.0.1:9901", "127.0.0.1:0");
    let gateway = Gateway::start_text(&text, &[]);
    assert_eq!(gateway.get("/").status, 502);
}

#[test]
fn ci_runs_the_test_command_of_the_readme() {
    let command = README
        .split("## Test it")
        .nth(1)
        .unwrap()
        .split("```sh\n")
        .nth(1)
        .unwrap();
    let command = command.lines().next().unwrap();
    assert!(
        CI.lines().any(|line| line.trim_start_matches("exec ") == command),
        "{command}"
    );
    assert!(root().join(command).is_file());
}
