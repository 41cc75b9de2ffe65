//! Certificates of a test's own, and Redis servers that show them.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::{Redis, unused_port};

/// Somebody who signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// What a server shows of itself, in files.
pub(crate) struct Shown {
    certificate: String,
    key: String,
    folder: TempDir,
}

/// A Redis server that speaks TLS too, on a port of its own.
pub(crate) struct ByTls {
    pub(crate) redis: Redis,
    pub(crate) port: u16,
    /// What it shows when it is started again.
    pub(crate) shown: Shown,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// What is trusted by who trusts it.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for these names and addresses.
    pub(crate) fn signs(&self, hosts: &[&str]) -> Shown {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let shown = Shown {
            certificate: path("server.pem"),
            key: path("server.key"),
            folder,
        };
        self.signs_anew(hosts, &shown);
        shown
    }

    /// The same in the place of an earlier one.
    fn signs_anew(&self, hosts: &[&str], shown: &Shown) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let params = CertificateParams::new(hosts).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(Path::new(&shown.certificate), certificate.pem()).unwrap();
        std::fs::write(Path::new(&shown.key), key.serialize_pem()).unwrap();
    }
}

impl Shown {
    /// The path of one more file, where those of the server are.
    pub(crate) fn beside(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl ByTls {
    /// A server with this certificate, and further options.
    #[track_caller]
    pub(crate) fn start(shown: Shown, options: &[&str]) -> Self {
        let attempt = |_| {
            let port = unused_port().port();
            let tls = port.to_string();
            let mut all = vec!["--tls-port", &tls, "--tls-auth-clients", "no"];
            all.extend(["--tls-cert-file", &shown.certificate]);
            all.extend(["--tls-key-file", &shown.key]);
            all.extend(options);
            Some((Redis::at(unused_port().port(), &all)?, port))
        };
        // Somebody else may take a port before the server does.
        let started = (0..10).find_map(attempt);
        let (redis, port) = started.expect("redis-server starts with TLS");
        Self { redis, port, shown }
    }

    /// Ends it and starts it again with a certificate for other hosts, or by somebody else.
    #[track_caller]
    pub(crate) fn restart_as(&mut self, authority: &Authority, hosts: &[&str]) {
        authority.signs_anew(hosts, &self.shown);
        self.redis.restart();
    }

    /// The lines of a Sentinel that speaks TLS on this port, and to its servers.
    pub(crate) fn sentinel(&self, authority: &Authority, port: u16) -> String {
        let ca = self.shown.beside("ca.pem", authority.pem());
        format!(
            "port 0\ntls-port {port}\ntls-replication yes\ntls-auth-clients no\ntls-cert-file {}\ntls-key-file {}\n\
             tls-ca-cert-file {ca}",
            self.shown.certificate, self.shown.key
        )
    }

    /// Where it speaks TLS, as this host.
    pub(crate) fn url(&self, host: &str) -> String {
        format!("rediss://{host}:{}", self.port)
    }
}
