//! `tollgate explain`: what the gateway would do with a request, and why.

mod asked;
mod shown;

use std::io::{IsTerminal, stderr, stdout};
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;

use clap::Args;
use http::Method;

use super::{ConfigFile, exit, say};
use crate::{app, config};

use asked::{Field, Target};

#[derive(Args)]
pub(super) struct Options {
    /// The method
    #[arg(value_name = "METHOD", value_parser = asked::method)]
    method: Method,
    /// The URL, with http:// or https:// and a host, or only its path
    #[arg(value_name = "URL", value_parser = asked::target)]
    target: Target,
    /// A header field of the request; `Host` replaces the host of the URL
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = asked::field)]
    fields: Vec<Field>,
    /// The address that the request comes from: a client's, or a proxy's
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    ip: IpAddr,
    #[command(flatten)]
    config: ConfigFile,
}

/// Explains one request.
pub(super) fn run(options: Options) -> ExitCode {
    let loaded = match config::load(&options.config.config) {
        Ok(loaded) => loaded,
        Err(report) => {
            eprintln!("{}", report.render(stderr().is_terminal()));
            return ExitCode::FAILURE;
        }
    };
    let listens = loaded.settings.server.listen.first().copied();
    let title = format!("{} {}", options.method, options.target);
    let request = match asked::request(options.method, &options.target, options.fields, listens) {
        Ok(request) => request,
        Err(error) => asked::usage(&error),
    };
    match app::explain(&loaded.settings, options.ip, &request) {
        Ok(explanation) => {
            let shown = shown::Shown {
                title: &title,
                settings: &loaded.settings,
                explanation: &explanation,
                colour: stdout().is_terminal(),
            };
            say(&shown.to_string());
            ExitCode::SUCCESS
        }
        Err(error) => exit(Err(error)),
    }
}
