//! The scripts on a real Redis server, beside what they are twins of.

mod agreement;
mod calls;
mod healing;
mod whole;

use redis::{Connection, ConnectionLike, Value};

use super::call::{Ask, Asked, Looked, Owed, inspect_command, reserve_command, settle_command};
use super::names::{Name, Names};
use super::recount::{Counted, ReserveReply, read_inspect, read_reserve, read_settle};
use super::scripts::Scripts;
use crate::clock::Micros;
use crate::identity::LimitKey;
use crate::limit::{Receipt, Spec, Standing};

#[allow(dead_code, reason = "tests of several kinds share it")]
#[path = "../../../../tests/it/support/redis.rs"]
mod server;

use server::Redis;

/// A server, and a link to it. Its scripts read a clock that the test sets, or the server's.
struct Desk {
    server: Redis,
    link: Connection,
    scripts: Scripts,
    names: Names,
}

/// Where the clocks of tests start: so far ahead that no key expires for Redis, and stored times alone decide.
const START: u64 = 50_000 * 86_400_000_000;

impl Desk {
    /// On the server's clock.
    fn new() -> Self {
        Self::with(Scripts::new(), &[])
    }

    /// On a clock of the test's own, at [`START`].
    fn on_a_clock() -> Self {
        let mut desk = Self::with(Scripts::on_a_clock("clock"), &[]);
        desk.set(START);
        desk
    }

    fn with(scripts: Scripts, options: &[&str]) -> Self {
        let server = Redis::with(options);
        let mut link = server.connect();
        for script in scripts.all() {
            let sha: String = redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(script.source())
                .query(&mut link)
                .unwrap();
            assert_eq!(sha, script.sha1());
        }
        Self {
            server,
            link,
            scripts,
            names: Names::new("t", 256),
        }
    }

    /// Sets the clock.
    fn set(&mut self, micros: u64) {
        let clock = [micros / 1_000_000, micros % 1_000_000];
        let mut set = redis::pipe();
        set.del("clock").ignore().rpush("clock", &clock[..]).ignore();
        set.query::<()>(&mut self.link).unwrap();
    }

    fn name(&self, key: LimitKey) -> Name {
        self.names.name("rule:00000000", key)
    }

    fn asked(&self, key: LimitKey, spec: &Spec, cost: u64) -> Asked {
        let policy = Spec {
            cost: 0,
            ..spec.clone()
        }
        .policy()
        .unwrap();
        Asked {
            key,
            name: self.name(key),
            policy,
            cost,
            dry_run: false,
        }
    }

    fn send(&mut self, command: &[u8]) -> Value {
        self.link.req_packed_command(command).unwrap()
    }

    fn reserve_by(&mut self, deadline: Micros, asks: &[Ask]) -> ReserveReply {
        let asks: Vec<&Ask> = asks.iter().collect();
        let mut command = Vec::new();
        reserve_command(&mut command, &self.scripts.reserve, deadline, &asks);
        let reply = self.send(&command);
        read_reserve(&reply, &asks).unwrap_or_else(|error| panic!("{error}: {reply:?}\n{asks:?}"))
    }

    /// Decides requests in one call.
    fn reserve(&mut self, asks: &[Ask]) -> (Micros, Vec<Counted>) {
        match self.reserve_by(Micros(1 << 53), asks) {
            ReserveReply::Decided { now, requests } => (now, requests),
            ReserveReply::Late { now } => panic!("late at {now:?}"),
        }
    }

    /// Decides a request with one charge.
    fn one(&mut self, key: LimitKey, spec: &Spec, cost: u64) -> Counted {
        let ask = [self.asked(key, spec, cost)].into_iter().collect();
        self.reserve(&[ask]).1.remove(0)
    }

    fn settle(&mut self, owed: &[Owed]) -> Micros {
        let owed: Vec<&Owed> = owed.iter().collect();
        let mut command = Vec::new();
        settle_command(&mut command, &self.scripts.settle, &owed);
        let reply = self.send(&command);
        read_settle(&reply).unwrap()
    }

    fn owed(&self, key: LimitKey, spec: &Spec, receipt: Receipt) -> Owed {
        Owed {
            name: self.name(key),
            policy: Spec {
                cost: 0,
                ..spec.clone()
            }
            .policy()
            .unwrap(),
            receipt,
        }
    }

    fn look(&mut self, limiters: &[(LimitKey, &Spec)]) -> Vec<Standing> {
        let looked: Vec<Looked> = limiters
            .iter()
            .map(|(key, spec)| Looked {
                name: self.name(*key),
                policy: Spec {
                    cost: 0,
                    ..(*spec).clone()
                }
                .policy()
                .unwrap(),
            })
            .collect();
        let mut command = Vec::new();
        inspect_command(&mut command, &self.scripts.inspect, &looked);
        let reply = self.send(&command);
        read_inspect(&reply, &looked).unwrap().1
    }

    /// What Redis says to a command about a key.
    fn about<T: redis::FromRedisValue>(&mut self, command: &str, key: LimitKey) -> T {
        let name = self.name(key);
        redis::cmd(command)
            .arg(name.bytes())
            .query(&mut self.link)
            .unwrap()
    }
}
