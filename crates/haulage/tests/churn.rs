//! Many connections at once, with many streams and messages each. Their tasks wait as long as it takes, so that nobody is
//! forgotten, or give up their waits again and again, and what they wait for comes exactly once all the same.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

use std::sync::Arc;
use std::time::Duration;

use haulage::{
    Connection, ConnectionError, Endpoint, Listener, Options, RecvStream, SendStream, WaitError, preset,
};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(100);
const CONNECTIONS: u32 = 24;
const STREAMS: u32 = 6;
const MESSAGES: u32 = 60;

/// When a task has waited long enough.
#[derive(Clone, Copy)]
enum Waits {
    Kept,
    Dropped,
}

/// Random numbers of one task.
struct Patience(u64, Waits);

impl Patience {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn span(&mut self) -> Duration {
        match self.1 {
            Waits::Kept => TIMEOUT * 2,
            // Half of the futures are polled once.
            Waits::Dropped => Duration::from_micros(self.next(2) * self.next(2_000)),
        }
    }
}

/// What the future gives that is waited for again and again, always a new one.
macro_rules! at_last {
    ($patience:expr, $future:expr) => {
        loop {
            if let Ok(result) = timeout($patience.span(), $future).await {
                break result.unwrap();
            }
        }
    };
}

fn bytes(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| ((i ^ seed).wrapping_mul(0x9E37_79B9) >> 24) as u8).collect()
}

async fn write(mut stream: SendStream, seed: u32, waits: Waits) {
    let mut patience = Patience(u64::from(seed) + 1, waits);
    let len = patience.next(400_000) as usize;
    let (data, mut done) =
        ([&(len as u32).to_be_bytes()[..], &seed.to_be_bytes(), &bytes(seed, len)].concat(), 0);
    while done < data.len() {
        done += at_last!(patience, stream.write_async(&data[done..]));
    }
    stream.finish().unwrap();
}

async fn read(mut stream: RecvStream, seed: u32, waits: Waits) {
    let mut patience = Patience(u64::from(seed) + 1_000_003, waits);
    let (mut data, mut buffer) = (Vec::new(), vec![0; 30_000]);
    loop {
        match at_last!(patience, stream.read_async(&mut buffer)) {
            0 => break,
            read => data.extend_from_slice(&buffer[..read]),
        }
    }
    let number = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
    assert_eq!(number(0) as usize, data.len() - 8);
    assert!(data[8..] == bytes(number(4), data.len() - 8));
}

/// One end: opens streams and accepts as many, sends messages and receives as many.
async fn end(connection: Connection, seed: u32, waits: Waits) {
    let mut tasks = JoinSet::new();
    let connection = Arc::new(connection);
    for number in 0..STREAMS {
        let (here, seed) = (connection.clone(), seed + 2 * number);
        tasks.spawn(async move {
            let mut patience = Patience(u64::from(seed) + 7, waits);
            let (writer, reader) = at_last!(patience, here.open_stream_async());
            let reading = tokio::spawn(read(reader, seed, waits));
            write(writer, seed, waits).await;
            reading.await.unwrap();
        });
        let here = connection.clone();
        tasks.spawn(async move {
            let mut patience = Patience(u64::from(seed) + 8, waits);
            let (writer, reader) = at_last!(patience, here.accept_stream_async());
            let reading = tokio::spawn(read(reader, seed + 1, waits));
            write(writer, seed + 1, waits).await;
            reading.await.unwrap();
        });
    }
    let here = connection.clone();
    tasks.spawn(async move {
        let mut patience = Patience(u64::from(seed) + 9, waits);
        for number in 0..MESSAGES {
            let message =
                [&number.to_be_bytes()[..], &bytes(number, patience.next(40_000) as usize)].concat();
            at_last!(patience, here.send_async(&message));
        }
    });
    let here = connection.clone();
    tasks.spawn(async move {
        let mut patience = Patience(u64::from(seed) + 10, waits);
        let mut got = Vec::new();
        for _ in 0..MESSAGES {
            let data = at_last!(patience, here.recv_async()).data;
            let number = u32::from_be_bytes(data[..4].try_into().unwrap());
            assert!(data[4..] == bytes(number, data.len() - 4));
            got.push(number);
        }
        got.sort_unstable();
        assert!(got.into_iter().eq(0..MESSAGES));
    });
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let mut patience = Patience(u64::from(seed) + 11, waits);
    at_last!(patience, connection.flush_async());
}

#[test]
fn tasks_that_wait_are_all_served() {
    run(Waits::Kept);
}

#[test]
fn futures_that_are_dropped_lose_nothing_and_double_nothing() {
    run(Waits::Dropped);
}

fn run(waits: Waits) {
    let listener = Arc::new(Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap());
    let url = listener.url("127.0.0.1");
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut ends = JoinSet::new();
            let mut patience = Patience(5, waits);
            for number in 0..CONNECTIONS {
                let there = at_last!(patience, listener.accept_async());
                ends.spawn(async move {
                    end(there.clone(), 1_000 * number + 500, waits).await;
                    there.send_async(b"done").await.unwrap();
                    let ended = there.recv_async().await.unwrap_err();
                    assert!(matches!(ended, WaitError::Ended(ConnectionError::Closed)), "{ended:?}");
                });
            }
            while let Some(done) = ends.join_next().await {
                done.unwrap();
            }
        });
        let endpoint = Endpoint::client().unwrap();
        for number in 0..CONNECTIONS {
            let (endpoint, url) = (endpoint.clone(), url.clone());
            tasks.spawn(async move {
                let recipe = preset("streams").unwrap();
                let here = endpoint.connect_async(&url, &recipe, &Options::default()).await.unwrap();
                end(here.clone(), 1_000 * number, waits).await;
                assert_eq!(here.recv_async().await.unwrap().data, b"done");
                here.close_async().await.unwrap();
            });
        }
        let all = async {
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
        };
        timeout(TIMEOUT, all).await.unwrap();
    });
}
