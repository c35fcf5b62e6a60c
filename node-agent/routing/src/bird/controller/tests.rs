use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;

use super::*;

/// A control socket that gives this answer to every line. Counts them.
fn answering(folder: &Path, answer: &'static str) -> Arc<AtomicUsize> {
    let socket = folder.join(SOCKET);
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(socket).unwrap();
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = BufReader::new(stream);
            stream.write_all(b"0001 BIRD 2.0.12 ready.\n").await.unwrap();
            let mut line = String::new();
            while stream.read_line(&mut line).await.unwrap_or_default() > 0 {
                counted.fetch_add(1, Ordering::Relaxed);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    requests
}

fn task(folder: &TempDir) -> ControllerTask {
    ControllerTask {
        bird: BirdConfig::parse(r#"{"asn": 1}"#).unwrap(),
        table: 219,
        ranges: Vec::new(),
        folder: folder.path().to_owned(),
        known: watch::channel(None).1,
        state: watch::channel(BirdState::default()).0,
        refused: None,
    }
}

/// A configuration that BIRD refuses, or has not read, never gets the place of the one it has.
#[tokio::test]
async fn only_what_bird_has_taken_is_what_it_starts_with() {
    let folder = tempfile::tempdir().unwrap();
    let (path, next) = (folder.path().join(CONFIGURATION), folder.path().join(NEXT));
    let is = |text: &str| regular::read_to_string(&path, LONGEST).unwrap() == text;
    let mut task = task(&folder);
    task.configure("first".to_owned(), true, None).await.unwrap();
    assert!(is("first") && path.metadata().unwrap().mode() & 0o777 == 0o640);
    let away = task.configure("second".to_owned(), false, None).await.unwrap_err();
    assert!(is("first") && away.contains("waits for BIRD"), "{away}");

    let requests = answering(folder.path(), "0002-Reading\n8002 f:12:3 syntax error\n");
    for _ in 0..2 {
        let mut control = Control::connect(&folder.path().join(SOCKET)).await.unwrap();
        let refused = task.configure("second".to_owned(), false, Some(&mut control)).await;
        let refused = refused.unwrap_err();
        assert!(is("first") && refused.contains("f:12:3 syntax error"), "{refused}");
    }
    assert_eq!(requests.load(Ordering::Relaxed), 1, "the same question again");

    answering(folder.path(), "0002-Reading\n0003 Reconfigured\n");
    let mut control = Control::connect(&folder.path().join(SOCKET)).await.unwrap();
    task.configure("third".to_owned(), false, Some(&mut control)).await.unwrap();
    assert!(is("third") && !next.exists());
}

/// Who listens and is not BIRD, or says too much, keeps nobody.
#[tokio::test]
async fn a_broken_answer_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let away = Control::connect(&folder.path().join(SOCKET)).await.unwrap_err();
    assert!(matches!(away, BirdError::Away { .. }), "{away}");
    let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let lines = "1002-endless\n".repeat(1000);
            while stream.write_all(lines.as_bytes()).await.is_ok() {}
        }
    });
    let broken = Control::connect(&folder.path().join(SOCKET)).await.unwrap_err();
    assert!(matches!(broken, BirdError::Broken(_)), "{broken}");
}

#[test]
fn a_password_is_checked_by_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tor-a");
    let peer = format!(
        r#"{{"asn": 1, "peers": [{{"name": "tor-a", "address": "192.0.2.9", "asn": 2,
            "passwordFile": {path:?}}}]}}"#
    );
    let config = BirdConfig::parse(&peer).unwrap();
    let missing = password_of(&config.peers[0]).unwrap_err();
    assert!(
        missing.contains("BGP peer tor-a, in ") && missing.contains("No such file"),
        "{missing}"
    );
    write(&path, "se\"cret\n").unwrap();
    let bad = password_of(&config.peers[0]).unwrap_err();
    assert!(bad.contains("quotes") && !bad.contains("cret"), "{bad}");
    write(&path, "secret\n").unwrap();
    assert_eq!(password_of(&config.peers[0]), Ok(Some("secret".to_owned())));
}
