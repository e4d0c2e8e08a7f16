//! Command lines of the local ssh and the remote haul.

use std::ffi::OsString;
use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::SshHost;
use crate::args::{SshArgs, URL_VARIABLE};
use crate::fault::{self, Fault};
use crate::signals::{command_line, quote};

const CONFIG_TIMEOUT: Duration = Duration::from_secs(5);
/// ssh's port option; scp's is `-P`.
const PORT: &str = "-p";
const TICK: Duration = Duration::from_millis(5);

#[derive(Debug, Clone)]
pub(crate) struct SshCommand {
    pub(crate) host: SshHost,
    pub(super) program: OsString,
    /// Arguments behind the program in `--ssh`.
    words: Vec<OsString>,
    /// Options of both ssh and scp, which differ in the name of [`PORT`].
    options: Vec<(&'static str, OsString)>,
    pub(super) binary: String,
    pub(crate) ports: Option<String>,
}

impl SshCommand {
    pub(crate) fn new(args: &SshArgs, host: &SshHost) -> Result<Self, Fault> {
        let text = args.ssh.as_deref().unwrap_or("ssh");
        let unclosed = || fault::usage(format!("--ssh: `{text}` has an unterminated quote"), "close it");
        let mut words = shlex::split(text).ok_or_else(unclosed)?.into_iter().map(OsString::from);
        let program =
            words.next().ok_or_else(|| fault::usage("--ssh does not name a program", "write --ssh ssh"))?;
        let mut options: Vec<(&'static str, OsString)> = Vec::new();
        options.extend(args.ssh_config.iter().map(|file| ("-F", file.into())));
        options.extend(args.ssh_port.iter().map(|port| (PORT, port.to_string().into())));
        options.extend(args.ssh_identity.iter().map(|file| ("-i", file.into())));
        options.extend(args.ssh_jump.iter().map(|host| ("-J", host.into())));
        options.extend(args.ssh_option.iter().map(|option| ("-o", option.into())));
        let binary = args.remote_binary.clone().unwrap_or_else(|| "haul".to_owned());
        if binary.is_empty() || binary.starts_with('-') {
            let hint = "write --remote-binary PATH";
            return Err(fault::usage("--remote-binary does not name a program", hint));
        }
        let ports = args.port_range.as_ref().map(ToString::to_string);
        Ok(Self { host: host.clone(), program, words: words.collect(), options, binary, ports })
    }

    /// Returns the ssh command up to the host, quoted for the shell.
    pub(crate) fn shown(&self) -> String {
        command_line([self.program.clone()].into_iter().chain(self.arguments()))
    }

    /// Returns the command that prints the version of the remote haul.
    pub(super) fn version(&self) -> String {
        let version_command = format!("{} --version", quote_path(&self.binary));
        let is_plain = quote(&self.binary) == self.binary;
        format!("{} {}", self.shown(), if is_plain { version_command } else { quote(&version_command) })
    }

    /// Returns the command that copies the program at `path` to the home directory on the host.
    pub(super) fn install(&self, path: &str) -> String {
        if self.program != "ssh" || !self.words.is_empty() {
            // scp may not support the arguments of this program.
            return format!("{} 'cat > haul && chmod +x haul' < {}", self.shown(), quote(path));
        }
        let (ports, others): (Vec<_>, Vec<_>) = self.options.iter().partition(|(name, _)| *name == PORT);
        let port = self.host.port.map(|port| port.to_string().into());
        let port = port.or_else(|| ports.first().map(|(_, port)| port.clone()));
        let options = port.map(|port| ("-P", port)).into_iter().chain(others.into_iter().cloned());
        let options = options.flat_map(|(name, value)| [OsString::from(name), value]);
        let to = format!("{}:", self.host.in_brackets());
        command_line(["scp".into()].into_iter().chain(options).chain([path.into(), to.into()]))
    }

    fn to_host(&self, first: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.env_remove(URL_VARIABLE).arg(first).args(self.arguments());
        command
    }

    fn arguments(&self) -> Vec<OsString> {
        // ssh uses the first port: that of a URL takes precedence.
        let port = self.host.port.map(|port| (PORT, OsString::from(port.to_string())));
        let pair = |(name, value): (&str, OsString)| [OsString::from(name), value];
        let port = port.into_iter().flat_map(pair).chain(self.words.iter().cloned());
        let options = self.options.iter().cloned().flat_map(pair);
        port.chain(options).chain([OsString::from(&self.host.destination)]).collect()
    }

    pub(crate) fn serve(&self) -> Command {
        let ports = self.ports.iter().map(|ports| format!(" --port-range {ports}"));
        self.remote(&format!("serve --once --for-ssh{}", ports.collect::<String>()))
    }

    pub(crate) fn copy(&self) -> Command {
        self.remote("cp --for-ssh")
    }

    /// Returns the command that runs haul on the host with these `words`.
    fn remote(&self, words: &str) -> Command {
        // A remote terminal would merge stdout and stderr.
        let mut command = self.to_host("-T");
        command.arg(format!("{} {words}", quote_path(&self.binary)));
        command
    }

    /// Returns the name or address by which ssh's configuration replaces the host.
    pub(crate) fn hostname(&self) -> String {
        let found = self.configuration().and_then(|text| hostname_in(&text));
        found.unwrap_or_else(|| self.host.name().to_owned())
    }

    /// Returns the output of `ssh -G`, which not every program given by `--ssh` supports. It fits into a pipe
    /// (64 KiB, pipe(7)), or the program does not end.
    fn configuration(&self) -> Option<String> {
        let mut command = self.to_host("-G");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let output = child.stdout.take()?;
        if wait(&mut child, CONFIG_TIMEOUT).is_none() {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        // A process that it left behind may hold the pipe open.
        rustix::io::ioctl_fionbio(&output, true).ok()?;
        let mut text = Vec::new();
        let _ = output.take(1 << 20).read_to_end(&mut text);
        String::from_utf8(text).ok()
    }
}

pub(super) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => thread::sleep(TICK),
            _ => return None,
        }
    }
}

