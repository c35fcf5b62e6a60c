//! A certificate authority of a test's own, and kubeconfig files that trust it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// An authority.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, which clients trust.
    pub certificate: String,
}

/// A server's certificate and key.
#[derive(Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: rcgen::Certificate,
    /// The key.
    pub key: KeyPair,
}

impl Authority {
    /// A new authority, which no client trusts yet.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A name of its own: OpenSSL takes a certificate with its issuer's name for self-signed.
        params.distinguished_name.push(DnType::CommonName, "the tests' authority");
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { issuer, certificate })
    }

    /// A server's identity at this address.
    pub fn identity(&self, address: IpAddr) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let names = [address.to_string(), "kubernetes.default.svc".to_owned()];
        let certificate = CertificateParams::new(names)?.signed_by(&key, &self.issuer)?;
        Ok(Identity { certificate, key })
    }

    /// The TLS configuration of a client that trusts only this authority.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes())?)?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS12, &TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }

    /// Writes a kubeconfig file into `folder`, beside the certificate and the token that it names.
    pub fn write_kubeconfig(&self, folder: &Path, url: &str, token: &str) -> Result<()> {
        replace(&folder.join("ca.crt"), &self.certificate)?;
        replace(&folder.join("token"), token)?;
        let cluster = json!({ "server": url, "certificate-authority": folder.join("ca.crt") });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "agent" } }],
            "clusters": [{ "name": "test", "cluster": cluster }],
            "users": [{ "name": "agent", "user": { "tokenFile": folder.join("token") } }],
        });
        replace(&folder.join("kubeconfig"), &config.to_string())
    }
}

impl Identity {
    /// The TLS configuration of a server with this identity, which offers these protocols (ALPN).
    pub fn server_config(&self, protocols: &[&str]) -> Result<Arc<ServerConfig>> {
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS12, &TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.der().clone()], key.into())?;
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(Arc::new(config))
    }
}

/// Replaces a file in one step, as Kubernetes does with mounted files.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension("new");
    fs::write(&beside, text).with_context(|| format!("cannot write {}", beside.display()))?;
    fs::rename(&beside, path)?;
    Ok(())
}
