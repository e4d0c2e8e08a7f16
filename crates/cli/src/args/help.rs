//! Examples and notes at the end of help texts.

pub(super) const EXAMPLES: &str = "\
Start here:
  haul demo                                    see it work on this machine, without setup
  haul serve --root /data --url-file url       serve /data and write the URL to a file
  haul cp results/ @url:in                     copy to that server
  haul cp results/ host:in                     copy over ssh, without starting a server

Every option can also be set in ~/.config/haul/config.toml or as the environment variable HAUL_<OPTION>.";

pub(super) const CP: &str = "\
Examples:
  haul cp big.h5 @url:in/                             upload a file into in/; url holds the server's URL
  haul cp -q @url:run7 .                              download a directory
  haul cp --rate 800Mbit a b @url                     upload two, at 800 Mbit/s at most
  haul cp --json src dst > result.json                copy locally, with a result for scripts
  haul cp --exclude '*.o' --exclude /src/build/ src @url
  find src -newer stamp -printf '%P\\0' | haul cp -0 --files-from - src dst
  haul cp big.h5 me@host:in/                          over ssh, which starts haul on the other side
  haul cp --detach hostA:/data/run7 hostB:/data/      from A to B, even if this machine stops

Patterns: a leading / anchors a pattern at the root of the transfer, where each path starts with the
source's name; a trailing / matches directories only. A pattern without any other / matches the last
component of a path. * and ? do not match /, ** does; [a-z] matches one character. The first matching
rule wins, and excluded directories are not entered.

A URL can be given directly (quote it, because of the ?), but then its key shows in process lists.
@FILE reads it from a file, @- from the first line of stdin, @env from $HAUL_URL. Write ./ in front
of a local name that looks like one of these or like host:path. HOST:PATH is relative to the remote
home directory; ssh starts haul there, and the data goes directly to a TCP and UDP port, which must
be open (--port-range).

Exit codes: 0 done, 1 failed, 2 usage, 3 some files failed, 4 verification failed,
5 unreachable, UDP blocked or peer stopped, 6 not authorised, 7 local disk or permission,
8 source changed while reading, 130 interrupted.";

pub(super) const SERVE: &str = "\
Examples:
  haul serve --root /data                          read and write below /data
  haul serve --root /data --read-only --expires 12h
  haul serve --listen 0.0.0.0:5000 --host dtn.example.org --url-file ~/url
  haul serve --set crypto=none                     permit unencrypted sessions

The URL is the key: anyone who has it can do what this server permits.";

pub(super) const BENCH: &str = "\
Examples:
  haul bench @url                                  send for 10 s; url holds the server's URL
  haul bench --reverse --bytes 1GiB @url
  haul bench --controller fixed --rate 2Gbit --time 30s --json @url";

pub(super) const PRESETS: &str = "\
Examples:
  haul presets                      list them
  haul presets default > mine.toml  start your own recipe; use it with --preset ./mine.toml";

pub(super) const DIAGNOSE: &str = "\
Examples:
  haul diagnose window.sig                        print the cause and its probability
  haul diagnose --json --model mine.toml *.sig    print one object per window, for scripts

A signature file has a 1 for each packet that arrived and a 0 for each that was lost, in sending
order; a line of --- separates windows. Traces of transfers (--events) work as well. See
docs/diagnosis.md.";

pub(super) const DOCTOR: &str = "\
Examples:
  haul doctor              check this machine's kernel limits and load
  haul doctor @server.url  also measure the path, both ways: rate, losses, causes, bottleneck";

pub(super) const TRAIN: &str = "\
Examples:
  haul train --host busy-*.sig --network crowded-*.sig -o model.toml
  haul cp --diagnosis-model model.toml data @url

It prints how well the model fits, and how often it classifies held-out windows correctly.";

pub(super) const STATUS: &str = "\
Examples:
  haul status                       leftovers in this directory
  haul status -r --json /data       everything below /data, for scripts

Run the command of a transfer again to resume it; `haul clean` removes what it left.";

pub(super) const CTL: &str = "\
Examples:
  haul ctl                          list this user's running copies
  haul ctl 4711                     show one, with the parameters of its control law
  haul ctl 4711 rate=50Mbit         limit its rate; rate=unlimited lifts the limit
  haul ctl 4711 controller=reno     switch the control law; it continues from the present rate

If the copy receives, the change is requested from its server. No data is lost.";

pub(super) const CLEAN: &str = "\
Examples:
  haul clean -n                     show what would be removed from this directory
  haul clean -r --older-than 7d /data

Files of running transfers are never removed.";

pub(super) const DEMO: &str = "\
Examples:
  haul demo                                   256 MB over 1 Gbit/s, 50 ms, 0.1 % loss
  haul demo --rtt 200ms --loss 1% --size 1GB
  haul demo --controller fixed --rate 900Mbit ~/data
  haul demo --busy-receiver                   compare a cause-aware control law with another";

pub(super) const PIPE: &str = "\
Examples:
  haul pipe --listen --url-file url | tar x        on one machine
  tar c data | haul pipe @url                      on the other
  sensor-tool | haul pipe --preset msg @url        send every line as a message, with low delay
  camera | haul pipe --preset viz --rate 50Mbit --frame 1200B @url

viz, msg, sensor and streams carry messages, the other presets a byte stream. All but viz and
sensor deliver everything in order. viz retransmits nothing and reports losses at the end;
sensor omits lines that equal the previous one. fixed needs --rate; fobs, rbudp and
related presets send at 900 Mbit/s by default.

Exit codes: 0 done, 1 failed, 2 usage, 5 unreachable, UDP blocked, peer gone or stopped,
6 not authorised, 7 local disk or permissions, 130 interrupted here.";

#[cfg(test)]
mod tests {
    use crate::settings::Preset;

    #[test]
    fn the_help_of_pipe_names_exactly_the_message_presets() {
        let (of_messages, _) = super::PIPE.split_once(" carry messages").unwrap();
        let of_messages = of_messages.lines().last().unwrap().replace(" and ", ", ");
        let presets = Preset::all().into_iter().filter(Preset::carries_messages);
        assert_eq!(of_messages, presets.map(|preset| preset.name).collect::<Vec<_>>().join(", "));
    }
}
