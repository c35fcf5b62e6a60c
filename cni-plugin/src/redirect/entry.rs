//! The object `redirect` of the conflist's entry, and what it decides about a pod. Pure.

use std::collections::{BTreeMap, BTreeSet};

use denizen_state::PodRef;
use denizen_state::redirect::{Redirect, RedirectBackend};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::iptables;
use super::key::{KEYS, RedirectKey};
use super::profile::{PREFIX, Profile, REDIRECT};
use crate::error::{CniError, quoted, shortened};

/// The object `redirect`, checked.
#[derive(Debug)]
pub(crate) struct RedirectConfig {
    profile: Profile,
    select: Option<Select>,
    values: Vec<WrittenValue>,
    /// `None`: pods of this namespace are never redirected.
    namespaces: BTreeMap<String, Option<Vec<WrittenValue>>>,
    /// The annotations that may override values; `None`: all.
    allow: Option<BTreeSet<String>>,
    pub(crate) verify: Verify,
    /// What happens if the kernel refuses the rules, or the test finds a connection not redirected.
    pub(crate) on_error: OnFailure,
    /// What happens if the runtime passes no annotations.
    pub(crate) without_annotations: OnFailure,
}

/// A value as written in the conflist: its key, and its entries.
type WrittenValue = (&'static RedirectKey, Vec<String>);

/// The annotation by which pods are selected.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Select {
    annotation: String,
    /// `None`: any value.
    value: Option<String>,
}

/// How the rules are tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verify {
    /// By a connection from the pod.
    #[default]
    Connect,
    /// Not at all.
    None,
}

/// What happens to an ADD that cannot redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnFailure {
    /// It fails, and the runtime tries again.
    #[default]
    Fail,
    /// The pod starts, and nothing of it is redirected.
    Proceed,
}

type JsonFields = BTreeMap<String, Value>;

impl RedirectConfig {
    /// Checks the object's `fields`.
    pub(crate) fn of(mut fields: JsonFields) -> Result<RedirectConfig, CniError> {
        let profiles = "\"linkerd\", \"istio\", \"consul\" or \"custom\"";
        let profile: Profile = required(take(&mut fields, "profile", profiles)?)?;
        let either = "\"fail\" or \"proceed\"";
        let (on_error, without_annotations) = (
            take(&mut fields, "onError", either)?.unwrap_or_default(),
            take(&mut fields, "withoutAnnotations", either)?.unwrap_or_default(),
        );
        let verify = take(&mut fields, "verify", "\"connect\" or \"none\"")?.unwrap_or_default();
        let select = take(&mut fields, "select", "an object: \"annotation\", \"value\"")?;
        let allow = take(&mut fields, "allow", "a list of annotations")?;
        check_allowed(profile, allow.as_ref())?;
        let namespaces: BTreeMap<String, Option<JsonFields>> =
            take(&mut fields, "namespaces", "an object of objects or null")?.unwrap_or_default();
        let of_namespace = |(name, fields): (String, Option<JsonFields>)| {
            let key = format!("redirect.namespaces.{name}");
            Ok((name, fields.map(|fields| values_of(&key, profile, fields)).transpose()?))
        };
        let namespaces =
            namespaces.into_iter().map(of_namespace).collect::<Result<_, CniError>>()?;
        let values = values_of("redirect", profile, fields)?;
        Ok(RedirectConfig {
            profile,
            select,
            values,
            namespaces,
            allow,
            verify,
            on_error,
            without_annotations,
        })
    }

    /// What is redirected of `pod`, whose interface is `if_name`; `None`: nothing.
    ///
    /// # Errors
    ///
    /// An annotation cannot be read, or values contradict each other.
    pub(crate) fn decide(
        &self,
        pod: &PodRef,
        annotations: &BTreeMap<String, String>,
        if_name: &str,
    ) -> Result<Option<Redirect>, CniError> {
        let of_pod = |why: String| {
            CniError::InvalidConfig(format!("pod {}/{}: {why}", pod.namespace, pod.name))
        };
        let of_namespace = match self.namespaces.get(&pod.namespace) {
            Some(None) => return Ok(None),
            Some(Some(values)) => values.as_slice(),
            None => &[],
        };
        if !self.selects(annotations).map_err(of_pod)? {
            return Ok(None);
        }
        let mut redirect = self.profile.empty(if_name);
        let defaults = self.profile.defaults();
        for (key, entries) in defaults.iter().chain(&self.values).chain(of_namespace) {
            key.apply(&mut redirect, entries).map_err(|why| of_pod(format!("{key:?}: {why}")))?;
        }
        self.annotate(&mut redirect, annotations).map_err(of_pod)?;
        if self.profile.leaves_alone(&redirect) {
            return Ok(None);
        }
        match unfit(&redirect, if_name) {
            Some(why) => Err(of_pod(why.to_owned())),
            None => Ok(Some(redirect)),
        }
    }

