//! Parameters of `retransmit`.

use haul_base::Bytes;
use haul_stack::{choice, configuration};

choice! {
    /// Source of retransmitted segments.
    pub enum Keep {
        /// Copies of sent segments.
        Copies = "copies",
        /// The object, which is read again.
        Object = "object",
    }
}

configuration! {
    /// Parameters of `retransmit`.
    pub struct RetransmitConfig: "retransmit" {
        keep: Keep = "copies", "what segments are sent again from";
        window: u64 in (1, 10_000_000) = "1024",
            "packets between the oldest outstanding and the newest; with copies at most 32768";
        memory: Bytes = "8MiB", "bytes of copies";
        attempts: u16 in (0, 65_535) = "0",
            "transmissions after which a message is given up (with copies); 0: never";
        probe: bool = "true",
            "whether silence repeats the oldest packets (with the object); false only with bitmap_ack.when = segment, \
             chunk or round";
    }
}
