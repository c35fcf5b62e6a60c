//! The container runtime's memory of its ADDs: libcni's result cache.
//!
//! libcni (and so containerd, CRI-O and others) writes `results/<network>-<containerId>-<ifName>`
//! at each ADD and removes it at DEL. Since 0.8 the file is a JSON object of kind `cniCacheV1`,
//! before that it was the bare result (libcni/api.go, `cachedInfo`). The folder is on a disk: after
//! a reboot it still has files of pods that are gone.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use data_encoding::BASE64;
use denizen_cni::{ANNOTATIONS, PORT_MAPPINGS, cached_host_ports};
use denizen_state::regular;
use denizen_state::{Attachment, HostPort};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

/// The folders of results below the cache folder: the one that libcni creates, and the one of
/// runtimes that keep other files in the cache folder too.
const PLACES: [&str; 2] = ["results", "cache/results"];

/// Size limit in bytes, more than any chain's configuration and result need.
const LARGEST: u64 = 1 << 20;

/// One cached ADD.
#[derive(Debug)]
pub(super) struct CachedAdd {
    pub(super) path: PathBuf,
    pub(super) written: SystemTime,
    pub(super) container_id: String,
    pub(super) if_name: String,
    pub(super) network: String,
    pub(super) netns: Option<String>,
    pub(super) args: String,
    /// The pod's annotations, if the runtime passes them.
    pub(super) annotations: BTreeMap<String, String>,
    /// The host ports that the runtime passed; if they cannot be read, why.
    pub(super) host_ports: Result<Vec<HostPort>, String>,
    /// The network configuration list of the ADD; empty if the runtime does not keep it.
    pub(super) list: String,
    pub(super) result: Box<RawValue>,
}

/// A cached result that cannot be used.
#[derive(Debug)]
pub(super) struct UnusableResult {
    pub(super) path: PathBuf,
    pub(super) why: String,
    /// The file ends too early and was written just now: the runtime writes in place, and may not
    /// have finished.
    pub(super) is_being_written: bool,
}

/// If a runtime has not written for this long, it will not complete the file.
const WRITING: Duration = Duration::from_secs(2);

/// The folders below the cache folder `folder` that contain results, or in which such folders may
/// be created.
pub(super) fn folders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    ["", "cache"].into_iter().chain(PLACES).map(|place| folder.join(place))
}

/// The end of the file name under which libcni keeps the result of `record`'s ADD. Before it comes
/// the name of the runtime's network, which behind Multus is not the record's network.
pub(super) fn name_end(record: &Attachment) -> String {
    format!("-{}-{}", record.container_id, record.if_name)
}

/// Whether the file name `name` ends in one of `ends`, which come from [`name_end`].
pub(super) fn has_end(name: &OsStr, ends: &HashSet<String>) -> bool {
    let name = name.to_string_lossy();
    // A container's id and an interface's name may have hyphens too.
    name.match_indices('-').any(|(at, _)| ends.contains(&name[at..]))
}

/// Whether the cache folder `folder` has a result of this container; `None` if no results can be
/// read there.
pub fn is_cached(folder: &Path, container: &str) -> Option<bool> {
    let places = PLACES.map(|place| fs::read_dir(folder.join(place)).ok());
    let mut places = places.into_iter().flatten().peekable();
    places.peek()?;
    let has = |name: OsString| name.to_string_lossy().contains(&format!("-{container}-"));
    Some(places.flat_map(Iterator::flatten).any(|file| has(file.file_name())))
}

/// The results in the cache folder `folder` whose file name `is_wanted`, and those that could not
/// be read, with the reason.
pub(super) fn entries(
    folder: &Path,
    is_wanted: impl Fn(&OsStr) -> bool,
) -> (Vec<CachedAdd>, Vec<UnusableResult>) {
    let (mut entries, mut bad) = (Vec::new(), Vec::new());
    for place in PLACES {
        let place = folder.join(place);
        let files = match fs::read_dir(&place) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                bad.push(UnusableResult::for_good(place, error.to_string()));
                continue;
            }
        };
        let wanted = files.flatten().filter(|file| is_wanted(&file.file_name()));
        for path in wanted.map(|file| file.path()) {
            match read(&path) {
                Ok(Some(entry)) => entries.push(entry),
                Ok(None) => {}
                Err(Unreadable { why, written }) => {
                    let is_being_written = written.is_some_and(is_recent);
                    bad.push(UnusableResult { path, why, is_being_written });
                }
            }
        }
    }
    (entries, bad)
}

impl UnusableResult {
    pub(super) fn for_good(path: PathBuf, why: String) -> Self {
        Self { path, why, is_being_written: false }
    }
}

/// Why a file cannot be used.
#[derive(Debug)]
struct Unreadable {
    why: String,
    /// When it was last written, if its only fault is that it ends too early.
    written: Option<SystemTime>,
}

impl<E: ToString> From<E> for Unreadable {
    fn from(error: E) -> Self {
        Self { why: error.to_string(), written: None }
    }
}

