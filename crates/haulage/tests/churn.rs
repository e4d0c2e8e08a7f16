//! Many connections at once, with many streams and messages each. The tasks either await each future to its
//! end, which detects lost wake-ups, or drop futures at random and poll new ones, which must neither lose nor
//! repeat anything.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::sync::Arc;
use std::time::Duration;

use haul_base::Rng;
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

/// How a task handles a pending future.
#[derive(Clone, Copy)]
enum Pending {
    Await,
    /// Drops it after a random time; half of the futures after one poll.
    Drop,
}

impl Pending {
    /// How long the next future is polled.
    fn timeout(self, rng: &mut Rng) -> Duration {
        match self {
            Self::Await => TIMEOUT * 2,
            Self::Drop => Duration::from_micros(rng.below(2) * rng.below(2_000)),
        }
    }
}

/// Returns the output of a future, which is created again after each timeout.
macro_rules! retry {
    ($pending:expr, $rng:expr, $future:expr) => {
        loop {
            if let Ok(result) = timeout($pending.timeout(&mut $rng), $future).await {
                break result.unwrap();
            }
        }
    };
}

fn bytes(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| ((i ^ seed).wrapping_mul(0x9E37_79B9) >> 24) as u8).collect()
}

async fn write(mut stream: SendStream, seed: u32, pending: Pending) {
    let mut rng = Rng::from_seed(u64::from(seed) + 1);
    let len = rng.below(400_000) as usize;
    let (data, mut done) =
        ([&(len as u32).to_be_bytes()[..], &seed.to_be_bytes(), &bytes(seed, len)].concat(), 0);
    while done < data.len() {
        done += retry!(pending, rng, stream.write_some(&data[done..]));
    }
    stream.finish().unwrap();
}

async fn read(mut stream: RecvStream, seed: u32, pending: Pending) {
    let mut rng = Rng::from_seed(u64::from(seed) + 1_000_003);
    let (mut data, mut buffer) = (Vec::new(), vec![0; 30_000]);
    loop {
        match retry!(pending, rng, stream.read_some(&mut buffer)) {
            0 => break,
            read => data.extend_from_slice(&buffer[..read]),
        }
    }
    let number = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
    assert_eq!(number(0) as usize, data.len() - 8);
    assert!(data[8..] == bytes(number(4), data.len() - 8));
}

/// One peer: opens streams and accepts as many, sends messages and receives as many.
async fn end(connection: Connection, seed: u32, pending: Pending) {
    let mut tasks = JoinSet::new();
    let connection = Arc::new(connection);
    for number in 0..STREAMS {
        let (here, seed) = (connection.clone(), seed + 2 * number);
        tasks.spawn(async move {
            let mut rng = Rng::from_seed(u64::from(seed) + 7);
            let (writer, reader) = retry!(pending, rng, here.open_stream());
            let reading = tokio::spawn(read(reader, seed, pending));
            write(writer, seed, pending).await;
            reading.await.unwrap();
        });
        let here = connection.clone();
        tasks.spawn(async move {
            let mut rng = Rng::from_seed(u64::from(seed) + 8);
            let (writer, reader) = retry!(pending, rng, here.accept_stream());
            let reading = tokio::spawn(read(reader, seed + 1, pending));
            write(writer, seed + 1, pending).await;
            reading.await.unwrap();
        });
    }
    let here = connection.clone();
    tasks.spawn(async move {
        let mut rng = Rng::from_seed(u64::from(seed) + 9);
        for number in 0..MESSAGES {
            let message = [&number.to_be_bytes()[..], &bytes(number, rng.below(40_000) as usize)].concat();
            retry!(pending, rng, here.send(&message));
        }
    });
    let here = connection.clone();
    tasks.spawn(async move {
        let mut rng = Rng::from_seed(u64::from(seed) + 10);
        let mut got = Vec::new();
        for _ in 0..MESSAGES {
            let data = retry!(pending, rng, here.recv()).data;
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
    let mut rng = Rng::from_seed(u64::from(seed) + 11);
    retry!(pending, rng, connection.flush());
}

#[test]
fn every_waiting_task_is_woken() {
    run(Pending::Await);
}

#[test]
fn dropped_futures_lose_and_duplicate_nothing() {
    run(Pending::Drop);
}

fn run(pending: Pending) {
    let listener = Arc::new(Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap());
    let url = listener.url("127.0.0.1");
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut ends = JoinSet::new();
            let mut rng = Rng::from_seed(5);
            for number in 0..CONNECTIONS {
                let server_end = retry!(pending, rng, listener.accept());
                ends.spawn(async move {
                    end(server_end.clone(), 1_000 * number + 500, pending).await;
                    server_end.send(b"done").await.unwrap();
                    let ended = server_end.recv().await.unwrap_err();
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
                let here = endpoint.connect(&url, &recipe, &Options::default()).await.unwrap();
                end(here.clone(), 1_000 * number, pending).await;
                assert_eq!(here.recv().await.unwrap().data, b"done");
                here.close().await.unwrap();
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
