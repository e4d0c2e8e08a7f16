//! `haul man`: prints the manual page.

use std::io::{self, Write};

use clap::CommandFactory;

use crate::args::Cli;
use crate::output::out_verbatim;

pub(crate) fn run() -> u8 {
    let page = page().expect("writing to a Vec cannot fail");
    out_verbatim(String::from_utf8_lossy(&page).trim_end());
    0
}

/// Returns one manual page: the program, then each command.
fn page() -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let man = clap_mangen::Man::new(sub.clone());
        writeln!(page, ".SH \"HAUL {}\"", sub.get_name().to_uppercase())?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    Ok(page)
}
