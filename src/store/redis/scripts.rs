//! The Lua scripts, put together from the files of `lua/`.

/// A script, as `EVALSHA` calls it.
#[derive(Clone, Debug)]
pub(super) struct Script {
    source: String,
    sha1: String,
    /// Whether it is sent whole, not by its hash.
    whole: bool,
}

/// All scripts.
#[derive(Clone, Debug)]
pub(super) struct Scripts {
    /// Decides the requests of a call.
    pub(super) reserve: Script,
    /// Gives charges back.
    pub(super) settle: Script,
    /// Looks, and changes nothing.
    pub(super) inspect: Script,
}

/// The algorithms by their kind in a tariff. Only what a call asks for is made: a function that is not made costs nothing.
const ALGORITHMS: &str = concat!(
    "local function algorithm(kind)\nif kind == 1 then\n",
    include_str!("../../../lua/fixed_window.lua"),
    "elseif kind == 2 then\n",
    include_str!("../../../lua/sliding_window.lua"),
    "elseif kind == 3 then\n",
    include_str!("../../../lua/bucket.lua"),
    "elseif kind == 4 then\n",
    include_str!("../../../lua/sliding_log.lua"),
    "end\nend\n",
);

const ARITHMETIC: &str = include_str!("../../../lua/arithmetic.lua");
const TARIFFS: &str = include_str!("../../../lua/tariffs.lua");

/// The line that reads the clock, in each script.
#[cfg(test)]
const CLOCK: &str = "local time = redis.call('TIME')";

impl Scripts {
    /// The scripts of `lua/`.
    pub(super) fn new() -> Self {
        Self::written(str::to_owned)
    }

    /// The scripts on a clock that a test sets: the key `clock`, a list of seconds and microseconds. Only the line that
    /// reads the clock is another one.
    #[cfg(test)]
    pub(super) fn on_a_clock(clock: &str) -> Self {
        Self::written(|source| {
            assert_eq!(source.matches(CLOCK).count(), 1);
            source.replace(
                CLOCK,
                &format!("local time = redis.call('LRANGE', '{clock}', 0, 1)"),
            )
        })
    }

    fn written(edit: impl Fn(&str) -> String) -> Self {
        let script = |body: &str| Script::new(edit(&[ARITHMETIC, ALGORITHMS, TARIFFS, body].concat()));
        Self {
            reserve: script(include_str!("../../../lua/reserve.lua")),
            settle: script(include_str!("../../../lua/settle.lua")),
            inspect: script(include_str!("../../../lua/inspect.lua")),
        }
    }

    /// The same, sent whole: a server runs them whether it knows them or not, and knows them then.
    pub(super) fn whole(&self) -> Self {
        let whole = |script: &Script| Script {
            whole: true,
            ..script.clone()
        };
        Self {
            reserve: whole(&self.reserve),
            settle: whole(&self.settle),
            inspect: whole(&self.inspect),
        }
    }

    /// All of them, to be loaded.
    pub(super) fn all(&self) -> [&Script; 3] {
        [&self.reserve, &self.settle, &self.inspect]
    }
}

impl Script {
    fn new(source: String) -> Self {
        let sha1 = redis::Script::new(&source).get_hash().to_owned();
        Self {
            source,
            sha1,
            whole: false,
        }
    }

    /// What `SCRIPT LOAD` is to be given.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// The command that runs it, and what names it there.
    pub(super) fn call(&self) -> (&'static str, &str) {
        match self.whole {
            true => ("EVAL", &self.source),
            false => ("EVALSHA", &self.sha1),
        }
    }

    /// The hash of its source that Redis knows it by, in hexadecimal.
    #[cfg(test)]
    pub(super) fn sha1(&self) -> &str {
        &self.sha1
    }
}
