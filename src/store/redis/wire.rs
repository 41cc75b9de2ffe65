//! Where one reply ends and the next begins.

use super::recount::WrongShape;

/// Most bytes of one reply: far more than any that a script of ours gives.
pub(super) const MOST: usize = 16 << 20;

/// The length of the reply that `bytes` begin with, if all of it is there.
///
/// # Errors
/// They do not begin with a reply of RESP version 2, or it is too long.
pub(super) fn whole(bytes: &[u8]) -> Result<Option<usize>, WrongShape> {
    let (mut at, mut values) = (0_usize, 1_usize);
    while values > 0 {
        let Some(Line { mark, text, end }) = line(bytes, at)? else {
            return if bytes.len() > MOST {
                Err(WrongShape)
            } else {
                Ok(None)
            };
        };
        values = values.saturating_sub(1);
        at = end;
        match (mark, text) {
            (b'+' | b'-' | b':', _) | (b'$' | b'*', b"-1") => {}
            (b'$', length) => at = at.saturating_add(number(length)?).saturating_add(2),
            (b'*', length) => values = values.saturating_add(number(length)?),
            _ => return Err(WrongShape),
        }
        if at.saturating_add(values) > MOST {
            return Err(WrongShape);
        }
    }
    Ok((at <= bytes.len()).then_some(at))
}

/// One line of a reply.
struct Line<'a> {
    mark: u8,
    text: &'a [u8],
    /// Where the next begins.
    end: usize,
}

fn line(bytes: &[u8], from: usize) -> Result<Option<Line<'_>>, WrongShape> {
    let rest = bytes.get(from..).unwrap_or_default();
    let Some((&mark, after)) = rest.split_first() else {
        return Ok(None);
    };
    if !b"+-:$*".contains(&mark) {
        return Err(WrongShape);
    }
    let Some(length) = after.iter().position(|byte| *byte == b'\n') else {
        return Ok(None);
    };
    let text = after.get(..length).and_then(|line| line.strip_suffix(b"\r"));
    Ok(Some(Line {
        mark,
        text: text.ok_or(WrongShape)?,
        end: from.saturating_add(length).saturating_add(2),
    }))
}

fn number(digits: &[u8]) -> Result<usize, WrongShape> {
    let digits = std::str::from_utf8(digits).map_err(|_| WrongShape)?;
    digits.parse().map_err(|_| WrongShape)
}

#[cfg(test)]
mod tests {
    use super::{MOST, WrongShape, whole};

    #[test]
    fn a_reply_is_whole_at_its_last_byte_and_not_before() {
        for reply in [
            "+OK\r\n",
            "-ERR no\r\n",
            ":12\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "$5\r\na\r\nb\r\r\n",
            "*0\r\n",
            "*-1\r\n",
            "*3\r\n:1\r\n$2\r\n\x01\x02\r\n*2\r\n$-1\r\n$1\r\na\r\n",
        ] {
            let whole_reply = format!("{reply}+next");
            assert_eq!(whole(whole_reply.as_bytes()), Ok(Some(reply.len())), "{reply:?}");
            for length in 0..reply.len() {
                assert_eq!(whole(&reply.as_bytes()[..length]), Ok(None), "{reply:?} {length}");
            }
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for reply in [
            "HTTP/1.1 400\r\n",
            "$x\r\n",
            "*-2\r\n",
            "$99999999999\r\n",
            ":1\n",
            "%1\r\n",
            "*99999999\r\n",
        ] {
            assert_eq!(whole(reply.as_bytes()), Err(WrongShape), "{reply:?}");
        }
        let mut endless = vec![b'+'];
        endless.resize(MOST + 2, b'a');
        assert_eq!(whole(&endless), Err(WrongShape));
    }
}
