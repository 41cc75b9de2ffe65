//! The curl of this machine.

use std::process::Command;

/// Runs curl with `args` and returns what it printed.
#[track_caller]
pub(crate) fn curl(args: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "15"])
        .args(args)
        .output()
        .unwrap_or_else(|error| {
            panic!("cannot run curl ({error}): install it, on Debian with `apt-get install curl`")
        });
    assert!(
        output.status.success(),
        "curl {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
