//! Pod (`v1`). A cluster has many, and their status changes often: only the used fields are
//! decoded, without a copy of their texts.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;

use super::address::{parse_address, parse_range, special_address, usable_address};
use super::service::{port_number, protocol};
use super::{
    BorrowedText, Decoder, Notes, ObjectError, ObjectKind, TextMap, Time, Warning, elements,
    namespace_or_default,
};
use crate::protobuf::{Field, FromProtobuf, MapEntry, ProtobufError};
use denizen_model::{ClusterPod, NamedPort, OwnPodFacts, PodName, SortedSet};

/// A Pod, reduced to the fields that are used.
#[derive(Debug, Default, Deserialize)]
pub struct PodObject<'a> {
    #[serde(default, borrow)]
    metadata: PodMetadata<'a>,
    spec: Option<PodSpec<'a>>,
    status: Option<PodStatus<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetadata<'a> {
    #[serde(default, borrow)]
    name: BorrowedText<'a>,
    namespace: Option<BorrowedText<'a>>,
    uid: Option<BorrowedText<'a>>,
    labels: Option<TextMap<'a>>,
    annotations: Option<PodAnnotations<'a>>,
    creation_timestamp: Option<Time<'a>>,
    deletion_timestamp: Option<Time<'a>>,
}

#[derive(Debug, Default, Deserialize)]
struct PodAnnotations<'a> {
    /// On a static pod: what the kubelet calls its UID.
    #[serde(rename = "kubernetes.io/config.hash", borrow)]
    hash: Option<BorrowedText<'a>>,
    /// On the mirror of a static pod in the API: the same.
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<BorrowedText<'a>>,
    #[serde(rename = "denizen.io/additional-addresses")]
    additional: Option<BorrowedText<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec<'a> {
    #[serde(borrow)]
    node_name: Option<BorrowedText<'a>>,
    host_network: Option<bool>,
    containers: Option<Vec<Container<'a>>>,
    init_containers: Option<Vec<Container<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container<'a> {
    /// `Always` makes an init container a sidecar, which runs as long as the pod.
    #[serde(borrow)]
    restart_policy: Option<BorrowedText<'a>>,
    ports: Option<Vec<ContainerPort<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerPort<'a> {
    #[serde(borrow)]
    name: Option<BorrowedText<'a>>,
    container_port: Option<i64>,
    protocol: Option<BorrowedText<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus<'a> {
    #[serde(borrow)]
    phase: Option<BorrowedText<'a>>,
    /// The first of [`Self::pod_ips`]: the older field, for one address only.
    #[serde(rename = "podIP")]
    pod_ip: Option<BorrowedText<'a>>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIp<'a>>>,
    /// The first of [`Self::host_ips`], which API servers before 1.28 do not have.
    #[serde(rename = "hostIP")]
    host_ip: Option<BorrowedText<'a>>,
    #[serde(rename = "hostIPs")]
    host_ips: Option<Vec<PodIp<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
struct PodIp<'a> {
    #[serde(default, borrow)]
    ip: BorrowedText<'a>,
}

impl<'a> FromProtobuf<'a> for PodObject<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.metadata.merge(field.bytes()?),
            2 => field.merge_into(&mut self.spec),
            3 => field.merge_into(&mut self.status),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for PodMetadata<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = field.text()?,
            3 => self.namespace = Some(field.text()?),
            5 => self.uid = Some(field.text()?),
            8 => self.creation_timestamp = Time::of(field)?,
            9 => self.deletion_timestamp = Time::of(field)?,
            11 => self.labels.get_or_insert_default().take(field)?,
            12 => self.annotations.get_or_insert_default().insert(field.message()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> PodAnnotations<'a> {
    fn insert(&mut self, MapEntry { key, value }: MapEntry<'a>) {
        match &*key {
            "kubernetes.io/config.hash" => self.hash = Some(value),
            "kubernetes.io/config.mirror" => self.mirror = Some(value),
            "denizen.io/additional-addresses" => self.additional = Some(value),
            _ => {}
        }
    }
}

