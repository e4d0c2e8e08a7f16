//! Examples that close the help texts.

pub(super) const EXAMPLES: &str = "\
Start here:
  haul demo                                    see it work on this machine, no set-up
  haul serve --root /data --url-file url       offer /data, write the URL to a file
  haul cp results/ @url:in                     copy to that server
  haul cp results/ host:in                     copy over ssh, nothing to start there

Every option can also stand in ~/.config/haul/config.toml or in the environment as HAUL_<OPTION>.";

pub(super) const CP: &str = "\
Examples:
  haul cp big.h5 @url:in/                             upload a file into in/; url has the server's URL
  haul cp -q @url:run7 .                              download a directory
  haul cp --rate 800Mbit a b @url                     upload two, never faster than 800 Mbit/s
  haul cp --json src dst > result.json                copy locally, result for a script
  haul cp --exclude '*.o' --exclude /src/build/ src @url
  find src -newer stamp -printf '%P\\0' | haul cp -0 --files-from - src dst
  haul cp big.h5 me@host:in/                          over ssh, which starts haul there
  haul cp --detach hostA:/data/run7 hostB:/data/      from A to B, even if this end stops

Patterns: a leading / stands for the top of what is sent (where the source's name comes first), a
trailing / for directories only. Without a / between, the last component is meant. * and ? stop
at /, ** does not; [a-z] is one character. The first match counts, and what is in an excluded
directory is not looked at.

A URL may stand as it is (in quotes, because of its ?), but its key then shows in process lists:
@FILE reads it from a file, @- from the first line of stdin, @env from $HAUL_URL. A local name that
looks like one of these, or like host:path, has ./ in front. HOST:PATH is relative to the home
directory there; ssh starts haul there, and the data goes directly, by a TCP and UDP port that has
to be open (--port-range).

Exit codes: 0 done, 1 failed, 2 usage, 3 some files failed, 4 verification failed,
5 unreachable, UDP blocked or the other side stopped, 6 not authorised, 7 local disk or permission,
8 source changed while reading, 130 interrupted.";

pub(super) const SERVE: &str = "\
Examples:
  haul serve --root /data                          read and write below /data
  haul serve --root /data --read-only --expires 12h
  haul serve --listen 0.0.0.0:5000 --host dtn.example.org --url-file ~/url
  haul serve --set crypto=none                     permit sessions without encryption

The URL is the key: whoever has it can do what this server permits.";

pub(super) const BENCH: &str = "\
Examples:
  haul bench @url                                  send for 10 s; url has the server's URL
  haul bench --reverse --bytes 1GiB @url
  haul bench --controller fixed --rate 2Gbit --time 30s --json @url";

pub(super) const PRESETS: &str = "\
Examples:
  haul presets                      list them
  haul presets default > mine.toml  start a recipe of your own; use it with --preset ./mine.toml";

pub(super) const DIAGNOSE: &str = "\
Examples:
  haul diagnose window.sig                        which cause, and how certain
  haul diagnose --json --model mine.toml *.sig    one object a window, for a script

A signature file has a 1 for each packet that arrived and a 0 for each that was lost, in the
order in which they left; a line of --- parts windows. The trace of a transfer (--events) will
do as well. docs/diagnosis.md says more.";

pub(super) const DOCTOR: &str = "\
Examples:
  haul doctor              what this machine's kernel does not grant, and how busy it is
  haul doctor @server.url  the path there and back too: rate, losses and their causes, and the limit";

pub(super) const TRAIN: &str = "\
Examples:
  haul train --host busy-*.sig --network crowded-*.sig -o model.toml
  haul cp --diagnosis-model model.toml data @url

It prints how well the model fits, and how often each cause is told rightly of windows held out.";

pub(super) const STATUS: &str = "\
Examples:
  haul status                       what lies in this directory
  haul status -r --json /data       all below /data, for a script

Running the command of a transfer again resumes it; `haul clean` removes what it left.";

pub(super) const CTL: &str = "\
Examples:
  haul ctl                          the copies that run here as this user
  haul ctl 4711                     one of them, and what its control law was told
  haul ctl 4711 rate=50Mbit         no faster from now on; rate=unlimited lifts it
  haul ctl 4711 controller=reno     another control law, which goes on from the rate of the one before

At a copy that receives, its server is asked. Nothing that was sent is lost by it.";

pub(super) const CLEAN: &str = "\
Examples:
  haul clean -n                     say what would be removed from this directory
  haul clean -r --older-than 7d /data

What running transfers use is never removed.";

pub(super) const DEMO: &str = "\
Examples:
  haul demo                                   256 MB over 1 Gbit/s, 50 ms, 0.1 % loss
  haul demo --rtt 200ms --loss 1% --size 1GB
  haul demo --controller fixed --rate 900Mbit ~/data
  haul demo --busy-receiver                   what it is worth to know why packets are lost";

pub(super) const PIPE: &str = "\
Examples:
  haul pipe --listen --url-file url | tar x        on one machine
  tar c data | haul pipe @url                      on the other
  sensor-tool | haul pipe --preset msg @url        every line a message, with the least delay
  camera | haul pipe --preset viz --rate 50Mbit --frame 1200B @url

viz, msg, sensor and streams carry messages, the other presets a stream of bytes. All but
viz and sensor deliver everything in order. viz repeats nothing and says at the end what was lost;
sensor leaves out lines that equal the last one. fixed takes a --rate; fobs, rbudp and
their relatives send at 900 Mbit/s without one.

Exit codes: 0 done, 1 failed, 2 usage, 5 unreachable, UDP blocked, the other side gone or stopped,
6 not authorised, 130 interrupted here.";

#[cfg(test)]
mod tests {
    use crate::settings::Preset;

    #[test]
    fn the_help_of_pipes_names_every_preset_of_messages_and_no_other() {
        let (of_messages, _) = super::PIPE.split_once(" carry messages").unwrap();
        let of_messages = of_messages.lines().last().unwrap().replace(" and ", ", ");
        let presets = Preset::all().into_iter().filter(Preset::carries_messages);
        assert_eq!(of_messages, presets.map(|preset| preset.name).collect::<Vec<_>>().join(", "));
    }
}
