//! Reads files in folders that others write, without blocking and with a size limit.
//!
//! A named pipe in place of a file would block its reader for ever, a device may do anything, and a
//! file of the kernel (`/proc/kmsg`) may block until something new comes, or have no end. Whoever
//! can put a file there can put these there too, so they are refused. Links are followed: a mounted
//! ConfigMap consists of them.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

/// Opens the regular file `path` for reading, without blocking.
///
/// # Errors
///
/// [`ErrorKind::IsADirectory`] for a directory, [`ErrorKind::InvalidInput`] with the file's type
/// for everything else that is not a regular file outside /proc, and I/O errors.
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

/// Reads the whole regular file `path`, which may have up to `longest` bytes.
///
/// # Errors
///
/// Those of [`open`], [`ErrorKind::FileTooLarge`], and I/O errors.
pub fn read(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    read_opened(open(path)?, longest)
}

/// Like [`read`], for UTF-8 text.
///
/// # Errors
///
/// Those of [`read`], and [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_to_string(path: &Path, longest: u64) -> io::Result<String> {
    text(read(path, longest)?)
}

/// Like [`read_to_string`], for a file from [`open`].
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
    // The file may have grown since, or may not report its length.
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

/// Refuses a file that is not regular, or is in /proc.
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
    // The kernel reports these as regular files, but reading some of them blocks, or takes data
    // away from other readers.
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
