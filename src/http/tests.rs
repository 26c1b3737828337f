//! Requests as they should not be, and a great many broken ones.

use super::body::Body;
use super::head::{self, Framing, Head, MAX_BODY, MAX_HEAD};
use super::response::{Refusal, Status};

const START: &str = "POST /mcp HTTP/1.1\r\nHost: localhost\r\n";

/// What a connection reads out of bytes that come in these pieces: requests, and the refusal that ends them.
fn read(pieces: &[&[u8]]) -> (Vec<(Head, Vec<u8>)>, Option<Refusal>) {
    let mut requests = Vec::new();
    let (mut waiting, mut looked_at) = (Vec::new(), 0);
    let mut under_way: Option<(Head, Body)> = None;
    for piece in pieces {
        waiting.extend_from_slice(piece);
        loop {
            if let Some((head, mut body)) = under_way.take() {
                match body.feed(&waiting) {
                    Ok(used) => drop(waiting.drain(..used)),
                    Err(refusal) => return (requests, Some(refusal)),
                }
                if !body.is_done() {
                    under_way = Some((head, body));
                    break;
                }
                requests.push((head, body.into_bytes()));
                looked_at = 0;
            }
            let Some(end) = head::end(&waiting, looked_at) else {
                let early = head::refuse_early(&waiting[..waiting.len().min(MAX_HEAD)]);
                if let Err(refusal) = early {
                    return (requests, Some(refusal));
                }
                looked_at = waiting.len();
                break;
            };
            match head::parse(&waiting[..end]) {
                Ok(head) => {
                    waiting.drain(..end);
                    let body = Body::new(head.body);
                    under_way = Some((head, body));
                }
                Err(refusal) => return (requests, Some(refusal)),
            }
        }
    }
    (requests, None)
}

fn status(bytes: impl AsRef<[u8]>) -> Option<Status> {
    let (requests, refusal) = read(&[bytes.as_ref()]);
    assert!(refusal.is_none() || requests.is_empty(), "a request before the refusal: {requests:?}");
    refusal.map(|refusal| refusal.status)
}

