//! What upstreams answer where a test has no script of its own.

use std::time::Duration;

use super::upstream::{Exchange, PATIENCE, Seen, Upstream};

impl Upstream {
    /// An upstream with the [`standard`] script.
    pub(crate) fn start() -> Self {
        Self::script(standard)
    }

    /// The same; it closes connections after a silence.
    pub(crate) fn closing_idle_after(idle: Duration) -> Self {
        Self::build(Some(idle), Box::new(standard))
    }
}

/// The script of most upstreams, by the path of the request:
///
/// `/status/503` answers with that status, `/echo` with the body, `/echo-chunked` with the body in chunks, `/trailers`
/// with announced trailers, `/close` closes without an answer, `/hang` never answers, `/after/300` answers after so many
/// milliseconds (`/after/300/503` with that status), `/slow/300` sends half a body and the rest so much later, and
/// everything else with a line that repeats method and target. `x-answer-NAME` fields of the request come back as NAME.
pub(crate) fn standard(exchange: &mut Exchange<'_>) {
    let path = exchange
        .request
        .target
        .split('?')
        .next()
        .unwrap_or_default()
        .to_owned();
    let mut words = path.split('/').skip(1);
    let word = words.next().unwrap_or_default();
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    if word == "close" {
        exchange.body();
        return exchange.close();
    }
    let body = exchange.body();
    let fields = answer_fields(&exchange.request);
    match word {
        "status" => {
            let status = number().unwrap_or(200);
            exchange.reply(status as u16, &fields, format!("{status}\n").as_bytes());
        }
        "echo" => exchange.reply(200, "Content-Type: application/octet-stream\r\n", &body),
        "echo-chunked" => {
            exchange.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for chunk in body.chunks(9_973) {
                exchange.write(format!("{:x}\r\n", chunk.len()));
                exchange.write(chunk);
                exchange.write("\r\n");
            }
            exchange.write("0\r\n\r\n");
        }
        "trailers" => exchange.write(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Checksum\r\n\r\n\
             5\r\nhello\r\n0\r\nX-Checksum: abc\r\n\r\n",
        ),
        "hang" => {
            exchange.closed_within(PATIENCE);
        }
        "after" => {
            std::thread::sleep(Duration::from_millis(number().unwrap_or(0)));
            let status = number().unwrap_or(200);
            exchange.reply(status as u16, &fields, b"late\n");
        }
        "slow" => {
            exchange.write("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
            std::thread::sleep(Duration::from_millis(number().unwrap_or(0)));
            exchange.write("half");
        }
        _ => {
            let line = format!("{} {}\n", exchange.request.method, exchange.request.target);
            exchange.reply(
                200,
                &format!("Content-Type: text/plain\r\n{fields}"),
                line.as_bytes(),
            );
        }
    }
}

fn answer_fields(request: &Seen) -> String {
    request
        .fields
        .iter()
        .filter_map(|(name, value)| {
            let name = name.strip_prefix("x-answer-")?;
            Some(format!("{name}: {}\r\n", String::from_utf8_lossy(value)))
        })
        .collect()
}
