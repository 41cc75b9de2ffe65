//! Redis that answers some calls with errors.

use std::time::{Duration, Instant};

use crate::support::{Ask, Fault, RECOVERY, Site, threads, three};

const CLIENTS: usize = 4;
const TIME: Duration = Duration::from_secs(3);

/// So many percent of the calls are answered with this error while many clients ask.
fn weather(text: &str, percent: u64) {
    let site = Site::new(&three());
    assert_eq!(site.left("/allow"), 1_000);
    let before = site.redis.connections();
    site.proxy.set(Fault::errors(text, percent));
    let end = Instant::now() + TIME;
    let asked = threads((0..CLIENTS).collect(), |_| {
        let mut client = site.gateway.client();
        let (mut asked, mut admitted) = (0, 0);
        while Instant::now() < end {
            assert_eq!(client.ask(&Ask::get("/allow")).status, 200);
            let status = client.ask(&Ask::get("/local")).status;
            assert!([200, 429].contains(&status), "{status}");
            admitted += u64::from(status == 200);
            asked += 1;
        }
        (asked, admitted)
    });
    let (asked, admitted) = asked
        .into_iter()
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(asked > 100, "{asked}");
    // The limit, and what the local bucket of five gives in the meantime.
    assert!(admitted <= 1_000 + 6, "{admitted} of {asked}");
    // Trouble that comes again and again is tried ever less often, and told of no more often than that.
    let connections = site.redis.connections() - before - 1;
    assert!(connections <= 20, "{connections} connections in {TIME:?}");
    let log = site.gateway.log();
    let lines = log.lines().count();
    assert!(lines <= 20, "{lines} lines in {TIME:?}:\n{log}");
    site.proxy.set(Fault::None);
    let healed = Instant::now();
    site.await_recovery();
    site.await_decisions();
    assert!(healed.elapsed() < RECOVERY);
}

#[test]
fn errors_now_and_then() {
    let (oom, replica) = ("OOM command not allowed.", "READONLY You can't write here.");
    let cases = vec![
        (replica, 5),
        (replica, 20),
        ("ERR no code that is known", 20),
        (oom, 40),
        (oom, 60),
    ];
    threads(cases, |(text, percent)| weather(text, percent));
}