    /// Whether these annotations select a pod, whatever its namespace.
    pub(super) fn selects(&self, annotations: &BTreeMap<String, String>) -> Result<bool, String> {
        match annotations.get(REDIRECT).map(|text| text.trim()) {
            Some("enabled") => return Ok(true),
            Some("disabled") => return Ok(false),
            Some(other) => {
                let other = quoted(other);
                return Err(format!(
                    "annotation {REDIRECT}: {other} is neither \"enabled\" nor \"disabled\""
                ));
            }
            None => {}
        }
        Ok(match (&self.select, self.profile) {
            (Some(Select { annotation, value: None }), _) => annotations.contains_key(annotation),
            (Some(Select { annotation, value }), _) => {
                annotations.get(annotation) == value.as_ref()
            }
            (None, profile) => profile.selects(annotations)?,
        })
    }

    /// Overrides values by the pod's annotations.
    fn annotate(
        &self,
        redirect: &mut Redirect,
        annotations: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let known = self.profile.annotations();
        let is_unknown = |name: &&String| {
            name.starts_with(PREFIX) && !known.iter().any(|(annotation, _)| annotation == *name)
        };
        if let Some(unknown) = annotations.keys().find(is_unknown) {
            return Err(format!("annotation {} is unknown", shortened(unknown)));
        }
        for (name, reads) in known {
            let Some(text) = annotations.get(&name) else { continue };
            if self.allow.as_ref().is_some_and(|allow| !allow.contains(&name)) {
                return Err(format!("annotation {name} is not in the conflist's redirect.allow"));
            }
            let changed =
                reads.apply(redirect, text).map_err(|why| format!("annotation {name}: {why}"))?;
            let of_it = changed.into_iter().map(|value| (value.to_owned(), name.clone()));
            redirect.annotations.extend(of_it);
        }
        self.profile.complete(redirect, annotations)
    }
}

/// Why these values cannot be programmed.
fn unfit(redirect: &Redirect, if_name: &str) -> Option<&'static str> {
    if redirect.interfaces.is_empty() {
        return Some(
            "no interface is left at which anything is redirected: name one with the annotation \
             redirect.denizen.io/interfaces",
        );
    }
    if redirect.backend == RedirectBackend::Iptables && !iptables::can(redirect, if_name) {
        return Some(
            "redirect.backend is \"iptables\", which has linkerd-init's rules: it knows no \
             interfaces, hairpin, skipMark and dropInvalid, nor what Istio and Consul need",
        );
    }
    let has_proxy = redirect.proxy_uid.is_some() || redirect.proxy_gid.is_some();
    match (redirect.inbound_port, redirect.outbound_port) {
        (None, None) => Some("redirect has neither inboundPort nor outboundPort"),
        (_, Some(_)) if !has_proxy => Some(
            "redirect has outboundPort, but neither proxyUid nor proxyGid: the proxy's own \
             connections would come back to it",
        ),
        (_, Some(_)) | (Some(_), None) => None,
    }
}

fn refused(key: &str, value: &Value, why: impl Into<String>) -> CniError {
    CniError::UnsupportedField { key: key.to_owned(), value: value.to_string(), why: why.into() }
}

/// Takes a typed field out of `fields`.
fn take<T: DeserializeOwned>(
    fields: &mut JsonFields,
    key: &str,
    why: &str,
) -> Result<Option<T>, CniError> {
    let Some(value) = fields.remove(key) else {
        return Ok(None);
    };
    T::deserialize(&value).map(Some).map_err(|_| refused(&format!("redirect.{key}"), &value, why))
}

fn required<T>(value: Option<T>) -> Result<T, CniError> {
    value.ok_or_else(|| CniError::InvalidConfig("redirect.profile is missing".to_owned()))
}

/// Every allowed annotation must exist: a mistyped one would forbid the intended one.
fn check_allowed(profile: Profile, allow: Option<&BTreeSet<String>>) -> Result<(), CniError> {
    let known = profile.annotations();
    let is_unknown = |name: &&String| !known.iter().any(|(annotation, _)| annotation == *name);
    match allow.into_iter().flatten().find(is_unknown) {
        None => Ok(()),
        Some(name) => {
            let why = format!("profile {} has no such annotation", profile.name());
            Err(refused("redirect.allow", &Value::from(name.as_str()), why))
        }
    }
}

/// The values in an object. Each is applied once, to an empty redirection, so that a bad one is
/// refused.
fn values_of(
    parent: &str,
    profile: Profile,
    fields: JsonFields,
) -> Result<Vec<WrittenValue>, CniError> {
    let mut all = Vec::new();
    for (name, value) in fields {
        let path = format!("{parent}.{name}");
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(refused(&path, &value, "denizen does not know this key"));
        };
        let entries = key.values(&value).map_err(|why| refused(&path, &value, why))?;
        key.apply(&mut profile.empty(""), &entries).map_err(|why| refused(&path, &value, why))?;
        all.push((*key, entries));
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
