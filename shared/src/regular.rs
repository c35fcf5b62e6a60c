//! Reading files in folders that others write: never waiting, and never more than told.
//!
//! A named pipe in a file's place would hold its reader for ever, a device may do anything, and a
//! file of the kernel's (`/proc/kmsg`) may wait for what comes next, or have no end. Whoever may
//! put a file there may put those there too, so they are refused. Links are followed: a mounted
//! ConfigMap consists of them.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

/// Opens the regular file `path` for reading, without waiting for anybody.
///
/// # Errors
///
/// [`ErrorKind::IsADirectory`] for a directory, [`ErrorKind::InvalidInput`] with what it is for
/// everything else that is not a regular file on a file system of its own; and what the kernel
/// says.
pub fn open(path: &Path) -> io::Result<File> {
    let opened =
        File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    match opened {
        Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => {
            Err(irregular("a socket, or a device that is not there"))
        }
        opened => {
            let file = opened?;
            check(&file)?;
            Ok(file)
        }
    }
}

/// Reads all of the regular file `path`, which may hold up to `longest` bytes.
///
/// # Errors
///
/// Those of [`open`], [`ErrorKind::FileTooLarge`], and what the kernel says.
pub fn read(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    read_opened(open(path)?, longest)
}

/// As [`read`], for text in UTF-8.
///
/// # Errors
///
/// Those of [`read`], and [`ErrorKind::InvalidData`] when it is something else.
pub fn read_to_string(path: &Path, longest: u64) -> io::Result<String> {
    text(read(path, longest)?)
}

/// As [`read_to_string`], of a file that [`open`] opened.
///
/// # Errors
///
/// Those of [`read_to_string`].
pub fn opened_to_string(file: File, longest: u64) -> io::Result<String> {
    text(read_opened(file, longest)?)
}

fn read_opened(file: File, longest: u64) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.len();
    let mut bytes = Vec::with_capacity(size.min(longest) as usize + 1);
    // It may have grown since, or not say how long it is.
    file.take(longest + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > longest {
        true => Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("it is larger than {longest} bytes"),
        )),
        false => Ok(bytes),
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Refuses what is not a regular file, or the kernel's own.
fn check(file: &File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory"));
    }
    if kind.is_fifo() {
        return Err(irregular("a named pipe"));
    }
    if !kind.is_file() {
        return Err(irregular("a device"));
    }
    // The kernel calls these regular; to read some of them waits, or takes what is read from
    // others.
    match fstatfs(file)?.filesystem_type() {
        PROC_SUPER_MAGIC => Err(irregular("a file of /proc")),
        _ => Ok(()),
    }
}

fn irregular(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("it is {what}, and not a regular file"))
}

#[cfg(test)]
mod tests;