#[test]
fn what_two_readers_would_read_differently_is_refused() {
    let hidden = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let bad = [
        "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        "Content-Length: 3, 3\r\n\r\nabc",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: identity\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding:\u{b}chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: +3\r\n\r\nabc",
        "Content-Length: -3\r\n\r\nabc",
        "Content-Length: 0x3\r\n\r\nabc",
        "Content-Length: 3 3\r\n\r\nabc",
        "Content-Length: 3.0\r\n\r\nabc",
        "Content-Length: ٣\r\n\r\nabc",
        "Content-Length: \r\n\r\n",
        "Content-Length : 3\r\n\r\nabc",
        " Content-Length: 3\r\n\r\nabc",
        "X: a\r\n b\r\n\r\n",
        "X: a\r\n\tContent-Length: 3\r\n\r\nabc",
        "X: a\nContent-Length: 3\r\n\r\nabc",
        "X: a\rContent-Length: 3\r\n\r\nabc",
        "X: a\u{0}b\r\n\r\n",
        "X: a\u{7f}b\r\n\r\n",
        "X\r\n\r\n",
        ": a\r\n\r\n",
        "X Y: a\r\n\r\n",
        "Host: evil.example\r\n\r\n",
        "Authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n00000000000000003\r\nabc\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0\r\nX: trailer\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    ];
    for case in bad {
        assert_eq!(status(format!("{START}{case}{hidden}")), Some(Status::BadRequest), "{case:?}");
    }
    for start in [
        "\r\nPOST /mcp HTTP/1.1\r\n\r\n",
        "\nPOST /mcp HTTP/1.1\r\n\r\n",
        " POST /mcp HTTP/1.1\r\n\r\n",
        "POST /mcp HTTP/1.1\nHost: localhost\n\n",
        "POST /mcp HTTP/1.1\n\r\n\r\n",
        "POST  /mcp HTTP/1.1\r\n\r\n",
        "POST /mcp  HTTP/1.1\r\n\r\n",
        "POST /mcp HTTP/2.0\r\n\r\n",
        "POST /mcp HTTP/1.1 \r\n\r\n",
        "POST /mcp\r\n\r\n",
        "POST http://localhost/mcp HTTP/1.1\r\n\r\n",
        "POST mcp HTTP/1.1\r\n\r\n",
        "POST * HTTP/1.1\r\n\r\n",
        "POST\u{0} /mcp HTTP/1.1\r\n\r\n",
        "POST /m\u{0}cp HTTP/1.1\r\n\r\n",
        "PO ST /mcp HTTP/1.1\r\n\r\n",
        "POST /mcp HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}",
    ] {
        assert_eq!(status(start), Some(Status::BadRequest), "{start:?}");
    }
    for (case, expected) in [
        ("Content-Length: 4194305\r\n\r\n", Status::ContentTooLarge),
        ("Content-Length: 18446744073709551616\r\n\r\n", Status::ContentTooLarge),
        ("Content-Length: 99999999999999999999999999999999\r\n\r\n", Status::ContentTooLarge),
        ("Transfer-Encoding: chunked\r\n\r\n400001\r\n", Status::ContentTooLarge),
        ("Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", Status::ContentTooLarge),
        ("Expect: 200-maybe\r\n\r\n", Status::ExpectationFailed),
    ] {
        assert_eq!(status(format!("{START}{case}")), Some(expected), "{case:?}");
    }
    let fields = |count: usize| "X: y\r\n".repeat(count);
    assert_eq!(status(format!("{START}{}\r\n", fields(63))), None);
    assert_eq!(status(format!("{START}{}\r\n", fields(64))), Some(Status::HeadTooLarge));
    assert_eq!(status(format!("{START}{}\r\n", fields(10_000))), Some(Status::HeadTooLarge));
    assert_eq!(status(format!("{START}X: {}\r\n\r\n", "y".repeat(MAX_HEAD))), Some(Status::HeadTooLarge));
    assert_eq!(status(format!("{START}X: {}", "y".repeat(64 << 20))), Some(Status::HeadTooLarge));
}

#[test]
fn requests_are_read_one_behind_the_other_however_they_come() {
    let stream = format!(
        "{START}Content-Length: 3\r\n\r\nabcGET /healthz?x=1 HTTP/1.1\r\nhost: [::1]:1\r\n\r\n{START}TRANSFER-ENCODING: Chunked\r\n\r\n\
         3\r\nabc\r\n0A\r\n0123456789\r\n000\r\n\r\nHEAD /mcp HTTP/1.0\r\nConnection: Keep-Alive\r\nAccept: a\r\naccept: b\r\n\r\n"
    );
    for size in [1, 2, 3, 7, 64, stream.len()] {
        let (requests, refusal) = read(&stream.as_bytes().chunks(size).collect::<Vec<_>>());
        assert_eq!(refusal, None);
        let shown: Vec<_> = requests.iter().map(|(head, body)| (head.path.as_str(), &body[..])).collect();
        let expected: &[(&str, &[u8])] =
            &[("/mcp", b"abc"), ("/healthz", b""), ("/mcp", b"abc0123456789"), ("/mcp", b"")];
        assert_eq!(shown, expected, "{size}");
        assert_eq!(requests[3].0.accept.as_deref(), Some(",a,b"));
        assert!(!requests[3].0.modern && requests[0].0.modern);
    }
}

#[test]
fn a_length_that_is_only_claimed_takes_no_memory() {
    let mut body = Body::new(Framing::Length(MAX_BODY));
    assert_eq!(body.feed(b"abc").unwrap(), 3);
    assert!(body.into_bytes().capacity() < 1024);
    let mut body = Body::new(Framing::Chunked);
    assert_eq!(body.feed(b"3fffff\r\nabc").unwrap(), 11);
    assert!(body.into_bytes().capacity() < 1024);
}

/// xorshift64: the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

#[test]
fn no_bytes_do_harm_and_no_cut_changes_what_is_read() {
    const CASES: usize = 30_000;
    const PIECES: &[&str] = &[
        "\r\n",
        "\n",
        "\r",
        "\r\n\r\n",
        "\0",
        " ",
        "\t",
        ":",
        "Content-Length: 5\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Transfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
        "5\r\nhello\r\n",
        "ffffffffffffffff\r\n",
        ";",
        "HTTP/1.0",
        "GET / HTTP/1.1\r\n",
        "Expect: 100-continue\r\n",
        "\u{ff}",
        "한",
        "Connection: close\r\n",
        "Host: localhost\r\n",
    ];
    let seeds = [
        format!("{START}Content-Length: 5\r\nContent-Type: application/json\r\n\r\nhello"),
        format!("{START}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"),
        "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:3847\r\nAccept: */*\r\n\r\n".to_owned(),
        "OPTIONS /mcp HTTP/1.1\r\nHost: [::1]\r\nOrigin: http://localhost:3000\r\n\r\n".to_owned(),
        format!("{START}Authorization: Bearer abc\r\nMcp-Session-Id: x\r\nContent-Length: 0\r\n\r\n{START}\r\n"),
    ];
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut refused, mut whole) = (0, 0);
    for case in 0..CASES {
        let mut bytes = seeds[case % seeds.len()].clone().into_bytes();
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len() + 1);
            match random.below(5) {
                0 => drop(bytes.splice(at..(at + random.below(8)).min(bytes.len()), [])),
                1 => drop(bytes.splice(at..at, PIECES[random.below(PIECES.len())].bytes())),
                2 if at < bytes.len() => bytes[at] = random.below(256) as u8,
                3 => bytes.truncate(at),
                _ => {
                    let other = seeds[random.below(seeds.len())].as_bytes();
                    bytes.splice(at..at, other[random.below(other.len())..].iter().copied());
                }
            }
        }
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        let (requests, refusal) = read(&[&bytes]);
        for (head, body) in &requests {
            assert!(body.len() as u64 <= MAX_BODY && head.path.starts_with('/'), "{shown:?}");
            if let Framing::Length(length) = head.body {
                assert_eq!(body.len() as u64, length, "{shown:?}");
            }
            whole += 1;
        }
        if let Some(refusal) = &refusal {
            let expected =
                [Status::BadRequest, Status::ContentTooLarge, Status::HeadTooLarge, Status::ExpectationFailed];
            assert!(expected.contains(&refusal.status), "{shown:?}: {refusal:?}");
            refused += 1;
        }
        let mut cuts: Vec<usize> = (0..random.below(6)).map(|_| random.below(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        let (again, refusal_again) = read(&pieces);
        assert_eq!((&requests, refusal.is_some()), (&again, refusal_again.is_some()), "{shown:?} in {cuts:?}");
    }
    assert!(refused > CASES / 5 && whole > CASES / 5, "{refused} {whole}");
}
