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
        keep: Keep = "copies", "where retransmitted segments are read from";
        window: u64 in (1, 10_000_000) = "1024",
            "maximum distance from the oldest outstanding packet to the newest; with copies at most 32768";
        memory: Bytes = "8MiB", "memory for copies";
        attempts: u16 in (0, 65_535) = "0",
            "transmissions after which a message is dropped (with copies); 0: never";
        probe: bool = "true",
            "whether silence triggers retransmission of the oldest packets (with the object); false only with bitmap_ack.when = segment, chunk or round";
    }
}
