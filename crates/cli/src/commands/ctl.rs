//! `haul ctl`: lists this user's running copies and pipes, shows one, or changes its control law.

use std::fs;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use haul_base::{Bytes, Rate};
use serde_json::{Map, Value, json};

use crate::args::{Assignment, copy_name};
use crate::fault::{self, Fault};
use crate::output::{eprint_lines, out, out_fields};
use crate::transfer::control_socket::{MAX_LINE, directory};

/// Timeout for a reply. A copy answers within 50 ms, a pipe within 100 ms; on a busy machine later.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(copy: Option<&str>, changes: &[Assignment], as_object: bool) -> Result<u8, Fault> {
    let directory = directory().map_err(|error| fault::io("cannot find running copies", &error))?;
    let Some(name) = copy else {
        list(&running(&directory), as_object);
        return Ok(0);
    };
    // `rate_control.rate` is the same as `rate`.
    let parameter = |key: &str| key.strip_prefix("rate_control.").unwrap_or(key).to_owned();
    let set: Vec<_> = changes.iter().map(|change| (parameter(&change.key), change.value.clone())).collect();
    let reply = send_request(&directory.join(name), &set)?.ok_or_else(|| {
        fault::usage(
            format!("this user runs no copy with process ID {name}"),
            "`haul ctl` lists running copies",
        )
    })?;
    show(&reply, as_object);
    Ok(0)
}

/// Returns the reply of the copy at this socket, with its name; `None` if no process listens there.
fn send_request(path: &Path, changes: &[(String, String)]) -> Result<Option<Value>, Fault> {
    let reply = (|| {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.write_all(format!("{}\n", serde_json::to_string(changes)?).as_bytes())?;
        Ok(serde_json::from_reader::<_, Map<String, Value>>(BufReader::new(stream.take(MAX_LINE)))?)
    })();
    let name = path.file_name().unwrap_or_default().display();
    let mut reply = match reply.map_err(|error: io::Error| (error.kind(), error)) {
        Ok(reply) => reply,
        Err((ErrorKind::ConnectionRefused | ErrorKind::NotFound, _)) => return Ok(None),
        Err((_, error)) => return Err(fault::io(format!("copy {name} does not respond"), &error)),
    };
    reply.insert("copy".to_owned(), name.to_string().into());
    let reply = Value::Object(reply);
    let error = &reply["error"];
    match error["message"].as_str() {
        Some(message) => Err(fault::usage(message, error["hint"].as_str().unwrap_or_default())),
        None => Ok(Some(reply)),
    }
}

/// Returns the copies that answer, sorted by name. Removes the sockets of dead processes.
fn running(directory: &Path) -> Vec<Value> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    let mut found: Vec<Value> = sockets
        .filter_map(|entry| {
            copy_name(entry.file_name().to_str()?).ok()?;
            match send_request(&entry.path(), &[]) {
                Ok(Some(reply)) => Some(reply),
                Ok(None) => {
                    let _ = fs::remove_file(entry.path());
                    None
                }
                Err(_) => None,
            }
        })
        .collect();
    found.sort_by(|a, b| a["copy"].as_str().cmp(&b["copy"].as_str()));
    found
}

fn list(running: &[Value], as_object: bool) {
    if as_object {
        return out_fields(json!({ "copies": running }), None);
    }
    if running.is_empty() {
        return eprint_lines("this user runs no copies");
    }
    for reply in running {
        out(line(reply));
    }
}

fn line(reply: &Value) -> String {
    let (name, side) =
        (reply["copy"].as_str().unwrap_or_default(), reply["side"].as_str().unwrap_or_default());
    let moved = Bytes(reply["bytes"].as_u64().unwrap_or(0));
    let data = &reply["data"];
    let law = data["controller"].as_str().or(reply["rate_control"]["controller"].as_str()).unwrap_or("-");
    let rate = data["rate_bps"].as_u64().map(|bps| format!(" at {}", Rate::from_bps(bps)));
    let rate = rate.unwrap_or_default();
    format!("{name:<10} {side:<9} {moved:>10}  {law}{rate}")
}

fn show(reply: &Value, as_object: bool) {
    if as_object {
        return out_fields(json!({ "copy": reply }), None);
    }
    out(line(reply));
    for (key, value) in reply["rate_control"].as_object().into_iter().flatten() {
        out(format!("  {key}={}", value.as_str().unwrap_or_default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_or_unused_socket_means_the_copy_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let send_request = |name: &str| send_request(&directory.path().join(name), &[]);
        drop(std::os::unix::net::UnixListener::bind(directory.path().join("7")).unwrap());
        assert!(matches!(send_request("7"), Ok(None)));
        assert!(matches!(send_request("8"), Ok(None)));
        // Connecting fails for another reason, which says nothing about the copy: its socket must stay.
        assert!(
            send_request(&"9".repeat(200)).is_err_and(|fault| fault.message.contains("does not respond"))
        );
    }
}
