//! Manifests: the policies of the command line, which must be understood to the last field, and
//! the objects of a folder.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use denizen_model::{Event, NetworkPolicy, PolicyName};
use denizen_object::manifest::{self, Format, ObjectPosition};
use denizen_object::{DecodedObject, Decoder, ObjectKind, RawObject};
use denizen_text::describe;
use serde::Deserialize;

use crate::objects::Metadata;

/// How many problems are named.
const PROBLEMS: usize = 10;

/// What every object has.
#[derive(Deserialize)]
pub struct WithMetadata {
    pub metadata: Metadata,
}

/// What cannot be used: each with the file, the document, the field and the reason.
#[derive(Debug, Default)]
pub struct Problems {
    /// Documents and objects.
    pub broken: Vec<String>,
    /// Parts of objects that are used without them.
    pub parts: Vec<String>,
}

/// A policy of the command line.
#[derive(Debug)]
pub struct PolicyDocument {
    event: Event,
    /// Whether the manifest names a namespace, or the policy has none.
    is_qualified: bool,
}

impl PolicyDocument {
    /// The policy, in this namespace if it does not say another.
    pub fn into_event(self, namespace: &str) -> Event {
        if let Event::NetworkPolicy(name, policy) = &self.event
            && !self.is_qualified
        {
            let name = PolicyName { namespace: namespace.into(), ..name.clone() };
            let policy =
                policy.clone().map(|policy| NetworkPolicy { name: name.clone(), ..policy });
            return Event::NetworkPolicy(name, policy);
        }
        self.event
    }
}

/// An object that is used.
pub struct FileObject<'a, 'r> {
    pub raw: &'a RawObject<'r>,
    pub decoded: DecodedObject,
}

/// Reads a file's objects of these kinds.
pub fn each(
    file: &str,
    (format, text): (Format, &str),
    decoder: &mut Decoder,
    is_wanted: impl Fn(ObjectKind) -> bool,
    sink: &mut dyn FnMut(FileObject<'_, '_>),
) -> Problems {
    let mut problems = Problems::default();
    manifest::objects(format, text, &mut |position, found| {
        if found.as_ref().is_ok_and(|raw| !is_wanted(raw.kind())) {
            return;
        }
        let place = place(file, position);
        let mut warnings = Vec::new();
        let decoded = match &found {
            Ok(raw) => raw.decode(decoder, &mut warnings).map_err(|error| describe(&error)),
            Err(error) => Err(describe(error)),
        };
        problems.parts.extend(warnings.into_iter().map(|warning| format!("{place}: {warning}")));
        match (found, decoded) {
            (Ok(raw), Ok(Some(decoded))) => sink(FileObject { raw: &raw, decoded }),
            (_, Ok(_)) => {}
            (_, Err(error)) => problems.broken.push(format!("{place}: {error}")),
        }
    });
    problems
}

fn place(file: &str, ObjectPosition { document, item, line }: ObjectPosition) -> String {
    let item = item.map(|item| format!(", item {item}")).unwrap_or_default();
    let line = line.map(|line| format!(" (line {line})")).unwrap_or_default();
    format!("{file}, document {document}{item}{line}")
}

/// The policies of these files. If `parts_count`, a part that is not understood is an error:
/// whoever asks what a policy does wants to know that it does something else.
pub fn policies(files: &[PathBuf], parts_count: bool) -> anyhow::Result<Vec<PolicyDocument>> {
    const POLICIES: [ObjectKind; 2] = [ObjectKind::NetworkPolicy, ObjectKind::ClusterNetworkPolicy];
    let is_policy = |kind| POLICIES.contains(&kind);
    let (mut policies, mut problems) = (Vec::new(), Vec::new());
    for file in files {
        let shown = file.display().to_string();
        let (text, before) = (text(file)?, policies.len());
        let mut take = |FileObject { raw, decoded }: FileObject<'_, '_>| {
            let written = raw.written::<WithMetadata>();
            let has_namespace = written.is_ok_and(|of| !of.metadata.namespace.is_empty());
            let is_qualified = has_namespace || raw.kind() == ObjectKind::ClusterNetworkPolicy;
            policies.push(PolicyDocument { event: decoded.event, is_qualified });
        };
        let source = (format(file), &*text);
        let Problems { broken, parts } = each(&shown, source, &mut decoder(), is_policy, &mut take);
        if policies.len() == before && broken.is_empty() {
            bail!(
                "{shown} has no NetworkPolicy of networking.k8s.io/v1, and no \
                 ClusterNetworkPolicy of policy.networking.k8s.io/v1alpha2"
            );
        }
        problems.extend(broken);
        problems.extend(parts.into_iter().filter(|_| parts_count));
    }
    if !problems.is_empty() {
        let more = problems.len().saturating_sub(PROBLEMS);
        problems.truncate(PROBLEMS);
        problems.extend((more > 0).then(|| format!("and {more} more")));
        bail!("these policies are not understood:\n{}", problems.join("\n"));
    }
    Ok(policies)
}

/// A decoder for no node in particular: no pod is local, and every Node is another node's.
pub fn decoder() -> Decoder {
    Decoder::new("".into()).with_other_nodes(true)
}

fn text(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = match file == Path::new("-") {
        true => io::stdin().read_to_string(&mut text).map(drop),
        false => fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text)).map(drop),
    };
    read.with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text)
}

fn format(file: &Path) -> Format {
    match file.extension().is_some_and(|end| end == "json") {
        true => Format::Json,
        false => Format::Yaml,
    }
}

/// The files of a folder that are manifests, by name, with their text.
pub fn folder(folder: &Path) -> anyhow::Result<Vec<(String, Format, String)>> {
    let entries = fs::read_dir(folder);
    let entries = entries.with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    let is_manifest = |path: &PathBuf| {
        let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes()[0] == b'.');
        let end = path.extension().and_then(|end| end.to_str());
        !is_hidden && matches!(end, Some("yaml" | "yml" | "json")) && path.is_file()
    };
    let read = |path: PathBuf| Ok((path.display().to_string(), format(&path), text(&path)?));
    paths.into_iter().filter(is_manifest).map(read).collect()
}