fn is_recent(written: SystemTime) -> bool {
    // A time in the future is from another clock.
    SystemTime::now().duration_since(written).is_ok_and(|age| age < WRITING)
}

/// The entry in the file `path`; `None` if it is gone by now, or only about a loopback interface.
fn read(path: &Path) -> Result<Option<CachedAdd>, Unreadable> {
    let file = match regular::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    // A user who can write here decides which pods exist, unless the kernel contradicts.
    if metadata.uid() != nix::unistd::geteuid().as_raw() && metadata.uid() != 0
        || metadata.mode() & 0o022 != 0
    {
        return Err("users other than root may write to it".into());
    }
    let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let text = regular::opened_to_string(file, LARGEST)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let entry = parse(&name, &text, path, written).map_err(|why| {
        let ends_early = serde_json::from_str::<IgnoredAny>(&text).is_err_and(|e| e.is_eof());
        Unreadable { why, written: ends_early.then_some(written) }
    })?;
    Ok(Some(entry).filter(|entry| entry.if_name != "lo"))
}

/// A cached call; without `kind` it is a bare result.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cached {
    kind: Option<String>,
    container_id: Option<String>,
    if_name: Option<String>,
    config: Option<String>,
    network_name: Option<String>,
    netns: Option<String>,
    #[serde(default)]
    cni_args: Option<Vec<(String, String)>>,
    #[serde(default)]
    capability_args: Option<BTreeMap<String, Value>>,
    result: Option<Box<RawValue>>,
}

