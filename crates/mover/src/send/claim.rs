//! What a walk may claim about names that it does not find.

use haul_wire::control::{
    ControlMessage, Extent, Fault, FileSystems, IgnoreFiles, Rule, Selection, encoded_len,
};

use crate::link::ControlLink;
use crate::root::copies_content;

/// Bytes of rules in one message, half of what a frame takes.
const AT_ONCE: usize = haul_wire::control::MAX_FRAME / 2;

/// How much a set says about names that it does not have, and what was left out of it by rules.
#[derive(Debug)]
pub(super) struct Claim {
    extent: Extent,
    rules: Vec<Rule>,
}

/// What a receiver cannot tell from a name that the source does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untellable {
    /// What a list of paths does not name.
    Paths,
    /// What ignore files in the source leave out.
    Ignored,
    /// What is on another file system at the source.
    FileSystems,
    /// What is too small or too large at the source.
    Sizes,
}

/// What of a selection keeps the set from saying anything about names that it does not have. `None`: it is all
/// that there is but for what rules leave out, which the receiver is told.
pub fn untellable(selection: &Selection) -> Option<Untellable> {
    // Following links changes what stands for a name, not which names there are.
    let Selection { rules: _, paths, ignore_files, links: _, file_systems, min_bytes, max_bytes } = selection;
    if paths.is_some() {
        Some(Untellable::Paths)
    } else if *ignore_files == IgnoreFiles::Obey {
        Some(Untellable::Ignored)
    } else if *file_systems == FileSystems::One {
        Some(Untellable::FileSystems)
    } else {
        (min_bytes.is_some() || max_bytes.is_some()).then_some(Untellable::Sizes)
    }
}

impl Claim {
    pub(super) fn of(sources: &[Vec<u8>], selection: &Selection) -> Self {
        let content = sources.iter().any(|source| copies_content(source));
        let extent = match content {
            // What was left out is not to be taken for what the sources do not have.
            _ if untellable(selection).is_some() => Extent::Part,
            true => Extent::Destination,
            false => Extent::Directories,
        };
        Self { extent, rules: selection.rules.clone() }
    }

    /// Tells the receiver, if the walk `is_whole`.
    pub(super) fn tell(&self, link: &dyn ControlLink, is_whole: bool) -> Result<(), Fault> {
        if !is_whole || self.extent == Extent::Part {
            return link.send(ControlMessage::Extent(Extent::Part));
        }
        let (mut some, mut bytes) = (Vec::new(), 0);
        for rule in &self.rules {
            let len = encoded_len(rule);
            if bytes + len > AT_ONCE {
                link.send(ControlMessage::LeftOut(std::mem::take(&mut some)))?;
                bytes = 0;
            }
            bytes += len;
            some.push(rule.clone());
        }
        if !some.is_empty() {
            link.send(ControlMessage::LeftOut(some))?;
        }
        link.send(ControlMessage::Extent(self.extent))
    }
}
