//! A client that does not know the secret.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use haul_wire::control::{ControlMessage, Fault, FrameDecoder, HelloHead, PROTOCOL_VERSION};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned, version};
use socket2::{Domain, Socket, Type};

/// The beginning of a Hello's body: message number, version, and a proof of zeros.
pub(crate) const HEAD: [u8; HelloHead::LEN] = {
    let mut head = [0; HelloHead::LEN];
    head[1] = PROTOCOL_VERSION as u8;
    head
};

/// TLS configuration of a Haulage client that accepts every certificate.
pub(crate) fn config() -> Arc<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let versions = builder.with_protocol_versions(&[&version::TLS13]).expect("TLS 1.3 is compiled in");
    let verifier = Arc::new(AcceptAnyCertificate(provider));
    let mut config = versions.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = vec![b"haul/1".to_vec()];
    config.enable_sni = false;
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// Connects from an address of this host, with `timeout` for each step.
pub(crate) fn dial(from: IpAddr, to: SocketAddr, timeout: Duration) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect_timeout(&to.into(), timeout)?;
    let tcp = TcpStream::from(socket);
    tcp.set_read_timeout(Some(timeout))?;
    tcp.set_write_timeout(Some(timeout))?;
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

/// A connection whose TLS handshake is complete.
pub(crate) struct Stranger(pub(crate) StreamOwned<ClientConnection, TcpStream>);

impl Stranger {
    /// Completes TLS on a connection of [`dial`].
    pub(crate) fn secure(tcp: TcpStream, config: &Arc<ClientConfig>) -> std::io::Result<Self> {
        let name = ServerName::try_from("haul").map_err(std::io::Error::other)?;
        let tls = ClientConnection::new(config.clone(), name).map_err(std::io::Error::other)?;
        let mut stream = StreamOwned::new(tls, tcp);
        stream.flush()?;
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self(stream))
    }

    /// Sends the beginning of a Hello with a wrong proof, as if `body` bytes followed in all.
    pub(crate) fn send_wrong_proof(&mut self, body: u32) -> std::io::Result<()> {
        self.0.write_all(&[&body.to_be_bytes()[..], &HEAD].concat())?;
        self.0.flush()
    }

    /// Returns why the server refuses it.
    pub(crate) fn refusal(&mut self) -> std::io::Result<Fault> {
        let mut decoder = FrameDecoder::new();
        loop {
            match decoder.next_message().map_err(std::io::Error::other)? {
                Some(ControlMessage::Refuse(fault)) => return Ok(fault),
                Some(other) => return Err(std::io::Error::other(format!("{other:?}"))),
                None => {}
            }
            let mut next = [0; 256];
            match self.0.read(&mut next)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                len => decoder.feed(&next[..len]),
            }
        }
    }
}

#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not supported".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // Not verified: the cost to the server is the same.
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
