//! What of files travels beside contents, names, permissions and times.

use clap::{Args, ValueEnum};
use haul_wire::control::{HardLinks, Keep, Ownership, Preserve};

/// One thing of a list to preserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preserved {
    /// Owner and group
    Owner,
    /// Extended attributes
    Xattrs,
    /// Access control lists
    Acls,
    /// All of these
    All,
    /// None of these
    None,
}

/// Options about what of the files is preserved.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "What is preserved")]
pub(crate) struct PreserveArgs {
    /// What to preserve beside contents, permissions and times: owner, xattrs, acls, all
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub preserve: Vec<Preserved>,
    /// Preserve all that may be: the same as --preserve all
    #[arg(short, long)]
    pub archive: bool,
    /// Preserve owner and group, as far as the receiver may set them
    #[arg(long)]
    pub owner: bool,
    /// Preserve extended attributes
    #[arg(short = 'X', long)]
    pub xattrs: bool,
    /// Preserve access control lists
    #[arg(short = 'A', long)]
    pub acls: bool,
    /// Take owners by their numbers, not by their names
    #[arg(long)]
    pub numeric_ids: bool,
    /// Send a file once for each of its names, instead of linking them at the destination
    #[arg(long)]
    pub no_hard_links: bool,
}

impl PreserveArgs {
    /// The same for both sides.
    pub(crate) fn preserve(&self) -> Preserve {
        let listed = of(&self.preserve);
        let keep = |asked, listed| if asked || self.archive { Keep::Preserve } else { listed };
        let owner = self.owner || self.archive || listed.owner != Ownership::Receiver;
        Preserve {
            hard_links: if self.no_hard_links { HardLinks::Copy } else { HardLinks::Keep },
            owner: match (owner, self.numeric_ids) {
                (false, _) => Ownership::Receiver,
                (true, true) => Ownership::Numbers,
                (true, false) => Ownership::Names,
            },
            xattrs: keep(self.xattrs, listed.xattrs),
            acls: keep(self.acls, listed.acls),
        }
    }
}

/// A list as it counts.
pub(super) fn of(list: &[Preserved]) -> Preserve {
    let has = |one| list.contains(&one) || list.contains(&Preserved::All);
    let keep = |one| if has(one) { Keep::Preserve } else { Keep::Drop };
    Preserve {
        hard_links: HardLinks::Keep,
        owner: if has(Preserved::Owner) { Ownership::Names } else { Ownership::Receiver },
        xattrs: keep(Preserved::Xattrs),
        acls: keep(Preserved::Acls),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ways_to_ask_for_the_same_are_the_same() {
        let args = |set: fn(&mut PreserveArgs)| {
            let mut args = PreserveArgs::default();
            set(&mut args);
            args.preserve()
        };
        assert_eq!(args(|_| {}), Preserve::default());
        assert_eq!(args(|a| a.archive = true), Preserve::ALL);
        assert_eq!(args(|a| a.preserve = vec![Preserved::All]), Preserve::ALL);
        let three = vec![Preserved::Owner, Preserved::Xattrs, Preserved::Acls];
        assert_eq!(of(&three), Preserve::ALL);
        assert_eq!(of(&[Preserved::None]), Preserve::default());
        assert_eq!(args(|a| (a.owner, a.numeric_ids) = (true, true)).owner, Ownership::Numbers);
        assert_eq!(args(|a| a.numeric_ids = true).owner, Ownership::Receiver);
        assert_eq!(args(|a| a.no_hard_links = true).hard_links, HardLinks::Copy);
    }
}