impl<'a> FromProtobuf<'a> for PodSpec<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            2 => field.push_into(&mut self.containers)?,
            10 => self.node_name = Some(field.text()?),
            11 => self.host_network = Some(field.flag()?),
            20 => field.push_into(&mut self.init_containers)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for Container<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            6 => field.push_into(&mut self.ports)?,
            24 => self.restart_policy = Some(field.text()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for ContainerPort<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = Some(field.text()?),
            3 => self.container_port = Some(field.number()?),
            4 => self.protocol = Some(field.text()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for PodStatus<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.phase = Some(field.text()?),
            5 => self.host_ip = Some(field.text()?),
            6 => self.pod_ip = Some(field.text()?),
            12 => field.push_into(&mut self.pod_ips)?,
            16 => field.push_into(&mut self.host_ips)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for PodIp<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.ip = field.text()?;
        }
        Ok(())
    }
}

/// Maximum number of [`additional`] addresses: each costs the node's kernel as much as one that the
/// pod has.
const MOST_ADDITIONAL: u32 = 16;

/// The pod in the model's terms; `None` if its containers have all ended.
pub fn pod(
    raw: &PodObject<'_>,
    decoder: &mut Decoder,
    warnings: &mut Vec<Warning>,
) -> Result<(PodName, Option<ClusterPod>), ObjectError> {
    let metadata = &raw.metadata;
    let namespace = namespace_or_default(text(&metadata.namespace));
    let mut notes = Notes::named(ObjectKind::Pod, namespace, &metadata.name, warnings)?;
    let name = PodName { namespace: decoder.text(namespace), name: (*metadata.name).into() };
    let (spec, status) = (raw.spec.as_ref(), raw.status.as_ref());
    let phase = status.and_then(|status| text(&status.phase));
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Ok((name, None));
    }
    let host_ips = status.map(|status| host_ips(status, &mut notes)).unwrap_or_default();
    let host_ips = decoder.addresses(host_ips);
    if spec.is_some_and(|spec| spec.host_network == Some(true)) {
        let pod = ClusterPod { host_network: true, host_ips, ..ClusterPod::named(name.clone()) };
        return Ok((name, Some(pod)));
    }
    let is_here = spec.and_then(|spec| text(&spec.node_name)) == Some(&*decoder.node_name);
    let pod = ClusterPod {
        name: name.clone(),
        labels: decoder.labels(metadata.labels.as_ref()),
        ips: status.map(|status| ips(status, &mut notes)).unwrap_or_default(),
        ports: ports(spec, decoder, &mut notes),
        created: created(metadata, &mut notes),
        ends: ends(metadata, decoder, &mut notes),
        host_network: false,
        host_ips,
        here: is_here.then(|| own_pod_facts(metadata, &mut notes).into()),
    };
    Ok((name, Some(pod)))
}

fn text<'t>(text: &'t Option<BorrowedText<'_>>) -> Option<&'t str> {
    text.as_deref()
}

fn own_pod_facts(metadata: &PodMetadata<'_>, notes: &mut Notes<'_>) -> OwnPodFacts {
    let annotations = metadata.annotations.as_ref();
    let mirror = annotations.and_then(|annotations| text(&annotations.mirror));
    let hash = annotations.and_then(|annotations| text(&annotations.hash));
    OwnPodFacts {
        uid: text(&metadata.uid).unwrap_or_default().into(),
        config_hash: mirror.or(hash).filter(|hash| !hash.is_empty()).map(Into::into),
        additional: additional(metadata, notes).into(),
    }
}

fn created(metadata: &PodMetadata<'_>, notes: &mut Notes<'_>) -> i64 {
    let Some(time) = &metadata.creation_timestamp else { return 0 };
    time.seconds().unwrap_or_else(|written| {
        let problem = "not a time: the pod counts as the oldest that claims its addresses";
        notes.warn("metadata.creationTimestamp", written, problem);
        0
    })
}

fn ends(metadata: &PodMetadata<'_>, decoder: &Decoder, notes: &mut Notes<'_>) -> Option<i64> {
    let time = metadata.deletion_timestamp.as_ref().filter(|_| decoder.ends)?;
    Some(time.seconds().unwrap_or_else(|written| {
        notes.warn("metadata.deletionTimestamp", written, "not a time: the pod counts as ended");
        0
    }))
}

