//! The files in the run directory: those of the agent go, and those of the plugin stay.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::Context;
use denizen_state::firewall;
use denizen_state::run_dir::{NEXT_SOCKET, SOCKET, STATE_FILE};

use denizen_routing::bird;
use denizen_source::egress;
use denizen_text::print_line;

/// Removes the agent's files, and says which stay, and why.
pub(super) fn remove(run_dir: &Path) -> anyhow::Result<()> {
    if !run_dir.is_dir() {
        return Ok(());
    }
    let folder = run_dir.join(bird::FOLDER);
    for socket in [run_dir.join(SOCKET), run_dir.join(NEXT_SOCKET), folder.join(bird::SOCKET)] {
        // A BIRD that still runs keeps its socket.
        if UnixStream::connect(&socket).is_err() {
            remove_file(&socket)?;
        }
    }
    remove_file(&run_dir.join(egress::LAST_GOOD))?;
    // A folder with other files is not empty, and stays.
    let _ = fs::remove_dir(&folder);
    let spoilt = format!("{STATE_FILE}.bad-");
    let mut kept = Vec::new();
    for name in names(run_dir).with_context(|| format!("cannot list {}", run_dir.display()))? {
        if name.starts_with(&spoilt) {
            remove_file(&run_dir.join(name))?;
        } else if name.starts_with(STATE_FILE) || name == firewall::OFF {
            kept.push(name);
        }
    }
    if !kept.is_empty() {
        print_line(format_args!(
            "kept {} in {} until the next boot: the runtime still calls the plugin for pods that \
             it has recorded",
            kept.join(", "),
            run_dir.display()
        ));
    }
    Ok(())
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    let mut names: Vec<String> =
        names.filter_map(io::Result::transpose).collect::<Result<_, _>>()?;
    names.sort();
    Ok(names)
}

fn remove_file(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