fn hostname_in(configuration: &str) -> Option<String> {
    let name = configuration.lines().find_map(|line| line.strip_prefix("hostname "))?.trim();
    Some(name.to_owned()).filter(|name| !name.is_empty())
}

/// Quotes a program's path for the remote shell, except for a leading `~/`.
fn quote_path(path: &str) -> String {
    match path.strip_prefix("~/") {
        Some(rest) => format!("~/{}", quote(rest)),
        None => quote(path),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::ssh::address;

    fn host(word: &str) -> SshHost {
        address::parse(OsStr::new(word)).unwrap().unwrap().0
    }

    fn joined_words(command: &Command) -> String {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn options_are_passed_on_and_ssh_does_not_inherit_the_url() {
        let args = SshArgs {
            ssh: Some("'my ssh' -v".to_owned()),
            remote_binary: Some("~/my bin/haul".to_owned()),
            port_range: Some("5000-5001".parse().unwrap()),
            ssh_port: Some(2222),
            ssh_identity: Some("key".into()),
            ssh_jump: Some("jump".to_owned()),
            ssh_config: Some("file".into()),
            ssh_option: vec!["A=1".to_owned(), "B=2".to_owned()],
            ..SshArgs::default()
        };
        let command = SshCommand::new(&args, &host("me@far:x")).unwrap();
        assert_eq!(
            joined_words(&command.serve()),
            "my ssh|-T|-v|-F|file|-p|2222|-i|key|-J|jump|-o|A=1|-o|B=2|me@far|~/'my bin/haul' serve --once \
             --for-ssh --port-range 5000-5001"
        );
        assert!(joined_words(&command.copy()).ends_with("|me@far|~/'my bin/haul' cp --for-ssh"));
        for ssh in [command.serve(), command.copy(), command.to_host("-G")] {
            let is_removed = ssh.get_envs().any(|(name, value)| name == URL_VARIABLE && value.is_none());
            assert!(is_removed, "ssh inherits the URL");
        }
    }

    #[test]
    fn shown_commands_can_be_run_as_they_are() {
        let args = SshArgs {
            ssh_port: Some(2222),
            ssh_config: Some("my file".into()),
            ssh_option: vec!["A=1".to_owned()],
            ..SshArgs::default()
        };
        let plain = SshCommand::new(&args, &host("me@far:x")).unwrap();
        let url = SshCommand::new(&args, &host("ssh://me@[::1]:22/x")).unwrap();
        assert_eq!(plain.shown(), "ssh -F 'my file' -p 2222 -o A=1 me@far");
        assert_eq!(plain.install("/b/haul"), "scp -P 2222 -F 'my file' -o A=1 /b/haul me@far:");
        assert_eq!(url.install("/b/haul"), "scp -P 22 -F 'my file' -o A=1 /b/haul 'me@[::1]:'");
        assert_eq!(plain.version(), "ssh -F 'my file' -p 2222 -o A=1 me@far haul --version");
        let args = SshArgs {
            ssh: Some("ssh -v".to_owned()),
            remote_binary: Some("~/bin/haul".to_owned()),
            ..SshArgs::default()
        };
        let command = SshCommand::new(&args, &host("me@far:x")).unwrap();
        assert_eq!(command.version(), "ssh -v me@far '~/bin/haul --version'");
        assert_eq!(command.install("/a b"), "ssh -v me@far 'cat > haul && chmod +x haul' < '/a b'");
    }

    #[test]
    fn without_options_the_command_is_plain_ssh_and_haul() {
        let command = SshCommand::new(&SshArgs::default(), &host("ssh://me@[::1]:22/x")).unwrap();
        assert_eq!(joined_words(&command.serve()), "ssh|-T|-p|22|me@::1|haul serve --once --for-ssh");
        assert_eq!(joined_words(&command.to_host("-G")), "ssh|-G|-p|22|me@::1");
    }

    #[test]
    fn the_ssh_command_is_split_into_words_as_in_a_shell() {
        let command = |text: &str| {
            let args = SshArgs { ssh: Some(text.to_owned()), ..SshArgs::default() };
            SshCommand::new(&args, &host("far:x"))
        };
        let SshCommand { program, words, .. } = command(" a  'b c'\"d'\" '' ").unwrap();
        assert_eq!((program, words), ("a".into(), vec!["b cd'".into(), "".into()]));
        for wrong in ["", "  ", "'", "a 'b"] {
            assert!(command(wrong).is_err());
        }
    }

    #[test]
    fn the_hostname_is_read_from_the_configuration() {
        assert_eq!(
            hostname_in("user me\nhostname far.example.org\nport 22\n").as_deref(),
            Some("far.example.org")
        );
        assert_eq!(hostname_in("host far\n"), None);
    }
}
