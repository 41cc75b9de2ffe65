//! Outages of Redis while many clients ask.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::{Ask, DEADLINE, Fault, Limits, OWN_WORK, RECOVERY, Site, rule, three, wait_until};

const CLIENTS: usize = 64;

/// What one client was told.
#[derive(Default)]
struct Told {
    admitted: u64,
    denied: u64,
    longest: Duration,
}

/// Says that it is over, also when what happens meanwhile fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// All clients ask, one thing after the other, as long as something happens.
fn meanwhile(site: &Site, asks: &[&str], happens: impl FnOnce()) -> Vec<Told> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guard = Stop(&stop);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|name| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut client = site.gateway.client();
                    let mut told = Told::default();
                    for target in asks.iter().cycle() {
                        if stop.load(Relaxed) {
                            break;
                        }
                        let began = Instant::now();
                        let answer = client.ask(&by(target, name));
                        told.longest = told.longest.max(began.elapsed());
                        match answer.status {
                            200 => told.admitted += 1,
                            429 | 503 => told.denied += 1,
                            _ => panic!("{answer:?}"),
                        }
                    }
                    told
                })
            })
            .collect();
        happens();
        drop(guard);
        let told = clients.into_iter().map(|client| client.join());
        told.map(|told| told.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn by(target: &str, name: usize) -> Ask {
    Ask::get(target).field("X-User", name.to_string())
}

/// Waits until so many more requests reach the upstream.
fn await_load(site: &Site, more: usize) {
    let count = site.upstream.count() + more;
    wait_until("load", RECOVERY, || site.upstream.count() >= count);
}

#[test]
fn what_waits_at_a_frozen_server_is_not_charged_when_it_thaws() {
    let on = |name: &str, key: &str| {
        let lines = format!("{key}\non_outage = \"deny\"");
        rule(name, "fixed-window", 1_000_000, "1d", &lines)
    };
    let rules = on("all", "key = []") + &on("each", "key = [\"header:x-user\"]");
    let site = Site::new(&rules);
    let told = meanwhile(&site, &["/"], || {
        // Shorter than the deadline, a little longer, and long enough to be trouble.
        for millis in [50, 130, 250, 1_500] {
            await_load(&site, 200);
            site.redis.freeze();
            sleep(Duration::from_millis(millis));
            site.redis.thaw();
            site.await_recovery();
        }
        await_load(&site, 200);
    });
    assert!(site.gateway.log().contains("store recovered"));
    let denied: u64 = told.iter().map(|told| told.denied).sum();
    assert!(denied > 64, "{denied} were not decided");
    // Each look is charged itself.
    let mut admitted: u64 = told.iter().map(|told| told.admitted).sum();
    for (name, told) in told.iter().enumerate() {
        let mut own = told.admitted;
        wait_until("what came late is given back", RECOVERY, || {
            let limits = Limits::of(&site.gateway.ask(&by("/", name)));
            admitted += 1;
            own += 1;
            (1_000_000 - limits.r("all"), 1_000_000 - limits.r("each")) == (admitted, own)
        });
    }
}

#[test]
fn nobody_and_nothing_piles_up_at_a_server_that_is_silent() {
    let site = Site::new(&three());
    let told = meanwhile(&site, &["/allow", "/deny", "/local"], || {
        await_load(&site, 500);
        site.proxy.set(Fault::Silence);
        site.await_trouble();
        await_load(&site, 500);
        let size = || (site.gateway.memory(), site.gateway.open_files());
        let (memory, files) = size();
        for _ in 0..6 {
            sleep(Duration::from_millis(500));
            await_load(&site, 50);
            let (memory_now, files_now) = size();
            assert!(memory_now <= memory + 4_096, "{memory_now} KiB after {memory}");
            assert!(files_now <= files + 5, "{files_now} files after {files}");
        }
        let ended = Instant::now();
        site.await_recovery();
        assert!(ended.elapsed() < RECOVERY, "{:?}", ended.elapsed());
    });
    let longest = told.iter().map(|told| told.longest).max().unwrap();
    assert!(longest < DEADLINE + 4 * OWN_WORK, "{longest:?}");
    site.await_decisions();
}
