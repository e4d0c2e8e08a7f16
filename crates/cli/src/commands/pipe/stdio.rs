//! Reads stdin in pieces with a timeout, as bytes or as messages.

use std::io;
use std::time::Duration;

use haul_base::Bytes;
use haul_wire::stream_frame::MESSAGE_HEADER;
use haulage::Recipe;
use haulage::config::FixedSizeConfig;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::fault::{self, Fault};

/// Maximum length of a read, bytes.
const PIECE: usize = 64 << 10;

/// Where one message ends and the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// After each line end, which belongs to the message, and after so many bytes of a longer line.
    Lines(usize),
    /// After each line end. Of a line longer than so many bytes, the message has one byte more.
    Readings(usize),
    /// After so many bytes; the last message may be shorter.
    Frames(usize),
}

/// Bytes read from stdin but not yet used.
#[derive(Debug, Default)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    used: usize,
    at_end: bool,
}

impl Input {
    /// Reads what is available, up to the size of `into`; `None` if nothing arrives within `wait` or a signal
    /// interrupts, 0 at the end.
    pub(crate) fn read(into: &mut [u8], wait: Duration) -> io::Result<Option<usize>> {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let timeout = Timespec::try_from(wait).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match rustix::io::read(&stdin, into) {
            Ok(read) => Ok(Some(read)),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the next message, empty at the end; `None` if a read returns nothing within `wait`.
    pub(crate) fn message(&mut self, framing: Framing, wait: Duration) -> io::Result<Option<&[u8]>> {
        self.buffer.drain(..self.used);
        self.used = 0;
        loop {
            if let Some(len) = self.complete(framing) {
                self.used = len;
                return Ok(Some(&self.buffer[..len]));
            }
            let before = self.buffer.len();
            self.buffer.resize(before + PIECE, 0);
            let read = Self::read(&mut self.buffer[before..], wait);
            self.buffer.truncate(before + read.as_ref().ok().copied().flatten().unwrap_or(0));
            match read? {
                None => return Ok(None),
                Some(read) => self.at_end = read == 0,
            }
        }
    }

    /// Returns the length of the first message if it is complete.
    fn complete(&self, framing: Framing) -> Option<usize> {
        let available = self.buffer.len();
        let line = |most| {
            let line = self.buffer.iter().take(most).position(|&byte| byte == b'\n').map(|at| at + 1);
            line.or((available >= most).then_some(most))
        };
        let complete_len = match framing {
            Framing::Lines(most) => line(most),
            Framing::Readings(most) => line(most.saturating_add(1)),
            Framing::Frames(size) => (available >= size).then_some(size),
        };
        complete_len.or(self.at_end.then_some(available))
    }
}

/// Default message size of recipes without retransmission, such as `viz`: a message fits into one packet.
const VIZ_FRAME: Bytes = Bytes(1_000);

/// Chooses frames by `--frame`, or lines for reliable recipes and frames for others. The recipe limits both.
pub(crate) fn framing(frame: Option<Bytes>, recipe: &Recipe) -> Result<Framing, Fault> {
    let most = longest_message(recipe);
    match frame {
        Some(size) if size > most => Err(fault::usage(
            format!("--frame {size} exceeds the maximum message size of {} ({most})", recipe.name),
            format!("--frame {most} or less; a recipe file can raise fixed_size.max_message"),
        )),
        Some(size) => Ok(Framing::Frames(size.0 as usize)),
        None if !recipe.has("retransmit") => Ok(Framing::Frames(VIZ_FRAME.min(most).0 as usize)),
        None if recipe.has("selective_transfer") => Ok(Framing::Readings(most.0 as usize)),
        None => Ok(Framing::Lines(most.0 as usize)),
    }
}

/// Rejects a line that would be split: its parts would be compared as readings.
pub(crate) fn check_reading(message: &[u8], framing: Framing) -> Result<(), Fault> {
    match framing {
        Framing::Readings(most) if message.len() > most => Err(fault::usage(
            format!("a line has more than {most} bytes, the maximum of fixed_size.max_message"),
            "send shorter lines, give --set fixed_size.max_message=SIZE beside the URL, or use --preset msg",
        )),
        _ => Ok(()),
    }
}

/// Returns the length of the longest message that a recipe carries; `u64::MAX` if it sets no limit.
fn longest_message(recipe: &Recipe) -> Bytes {
    let header = if recipe.has("streams") { MESSAGE_HEADER as u64 } else { 0 };
    let size: FixedSizeConfig = recipe.configuration().unwrap_or_default();
    let longest = size.max_message.0.checked_sub(header);
    longest.filter(|&size| size > 0).map_or(Bytes(u64::MAX), Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &[u8], framing: Framing) -> Vec<Vec<u8>> {
        let mut input = Input { buffer: text.to_vec(), used: 0, at_end: true };
        let mut messages = Vec::new();
        loop {
            let message = input.message(framing, Duration::ZERO).unwrap().unwrap().to_vec();
            if message.is_empty() {
                return messages;
            }
            messages.push(message);
        }
    }

    #[test]
    fn lines_keep_their_newline_and_the_last_needs_none() {
        let lines = messages(b"one\n\nthree\nrest", Framing::Lines(100));
        assert_eq!(lines, [&b"one\n"[..], b"\n", b"three\n", b"rest"]);
        let long = messages(&[&[b'x'; 1_029][..], b"\n"].concat(), Framing::Lines(1_024));
        assert_eq!(long.iter().map(Vec::len).collect::<Vec<_>>(), [1_024, 6]);
    }

    #[test]
    fn a_reading_is_a_whole_line_no_longer_than_a_message() {
        let readings = Framing::Readings(4);
        for (text, accepted) in
            [(&b"abc\n"[..], true), (b"abcd", true), (b"abcd\n", false), (b"abcde", false)]
        {
            let messages = messages(text, readings);
            assert_eq!(messages, [text]);
            assert_eq!(check_reading(&messages[0], readings).is_ok(), accepted, "{text:?}");
        }
    }

    #[test]
    fn frames_have_equal_sizes_except_the_last() {
        assert_eq!(messages(b"abcdefgh", Framing::Frames(3)), [&b"abc"[..], b"def", b"gh"]);
        assert!(messages(b"", Framing::Frames(3)).is_empty());
    }

    #[test]
    fn messages_are_no_longer_than_the_recipe_permits() {
        let (msg, sensor) = (haulage::preset("msg").unwrap(), haulage::preset("sensor").unwrap());
        assert_eq!(framing(None, &msg), Ok(Framing::Lines(65_536)));
        assert_eq!(framing(None, &sensor), Ok(Framing::Readings(1_024)));
        assert_eq!(framing(None, &sensor.clone().without("retransmit")), Ok(Framing::Frames(1_000)));
        assert_eq!(framing(Some(Bytes(1_024)), &sensor), Ok(Framing::Frames(1_024)));
        let error = framing(Some(Bytes(1_025)), &sensor).unwrap_err();
        assert!(error.message.contains("sensor") && error.hint.contains("max_message"), "{error}");
        let viz = haulage::preset("viz").unwrap();
        assert_eq!(framing(None, &viz), Ok(Framing::Frames(1_000)));
        // The header of a stream's message takes one byte.
        let streams = haulage::preset("streams").unwrap();
        assert_eq!(framing(None, &streams), Ok(Framing::Lines(65_535)));
        assert!(framing(Some(Bytes(65_536)), &streams).is_err());
    }
}
