//! Both peers as tasks of one single-threaded tokio runtime: anything that blocked it would keep the peer
//! from answering.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::HashMap;
use std::fmt::Debug;
use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use haulage::{
    Accepted, ByteReader, ByteWriter, Connection, ConnectionError, Endpoint, Event, Listener, OpenError,
    Options, Rate, Recipe, Url, preset,
};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

const TIMEOUT: Duration = Duration::from_secs(60);
fn bulk() -> Recipe {
    preset("bulk").unwrap()
}

fn run(task: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { timeout(TIMEOUT, task).await.unwrap() });
}

fn listener() -> (Arc<Listener>, String) {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = listener.url("127.0.0.1");
    (Arc::new(listener), url)
}

fn data() -> Vec<u8> {
    (0..3_000_000u32).map(|number| (number % 251) as u8).collect()
}

async fn write_all(writer: &mut ByteWriter, mut data: &[u8]) {
    while !data.is_empty() {
        data = &data[writer.write_some(data).await.unwrap()..];
    }
}

async fn read_to_end(reader: &mut ByteReader) -> Vec<u8> {
    let (mut buffer, mut bytes) = (vec![0; 100_000], Vec::new());
    loop {
        match reader.read_some(&mut buffer).await.unwrap() {
            0 => return bytes,
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}

/// Arguments need not outlive the operation.
#[test]
fn a_separate_task_can_open_streams() {
    fn spawned<T: Send + 'static>(opening: impl Future<Output = T> + Send + 'static) {
        drop(tokio::spawn(opening));
    }
    run(async {
        let endpoint = Endpoint::client().unwrap();
        spawned(endpoint.connect(&listener().1, &preset("msg").unwrap(), &Options::default()));
        spawned(Connection::open(&listener().1, &preset("msg").unwrap(), &Options::default()));
        spawned(Endpoint::client().unwrap().open_writer(&listener().1, &bulk(), &Options::default()));
        spawned(Endpoint::client().unwrap().open_reader(&listener().1, &bulk(), &Options::default()));
    });
}

#[test]
fn a_server_accepts_answers_and_ends_concurrently_with_its_clients() {
    let (listener, url) = listener();
    run(async {
        let server = tokio::spawn(async move {
            for _ in 0..3 {
                let server_end = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    while let Ok(message) = server_end.recv().await {
                        server_end.send(&message.data).await.unwrap();
                    }
                });
            }
        });
        let client = async |number: u32| {
            let recipe = preset("msg").unwrap();
            let client_end = Connection::open(&url, &recipe, &Options::default()).await.unwrap();
            for round in 0..20 {
                let message = [number, round].map(u32::to_be_bytes).concat();
                client_end.send(&message).await.unwrap();
                assert_eq!(client_end.recv().await.unwrap().data, message);
            }
            client_end.close().await.unwrap();
            assert!(matches!(client_end.ended(), Some(ConnectionError::Closed)));
        };
        for number in 0..3 {
            client(number).await;
        }
        server.await.unwrap();
    });
}

#[test]
fn waiting_for_a_client_blocks_no_task_and_events_reach_tasks() {
    let (listener, url) = listener();
    run(async {
        let no_client = timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(no_client.is_err(), "there is no client");
        let recipe = preset("viz").unwrap();
        let client_end = Connection::open(&url, &recipe, &Options::default()).await.unwrap();
        let server_end = listener.accept().await.unwrap();
        assert!(client_end.event().now().unwrap().is_none());
        let rate = Rate::from_bps(7_000_000);
        server_end.set_rate(rate);
        while client_end.event().await.unwrap() != Event::Rate(rate) {}
    });
}

#[test]
fn byte_streams_work_in_tasks() {
    let (listener, url) = listener();
    run(async {
        let accepting = listener.clone();
        let server = tokio::spawn(async move {
            let mut reader = accepting.accept_reader().await.unwrap();
            let bytes = read_to_end(&mut reader).await;
            assert_eq!(reader.statistics().bytes, bytes.len() as u64);
            bytes
        });
        let mut writer =
            Endpoint::client().unwrap().open_writer(&url, &bulk(), &Options::default()).await.unwrap();
        write_all(&mut writer, &data()).await;
        writer.finish().await.unwrap();
        assert!(server.await.unwrap() == data());
        let server = tokio::spawn(async move {
            let Accepted::Writer(mut writer) = listener.accept_any().await.unwrap() else {
                panic!("unexpected client of a byte stream");
            };
            write_all(&mut writer, &data()).await;
            writer.finish().await.unwrap();
        });
        let mut reader =
            Endpoint::client().unwrap().open_reader(&url, &bulk(), &Options::default()).await.unwrap();
        assert!(read_to_end(&mut reader).await == data());
        server.await.unwrap();
    });
}

#[test]
fn tasks_waiting_for_a_stream_learn_of_its_failure() {
    let (listener, url) = listener();
    run(async {
        let accepting = tokio::spawn(async move { listener.accept_reader().await.unwrap() });
        let writer =
            Endpoint::client().unwrap().open_writer(&url, &bulk(), &Options::default()).await.unwrap();
        let mut reader = accepting.await.unwrap();
        let reading = tokio::spawn(async move { reader.read_some(&mut [0; 10]).await });
        sleep(Duration::from_millis(100)).await;
        // It waits until the message is sent, not for a local task.
        drop(writer);
        assert!(reading.await.unwrap().is_err());
    });
}