/// Parses `text`, the content of the file called `name`. Pure.
fn parse(name: &str, text: &str, path: &Path, written: SystemTime) -> Result<CachedAdd, String> {
    let cached: Cached = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let missing = |key: &str| format!("{key} is missing");
    let (path, args) = (path.to_owned(), cached.cni_args.unwrap_or_default());
    let mut capabilities = cached.capability_args.unwrap_or_default();
    let ports = capabilities.remove(PORT_MAPPINGS);
    let host_ports = ports.map_or_else(|| Ok(Vec::new()), |ports| cached_host_ports(&ports));
    let passed = capabilities.remove(ANNOTATIONS);
    let annotations =
        passed.and_then(|arguments| serde_json::from_value(arguments).ok()).unwrap_or_default();
    let list = cached
        .config
        .and_then(|encoded| BASE64.decode(encoded.as_bytes()).ok())
        .unwrap_or_default();
    let list = String::from_utf8_lossy(&list).into_owned();
    let args: Vec<String> = args.iter().map(|(key, value)| format!("{key}={value}")).collect();
    match cached.kind.as_deref() {
        Some("cniCacheV1") => Ok(CachedAdd {
            path,
            written,
            container_id: cached.container_id.ok_or_else(|| missing("containerId"))?,
            if_name: cached.if_name.ok_or_else(|| missing("ifName"))?,
            network: cached.network_name.ok_or_else(|| missing("networkName"))?,
            netns: cached.netns,
            args: args.join(";"),
            annotations,
            host_ports,
            list,
            result: cached.result.ok_or_else(|| missing("result"))?,
        }),
        Some(other) => Err(format!("its kind is {other:?}, not cniCacheV1")),
        None => {
            let mut parts = name.rsplitn(3, '-');
            let (Some(if_name), Some(container), Some(network)) =
                (parts.next(), parts.next(), parts.next())
            else {
                return Err("its name is not <network>-<containerId>-<ifName>".to_owned());
            };
            Ok(CachedAdd {
                path,
                written,
                container_id: container.to_owned(),
                if_name: if_name.to_owned(),
                network: network.to_owned(),
                netns: None,
                args: String::new(),
                annotations,
                host_ports,
                list,
                result: serde_json::from_str(text).map_err(|error| error.to_string())?,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn parsed(name: &str, text: &str) -> Result<String, String> {
        let entry = parse(name, text, Path::new(name), SystemTime::UNIX_EPOCH)?;
        let CachedAdd { container_id, if_name, network, netns, args, .. } = entry;
        Ok([network, container_id, if_name, netns.unwrap_or_default(), args].join(" "))
    }

    #[test]
    fn both_layouts() {
        let result = json!({ "cniVersion": "1.0.0", "ips": [] });
        let whole = json!({
            "kind": "cniCacheV1", "containerId": "3f1c", "config": "e30=", "ifName": "eth0",
            "networkName": "pods", "netns": "/run/netns/a",
            "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAME", "web-0"]], "result": result,
        });
        let without = |key: &str| {
            let mut without = whole.clone();
            without.as_object_mut().unwrap().remove(key);
            without.to_string()
        };
        let cases = [
            (
                "all of it",
                "any",
                whole.to_string(),
                Ok("pods 3f1c eth0 /run/netns/a IgnoreUnknown=1;K8S_POD_NAME=web-0"),
            ),
            (
                "an old one has no netns",
                "any",
                without("netns"),
                Ok("pods 3f1c eth0  IgnoreUnknown=1;K8S_POD_NAME=web-0"),
            ),
            ("no arguments", "any", without("cniArgs"), Ok("pods 3f1c eth0 /run/netns/a ")),
            ("a bare result", "my-net-3f1c-eth0", result.to_string(), Ok("my-net 3f1c eth0  ")),
            ("no container", "any", without("containerId"), Err("containerId is missing")),
            ("no result", "any", without("result"), Err("result is missing")),
            (
                "another kind",
                "any",
                json!({ "kind": "cniCacheV2" }).to_string(),
                Err("its kind is \"cniCacheV2\", not cniCacheV1"),
            ),
            (
                "a name without the three parts",
                "eth0",
                "{}".to_owned(),
                Err("its name is not <network>-<containerId>-<ifName>"),
            ),
            (
                "half a file",
                "any",
                whole.to_string()[..40].to_owned(),
                Err("EOF while parsing a string at line 1 column 40"),
            ),
            (
                "an empty file",
                "any",
                String::new(),
                Err("EOF while parsing a value at line 1 column 0"),
            ),
        ];
        for (name, file, text, expected) in cases {
            let found = parsed(file, &text);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{name}");
        }
    }

    /// Names of networks, containers and interfaces have hyphens too.
    #[test]
    fn a_result_is_found_by_the_end_of_its_name() {
        let ends = HashSet::from(["-3f-1c-eth0".to_owned()]);
        let cases = [
            ("pods-3f-1c-eth0", true),
            ("multus-cni-network-3f-1c-eth0", true),
            ("pods-1c-eth0", false),
            ("pods-3f-1c-eth0-1", false),
            ("pods-3f-1c-net1", false),
        ];
        for (name, expected) in cases {
            assert_eq!(has_end(OsStr::new(name), &ends), expected, "{name}");
        }
    }

    /// containerd passes Go's names on, Multus those of the specification.
    #[test]
    fn host_ports_are_read_in_any_case() {
        let cases = [
            (
                json!([{ "HostPort": 80, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": "" }]),
                "*:80/tcp",
            ),
            (
                json!([{ "hostPort": 80, "containerPort": 8080, "protocol": "udp", "hostIP": "10.0.0.1" }]),
                "10.0.0.1:80/udp",
            ),
            (json!(null), ""),
            (json!([]), ""),
            (
                json!([{ "hostPort": 0, "containerPort": 8080 }]),
                "hostPort 0 is not from 1 to 65535",
            ),
        ];
        for (ports, expected) in cases {
            let cached = json!({
                "kind": "cniCacheV1", "containerId": "3f1c", "ifName": "eth0", "networkName": "pods",
                "capabilityArgs": { "portMappings": ports }, "result": {},
            });
            let path = Path::new("any");
            let entry = parse("any", &cached.to_string(), path, SystemTime::UNIX_EPOCH).unwrap();
            let found = match entry.host_ports {
                Ok(ports) => ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
                Err(why) => why,
            };
            assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{found}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a runtime writes files this way")]
    fn bad_files_are_named_and_the_others_read() {
        let folder = tempfile::tempdir().unwrap();
        let results = folder.path().join("results");
        fs::create_dir(&results).unwrap();
        let put = |name: &str, text: &str| fs::write(results.join(name), text).unwrap();
        put("pods-a-eth0", r#"{"cniVersion":"1.0.0"}"#);
        put("cni-loopback-a-lo", r#"{"cniVersion":"1.0.0"}"#);
        put("pods-b-eth0", "{");
        put("pods-c-eth0", r#"{"cniVersion":"1.0.0"}"#);
        put("pods-unasked-eth0", "{");
        fs::set_permissions(results.join("pods-c-eth0"), fs::Permissions::from_mode(0o666))
            .unwrap();
        // A read that waited for this one would block the agent's start for ever.
        nix::unistd::mkfifo(&results.join("pods-d-eth0"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (good, mut bad) = entries(folder.path(), |name| name != "pods-unasked-eth0");
        bad.sort_by(|one, other| one.path.cmp(&other.path));
        let partial: Vec<bool> = bad.iter().map(|bad| bad.is_being_written).collect();
        assert_eq!(partial, [true, false, false], "it was written just now");
        let cached = |container| is_cached(folder.path(), container);
        assert_eq!([cached("b"), cached("e")], [Some(true), Some(false)]);
        assert_eq!(is_cached(Path::new("/nonexistent"), "b"), None);
        let good: Vec<&str> = good.iter().map(|entry| entry.container_id.as_str()).collect();
        assert_eq!(good, ["a"]);
        let names: Vec<_> =
            bad.iter().map(|bad| bad.path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["pods-b-eth0", "pods-c-eth0", "pods-d-eth0"]);
        assert!(
            entries(Path::new("/nonexistent"), |_| true).1.is_empty(),
            "no runtime here has a cache"
        );
    }
}
