//! Bounded capture of an output stream: keeps the first and the last part and counts what is dropped in between.

use std::collections::VecDeque;

/// The kept bytes of a stream. Memory grows with the output, up to the limit.
#[derive(Debug)]
pub struct Capture {
    limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Capture {
    /// Keeps at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let head_room = (self.limit - self.limit / 2).saturating_sub(self.head.len());
        let (first, rest) = bytes.split_at(head_room.min(bytes.len()));
        self.head.extend_from_slice(first);
        let tail_limit = self.limit / 2;
        let rest = &rest[rest.len().saturating_sub(tail_limit)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// Total number of bytes that the stream carried.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// A copy that keeps at most `limit` bytes.
    pub fn excerpt(&self, limit: usize) -> Self {
        let mut copy = Self::new(limit.min(self.limit));
        let (first, second) = self.tail.as_slices();
        for part in [&self.head, first, second] {
            copy.push(part);
        }
        copy.total = self.total;
        copy
    }

    /// The kept bytes, with a line in the middle that gives the number of dropped bytes, if any.
    pub fn into_bytes(self) -> Vec<u8> {
        let missing = self.missing();
        let mut bytes = self.head;
        if missing > 0 {
            bytes.extend_from_slice(marker(missing).as_bytes());
        }
        let (first, second) = self.tail.as_slices();
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(second);
        bytes
    }

    /// The kept output as text whose JSON encoding is at most `budget` bytes. Invalid UTF-8 is replaced.
    pub fn into_json_text(self, budget: usize) -> String {
        let missing = self.missing();
        let tail: Vec<u8> = self.tail.into();
        if missing == 0 {
            let mut whole = self.head;
            whole.extend_from_slice(&tail);
            let text = into_text(whole);
            if json_size(&text) <= budget {
                return text;
            }
            let bytes = text.into_bytes();
            return fit(&bytes, &bytes, 0, bytes.len(), budget);
        }
        let kept = self.head.len() + tail.len();
        fit(&self.head, &tail, missing, kept, budget)
    }

    fn missing(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }
}

fn marker(missing: u64) -> String {
    format!("\n[... {missing} bytes of output left out ...]\n")
}

fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Takes what fits from the front of `head` and the back of `tail`, half of the budget each.
fn fit(head: &[u8], tail: &[u8], missing: u64, kept: usize, budget: usize) -> String {
    let share = budget.saturating_sub(128) / 2;
    let front = String::from_utf8_lossy(head);
    let back = String::from_utf8_lossy(tail);
    let mut size = 0;
    let front_end = front
        .char_indices()
        .find(|(_, character)| {
            size += json_size_of(*character);
            size > share
        })
        .map_or(front.len(), |(index, _)| index);
    size = 0;
    let back_start = back
        .char_indices()
        .rev()
        .find(|(_, character)| {
            size += json_size_of(*character);
            size > share
        })
        .map_or(0, |(index, character)| index + character.len_utf8());
    let shown = front_end + (back.len() - back_start);
    let left_out = missing + kept.saturating_sub(shown) as u64;
    format!("{}{}{}", &front[..front_end], marker(left_out), &back[back_start..])
}

fn json_size(text: &str) -> usize {
    text.chars().map(json_size_of).sum()
}

fn json_size_of(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        character if character < ' ' => 6,
        character => character.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_head_and_tail_and_counts_the_rest() {
        let mut capture = Capture::new(8);
        for part in [b"abcd".as_slice(), b"efg", b"hijklmnop"] {
            capture.push(part);
        }
        assert_eq!(capture.total(), 16);
        let text = String::from_utf8(capture.into_bytes()).expect("ascii");
        assert_eq!(text, "abcd\n[... 8 bytes of output left out ...]\nmnop");
    }

    #[test]
    fn an_excerpt_keeps_both_ends_and_the_total() {
        let mut capture = Capture::new(16);
        capture.push(b"abcdefghijklmnopqrstuvwxyz");
        let excerpt = capture.excerpt(4);
        assert_eq!(excerpt.total(), 26);
        assert_eq!(excerpt.into_bytes(), b"ab\n[... 22 bytes of output left out ...]\nyz");
        assert_eq!(capture.excerpt(100).into_bytes(), capture.into_bytes());
    }

    /// D-020, D-021
    #[test]
    fn text_keeps_carriage_returns_and_replaces_invalid_bytes() {
        let mut capture = Capture::new(64);
        capture.push(b"a\r\nb\xffc");
        assert_eq!(capture.into_json_text(1000), "a\r\nb\u{fffd}c");
    }

    /// D-022: escapes count, so that control characters cannot make the response larger than its limit.
    #[test]
    fn json_form_stays_within_the_budget() {
        for bytes in [vec![0_u8; 100_000], vec![0xff; 100_000], vec![b'"'; 100_000], vec![b'x'; 100_000]] {
            for limit in [1000, 60_000, 1_000_000] {
                let mut capture = Capture::new(limit);
                capture.push(&bytes);
                let text = capture.into_json_text(20_000);
                let encoded = serde_json::to_string(&text).expect("a string");
                assert!(encoded.len() <= 20_002, "{} for limit {limit}", encoded.len());
                assert!(text.contains("bytes of output left out"));
            }
        }
    }
}
