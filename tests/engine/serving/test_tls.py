"""Redis over TLS (rediss://): requests, frames and heartbeats come through as over a plain connection."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from engine.serving.client import AsyncClient, Client
from engine.serving.connection import connect_async
from engine.serving.errors import QueueUnavailable
from engine.serving.kept_connections import KeptConnections
from engine.serving.messages import Done
from tests.engine.serving.worker_threads import ask, working
from tests.engine.serving.workers import read_story


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this machine's loopback address, by itself; its key beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "redis of a test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
    builder = builder.not_valid_after(now + datetime.timedelta(hours=1))
    made = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    path = tmp_path_factory.mktemp("tls") / "redis.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.with_suffix(".key").write_bytes(key.private_bytes(*form))
    return path


class Tunnel:
    """Ends TLS before a plain Redis."""

    def __init__(self, plain: tuple[str, int], certificate: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self._plain, self._context = plain, context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                raw, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(raw,), daemon=True).start()

    def _carry(self, raw: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            self._context.wrap_socket(raw, server_side=True) as near,
            socket.create_connection(self._plain) as far,
        ):
            back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
            back.start()
            _pass_on(near, far)
            back.join(1.0)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while said := source.recv(65536):
            sink.sendall(said)
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def tls_url(redis_url: str, certificate: Path) -> Iterator[str]:
    plain = urlsplit(redis_url)
    assert plain.hostname is not None and plain.port is not None
    tunnel = Tunnel((plain.hostname, plain.port), certificate)
    yield f"rediss://127.0.0.1:{tunnel.port}/0?ssl_ca_certs={certificate}"
    tunnel.close()


def test_a_generation_goes_from_client_to_worker_and_back(tls_url: str) -> None:
    with working(tls_url), Client(tls_url) as client:
        client.submit(ask("g", max_tokens=40))
        story = read_story(client, "g")
        assert isinstance(story.end, Done)
        assert len(story.ids) == 40
        assert [worker.name for worker in client.workers()] == ["w"]


async def test_an_event_loop_reads_frames_and_runs_scripts(tls_url: str) -> None:
    with working(tls_url):
        async with AsyncClient(tls_url) as client:
            assert await client.submit(ask("g", max_tokens=40)) == 1
            frames = [found.frame async for found in client.frames("g")]
    assert isinstance(frames[-1], Done)


async def test_a_kept_connection_is_opened_again_after_redis_closed_it(tls_url: str) -> None:
    redis = connect_async(tls_url)
    kept = KeptConnections(redis)
    try:
        mine = await kept.ask(("CLIENT", "ID"))
        await redis.client_kill_filter(_id=mine)
        assert await kept.ask(("ECHO", "still here")) == "still here"
    finally:
        await redis.aclose()


def test_a_certificate_that_nobody_vouches_for_is_refused(tls_url: str) -> None:
    with (
        Client(tls_url.partition("?")[0]) as client,
        pytest.raises(QueueUnavailable, match="does not answer"),
    ):
        client.submit(ask("g"))
