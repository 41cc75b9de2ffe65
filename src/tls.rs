//! TLS to servers that the gateway is a client of: whom it trusts, and what goes wrong.
//!
//! A certificate is always checked: that somebody trusted has signed it, and that it is for the host that was named.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore};

/// How servers are spoken to by TLS 1.2 or 1.3. Two are equal if they trust the same certificates.
#[derive(Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    /// The certificates that are trusted.
    trusted: Arc<BTreeSet<Vec<u8>>>,
}

/// Why there is nobody to trust.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTrust {
    /// A file that holds no certificate, or something that only looks like one.
    #[error("no PEM file with a certificate")]
    NoCertificate,
    /// The system has none, or none that can be read.
    #[error("the system has no CA certificates{0}")]
    NoSystem(String),
    /// TLS itself is not to be had.
    #[error("no TLS: {0}")]
    NoTls(String),
}

impl TlsClient {
    /// Trusts the certificates of a PEM file, and no others.
    ///
    /// # Errors
    /// It holds none, or one that cannot be read.
    pub fn trusting(pem: &[u8]) -> Result<Self, NoTrust> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates = certificates.map_err(|_| NoTrust::NoCertificate)?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            let added = roots.add(certificate.clone());
            added.map_err(|_| NoTrust::NoCertificate)?;
        }
        match certificates.is_empty() {
            true => Err(NoTrust::NoCertificate),
            false => Self::new(roots, &certificates),
        }
    }

    /// Trusts whom the system trusts.
    ///
    /// # Errors
    /// That is nobody.
    pub fn trusting_the_system() -> Result<Self, NoTrust> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs.iter().cloned());
        if roots.is_empty() {
            let why = found.errors.first().map(|error| format!(": {error}"));
            return Err(NoTrust::NoSystem(why.unwrap_or_default()));
        }
        Self::new(roots, &found.certs)
    }

    fn new(roots: RootCertStore, certificates: &[CertificateDer<'_>]) -> Result<Self, NoTrust> {
        #[expect(
            deprecated,
            reason = "the one provider in the tree; what it lacks is post-quantum key exchange"
        )]
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| NoTrust::NoTls(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let trusted = certificates.iter().map(|certificate| certificate.to_vec());
        Ok(Self {
            config: Arc::new(config),
            trusted: Arc::new(trusted.collect()),
        })
    }

    /// Shakes hands with the server at the other end, which must be `host`: a name, or an IP address without brackets.
    ///
    /// # Errors
    /// The server is another one, or speaks no TLS, or the connection ends.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        connector.connect(name, stream).await
    }
}

impl PartialEq for TlsClient {
    fn eq(&self, other: &Self) -> bool {
        self.trusted == other.trusted
    }
}

impl Eq for TlsClient {}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsClient({} trusted)", self.trusted.len())
    }
}

/// Whether a certificate can be for this host at all.
pub fn can_name(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

/// What of TLS went wrong, if it was that and not the connection.
pub fn fault(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidMessage(_) => "it does not speak TLS".to_owned(),
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate is signed by nobody who is trusted".to_owned()
        }
        Error::InvalidCertificate(CertificateError::BadSignature) => {
            "its certificate is not signed by whom it names".to_owned()
        }
        error => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::{NoTrust, TlsClient, can_name};

    fn certificate(name: &str) -> String {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]);
        made.unwrap().cert.pem()
    }

    #[test]
    fn a_file_must_hold_certificates_that_can_be_read() {
        let (one, other) = (certificate("one"), certificate("other"));
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        for bad in [
            "",
            "hello",
            &key,
            &one.replace("MII", "MIX"),
            &one[..one.len() / 2],
        ] {
            let refused = TlsClient::trusting(bad.as_bytes()).map(|_| ());
            assert_eq!(refused, Err(NoTrust::NoCertificate), "{bad}");
        }
        let trusting = |pem: &str| TlsClient::trusting(pem.as_bytes()).unwrap();
        let both = trusting(&format!("# two\n{one}\n{key}{other}"));
        assert_eq!(both, trusting(&format!("{other}{one}")));
        assert_ne!(both, trusting(&one));
        assert_eq!(format!("{both:?}"), "TlsClient(2 trusted)");
    }

    #[test]
    fn hosts_that_a_certificate_can_be_for() {
        for host in ["redis", "my_redis", "a.example.com", "127.0.0.1", "::1"] {
            assert!(can_name(host), "{host}");
        }
        for host in ["", "a b", "-a", "a..b", "300.1.1.1:7"] {
            assert!(!can_name(host), "{host}");
        }
    }
}
