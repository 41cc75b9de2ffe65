//! The command line.
//!
//! [`main`] parses the arguments and calls one command. Exit codes: 0; 1 the config or the start was refused; 2 usage.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the command line talks to people"
)]

mod demo;
mod explain;

use std::error::Error;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::app::{self, AppError, Source};
use crate::config;

/// A reverse-proxy gateway with inline rate limiting
#[derive(Parser)]
#[command(version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway until SIGTERM, then drain; SIGHUP reloads the config
    Run(ConfigFile),
    /// Run a gateway with a small rule table before a built-in upstream, and say what to try
    Demo(demo::Options),
    /// Check a config: report all faults with file, line and column, and open no socket
    Check(ConfigFile),
    /// Say what the gateway would do with a request, rule by rule; charge nothing, and open no socket
    Explain(explain::Options),
    /// Print the JSON schema of the config, for editors
    Schema,
}

#[derive(Args)]
struct ConfigFile {
    /// The config
    #[arg(long, short, value_name = "FILE", default_value = "gateway.toml")]
    config: PathBuf,
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(file) => exit(app::run(Source::File(file.config), |_| ())),
        Command::Demo(options) => exit(demo::run(&options)),
        Command::Check(file) => check(&file),
        Command::Explain(options) => explain::run(options),
        Command::Schema => {
            say(&format!("{:#}\n", config::schema()));
            ExitCode::SUCCESS
        }
    }
}

fn check(file: &ConfigFile) -> ExitCode {
    match config::load(&file.config) {
        Ok(loaded) => {
            println!("{}", loaded.render(stdout().is_terminal()));
            ExitCode::SUCCESS
        }
        Err(report) => {
            eprintln!("{}", report.render(stderr().is_terminal()));
            ExitCode::FAILURE
        }
    }
}

/// Writes a text of many lines; a reader that has seen enough, like `head`, is no fault.
fn say(text: &str) {
    let _ = stdout().write_all(text.as_bytes());
}

fn exit(result: Result<(), AppError>) -> ExitCode {
    let error = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => error,
    };
    if let AppError::Config(report) = &error {
        eprintln!("{}", report.render(stderr().is_terminal()));
        return ExitCode::FAILURE;
    }
    eprintln!("error: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        eprintln!("  because: {cause}");
        source = cause.source();
    }
    ExitCode::FAILURE
}