#[test]
fn streams_of_one_connection_serve_tasks() {
    let (listener, url) = listener();
    run(async {
        let server = tokio::spawn(async move {
            let server_end = listener.accept().await.unwrap();
            for _ in 0..3 {
                let (mut answer, mut question) = server_end.accept_stream().await.unwrap();
                tokio::spawn(async move {
                    let mut buffer = vec![0; 10_000];
                    while let read @ 1.. = question.read_some(&mut buffer).await.unwrap() {
                        let mut rest = &buffer[..read];
                        while !rest.is_empty() {
                            rest = &rest[answer.write_some(rest).await.unwrap()..];
                        }
                    }
                    answer.finish().unwrap();
                });
            }
            while server_end.recv().await.is_ok() {}
        });
        let client_end =
            Connection::open(&url, &preset("streams").unwrap(), &Options::default()).await.unwrap();
        let mut echoes = Vec::new();
        for _ in 0..3 {
            let (mut question, mut answer) = client_end.open_stream().await.unwrap();
            tokio::spawn(async move {
                let (data, mut sent) = (data(), 0);
                while sent < data.len() {
                    sent += question.write_some(&data[sent..]).await.unwrap();
                }
                question.finish().unwrap();
            });
            echoes.push(tokio::spawn(async move {
                let (mut buffer, mut bytes) = (vec![0; 10_000], Vec::new());
                while let read @ 1.. = answer.read_some(&mut buffer).await.unwrap() {
                    bytes.extend_from_slice(&buffer[..read]);
                }
                bytes
            }));
            client_end.send(b"beside").await.unwrap();
        }
        for echo in echoes {
            assert!(echo.await.unwrap() == data());
        }
        client_end.flush().await.unwrap();
        client_end.close().await.unwrap();
        server.await.unwrap();
    });
}

/// The number of threads of each name. A thread without a name of its own has its creator's.
fn threads_by_name() -> HashMap<String, usize> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut threads = HashMap::new();
    // A thread may have ended meanwhile.
    for name in tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()) {
        *threads.entry(name).or_default() += 1;
    }
    threads
}

/// More silent servers than any number of helper threads.
#[test]
fn unresponsive_servers_delay_no_other_connection_and_use_no_threads() {
    const SILENT: usize = 40;
    let (listener, url) = listener();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_, key) = url.split_once("/?").unwrap();
    let silent_url = format!("haul://{}/?{key}", silent.local_addr().unwrap());
    run(async {
        let endpoint = Endpoint::client().unwrap();
        let (recipe, options) = (preset("msg").unwrap(), Options::default());
        let short = Options { timeout: Duration::from_secs(3), ..Options::default() };
        let waiting: Vec<_> = (0..SILENT)
            .map(|_| {
                let (endpoint, silent_url, recipe, short) =
                    (endpoint.clone(), silent_url.clone(), recipe.clone(), short.clone());
                tokio::spawn(async move { endpoint.connect(&silent_url, &recipe, &short).await })
            })
            .collect();
        let accepting =
            thread::spawn(move || (0..SILENT).map(|_| silent.accept().unwrap()).collect::<Vec<_>>());
        while !accepting.is_finished() {
            sleep(Duration::from_millis(5)).await;
        }
        let _clients = accepting.join().unwrap();
        // Other tests run at the same time and have threads, too, but fewer of each name.
        let threads = threads_by_name();
        assert!(threads.values().all(|&count| count < SILENT), "{threads:?}");
        let client_end = endpoint.connect(&url, &recipe, &options).await.unwrap();
        client_end.send(b"meanwhile").await.unwrap();
        let server_end = listener.accept().await.unwrap();
        assert_eq!(server_end.recv().await.unwrap().data, b"meanwhile");
        for waits in waiting {
            let error = waits.await.unwrap().unwrap_err();
            assert!(matches!(error, OpenError::Unreachable(_)), "{error:?}");
        }
        exchange(&client_end, &server_end).await;
    });
}

async fn exchange(client_end: &Connection, server_end: &Connection) {
    server_end.send(b"and afterwards").await.unwrap();
    assert_eq!(client_end.recv().await.unwrap().data, b"and afterwards");
}

/// A waker that differs from poll to poll.
struct NoopWaker;

impl Wake for NoopWaker {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_connecting_task_has_one_descriptor_until_it_is_dropped() {
    let endpoint = Endpoint::client().unwrap();
    let options = Options { timeout: 2 * TIMEOUT, ..Options::default() };
    waits_until_dropped(|url| endpoint.connect(url, &preset("msg").unwrap(), &options));
    waits_until_dropped(|url| {
        Endpoint::client().unwrap().open_writer(url, &preset("bulk").unwrap(), &options)
    });
}

fn waits_until_dropped<T>(connect: impl Fn(&str) -> T)
where
    T: Future<Output: Debug> + 'static,
{
    let (listener, url) = listener();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let mut connecting = Box::pin(connect(&Url { port, ..url.parse().unwrap() }.to_string()));
    let mut poll = || {
        let waker = Waker::from(Arc::new(NoopWaker));
        assert!(connecting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        thread::sleep(Duration::from_millis(1));
    };
    (0..50).for_each(|_| poll());
    let (mut client, _) = silent.accept().unwrap();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    (0..300).for_each(|_| poll());
    // Other tests of this process open some meanwhile.
    assert!(descriptors() < before + 200);
    drop(connecting);
    client.set_read_timeout(Some(TIMEOUT / 4)).unwrap();
    let mut hello = Vec::new();
    client.read_to_end(&mut hello).unwrap();
    assert!(!hello.is_empty());
    drop(listener);
}