fn ips(status: &PodStatus<'_>, notes: &mut Notes<'_>) -> Box<[IpAddr]> {
    let several = elements(status.pod_ips.as_ref());
    addresses("status.podIPs", text(&status.pod_ip), several, notes).into()
}

fn host_ips(status: &PodStatus<'_>, notes: &mut Notes<'_>) -> Vec<IpAddr> {
    let several = elements(status.host_ips.as_ref());
    addresses("status.hostIPs", text(&status.host_ip), several, notes)
}

/// The addresses of a list; of the older field for one address if the list is empty.
fn addresses(
    field: &str,
    one: Option<&str>,
    several: &[PodIp<'_>],
    notes: &mut Notes<'_>,
) -> Vec<IpAddr> {
    let one = one.filter(|ip| several.is_empty() && !ip.is_empty());
    let written = one.into_iter().chain(several.iter().map(|ip| &*ip.ip));
    let mut ips = Vec::new();
    for (index, written) in written.enumerate() {
        match usable_address(written) {
            Ok(ip) if !ips.contains(&ip) => ips.push(ip),
            Ok(_) => {}
            Err(problem) => {
                notes.warn(format_args!("{field}[{index}].ip"), written, problem);
            }
        }
    }
    ips
}

/// Further addresses that the pod may send from: single ones and small ranges, with commas between.
fn additional(metadata: &PodMetadata<'_>, notes: &mut Notes<'_>) -> Vec<IpAddr> {
    let annotations = metadata.annotations.as_ref();
    let written = annotations.and_then(|annotations| text(&annotations.additional));
    let written = written.unwrap_or_default().split(',').map(str::trim);
    let mut ips: Vec<IpAddr> = Vec::new();
    for part in written.filter(|part| !part.is_empty()) {
        const FIELD: &str = "annotation denizen.io/additional-addresses";
        let range = parse_range(part).or_else(|| parse_address(part).map(IpNetwork::from));
        let Some(range) = range else {
            notes.warn(FIELD, part, "neither an address nor a range: left out");
            continue;
        };
        let longest = if range.is_ipv4() { 32 } else { 128 };
        let count = 1_u32.checked_shl(longest - u32::from(range.prefix()));
        let room = MOST_ADDITIONAL.saturating_sub(ips.len() as u32);
        if count.is_none_or(|count| count > room) {
            notes.warn(FIELD, part, "a pod has at most 16 additional addresses: left out");
            continue;
        }
        for ip in range.iter() {
            match special_address(ip) {
                None if !ips.contains(&ip) => ips.push(ip),
                None => {}
                Some(problem) => notes.warn(FIELD, part, problem),
            }
        }
    }
    ips
}

/// The named ports of the containers that run as long as the pod.
fn ports(
    spec: Option<&PodSpec<'_>>,
    decoder: &mut Decoder,
    notes: &mut Notes<'_>,
) -> SortedSet<NamedPort> {
    let containers = elements(spec.and_then(|spec| spec.containers.as_ref()));
    let inits = elements(spec.and_then(|spec| spec.init_containers.as_ref()));
    let sidecar = |init: &&Container<'_>| text(&init.restart_policy) == Some("Always");
    let mut ports = Vec::new();
    for container in containers.iter().chain(inits.iter().filter(sidecar)) {
        for port in elements(container.ports.as_ref()) {
            let Some(name) = text(&port.name).filter(|name| !name.is_empty()) else { continue };
            let field = format_args!("container port {name:?}").to_string();
            let number = port.container_port.unwrap_or_default();
            let Some(number) = port_number(number) else {
                notes.warn(field, number, "not a port number: left out");
                continue;
            };
            let written = text(&port.protocol);
            let Some(protocol) = protocol(format_args!("{field} protocol"), written, notes) else {
                continue;
            };
            ports.push(NamedPort { name: decoder.text(name), protocol, port: number });
        }
    }
    decoder.ports(ports)
}
