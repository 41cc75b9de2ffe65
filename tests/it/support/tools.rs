//! Programs of this machine, and those that `scripts/test` puts into `target/tools`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A finished program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// What it printed, if it ended well.
    #[track_caller]
    pub(crate) fn printed(self) -> String {
        assert!(self.success, "{}\n{}", self.stdout, self.stderr);
        self.stdout
    }
}

/// Runs a program from a Debian package.
#[track_caller]
pub(crate) fn tool(program: &str, package: &str, args: &[&str], stdin: &[u8]) -> Ran {
    run(
        Command::new(program).args(args),
        stdin,
        &format!("`apt-get install {package}`"),
    )
}

/// Runs a script of `tests/clients` in Python.
#[track_caller]
pub(crate) fn python(script: &str, args: &[&str], stdin: &[u8]) -> Ran {
    let mut command = Command::new(installed("bin/python3"));
    command.arg(scripts().join(script)).args(args);
    run(&mut command, stdin, "scripts/test")
}

/// Runs a script of `tests/clients` in Node, where it finds the packages that are installed.
#[track_caller]
pub(crate) fn node(script: &str, args: &[&str]) -> Ran {
    let text = std::fs::read(scripts().join(script)).unwrap();
    let mut command = Command::new("node");
    command
        .current_dir(installed("npm"))
        .args(["--input-type=module", "-"])
        .args(args);
    run(&mut command, &text, "scripts/test")
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

#[track_caller]
fn installed(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/tools")
        .join(path);
    assert!(path.exists(), "no {}: scripts/test installs it", path.display());
    path
}

#[track_caller]
fn run(command: &mut Command, stdin: &[u8], installer: &str) -> Ran {
    let mut child = command
        .env("NO_PROXY", "127.0.0.1")
        .env("no_proxy", "127.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            let program = command.get_program().display();
            panic!("cannot run {program} ({error}): {installer} installs it")
        });
    let mut input = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // It may end without reading all.
        scope.spawn(move || input.write_all(stdin));
        child.wait_with_output().unwrap()
    });
    Ran {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
