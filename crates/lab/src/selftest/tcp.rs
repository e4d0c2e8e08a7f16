//! Throughput of one TCP connection from A to B.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::{Rate, Span};
use socket2::{Domain, Protocol, Socket, Type};

use haul_wan::end_soon;
use haul_wan::{V4, World};

/// Bytes per read or write.
const BUFFER: usize = 1 << 20;
/// Start of the measurement, after slow start.
const WARM_UP: Duration = Duration::from_millis(1_500);

/// Returns the payload rate with CUBIC, after slow start.
pub(super) fn measure(world: &World, time: Span) -> io::Result<Rate> {
    let listener = world.b.namespace.run(|| TcpListener::bind((V4[1], 0)))?;
    let to = listener.local_addr()?;
    let socket = world.a.namespace.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        // Without CUBIC, the kernel's default is measured.
        let _ = socket.set_tcp_congestion(b"cubic");
        Ok(socket)
    })?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            end_soon();
            socket.connect(&to.into())?;
            let mut stream = TcpStream::from(socket);
            stream.set_write_timeout(Some(Duration::from_secs(1)))?;
            let buffer = vec![0; BUFFER];
            while !stop.load(Ordering::Relaxed) {
                stream.write_all(&buffer)?;
            }
            io::Result::Ok(())
        });
        let (stream, _) = listener.accept()?;
        let rate = receive(stream, Duration::from(time));
        stop.store(true, Ordering::Relaxed);
        // The sender ends when the receiver closes the connection or `stop` is set.
        let _ = sender.join();
        rate
    })
}

fn receive(mut stream: TcpStream, time: Duration) -> io::Result<Rate> {
    end_soon();
    let mut buffer = vec![0; BUFFER];
    let begin = Instant::now();
    let (mut start, mut bytes) = (None::<Instant>, 0);
    loop {
        let len = stream.read(&mut buffer)?;
        match start {
            None if begin.elapsed() >= WARM_UP => start = Some(Instant::now()),
            None => {}
            Some(start) => {
                bytes += len as u64;
                if start.elapsed() >= time {
                    return Ok(Rate::from_transfer(bytes, start.elapsed().into()));
                }
            }
        }
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
