use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

/// The result of reading `path`, which must not block.
fn read_in_time(path: PathBuf) -> Result<String, String> {
    let (done, result) = channel();
    std::thread::spawn(move || {
        let read = read_to_string(&path, 16);
        let _ = done.send(read.map_err(|error| error.to_string()));
    });
    // Far more than any machine needs: a blocked read would block for ever.
    let read = result.recv_timeout(Duration::from_secs(10));
    read.expect("reading does not block")
}

#[test]
fn only_regular_files_are_read_and_nothing_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("folder")).unwrap();
    mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    for (name, text) in
        [("file", "text"), ("full", "0123456789abcdef"), ("long", "0123456789abcdef+")]
    {
        io::Write::write_all(&mut File::create(at(name)).unwrap(), text.as_bytes()).unwrap();
    }
    io::Write::write_all(&mut File::create(at("binary")).unwrap(), &[0xff]).unwrap();
    for (link, target) in [("to-file", "file"), ("to-pipe", "pipe"), ("kmsg", "/proc/kmsg")] {
        symlink(target, at(link)).unwrap();
    }
    symlink("/dev/zero", at("device")).unwrap();
    let cases: [(&str, Result<&str, &str>); 11] = [
        ("file", Ok("text")),
        ("to-file", Ok("text")),
        ("full", Ok("0123456789abcdef")),
        ("long", Err("larger than 16 bytes")),
        ("binary", Err("utf-8")),
        ("folder", Err("a directory")),
        ("pipe", Err("a named pipe")),
        ("to-pipe", Err("a named pipe")),
        ("socket", Err("a socket")),
        ("device", Err("a device")),
        ("kmsg", Err("a file of /proc")),
    ];
    for (name, expected) in cases {
        match (read_in_time(at(name)), expected) {
            (Ok(text), Ok(expected)) => assert_eq!(text, expected, "{name}"),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{name}: {error}"),
            (read, _) => panic!("{name}: {read:?}"),
        }
    }
}
