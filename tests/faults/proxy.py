"""nginx with the configuration that `deploy/` gives as an example, before web processes of a test."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.stack import ROOT
from tools.ports import free_port

DEPLOY = ROOT / "deploy"


@contextmanager
def running_nginx(folder: Path, ports: Sequence[int]) -> Iterator[int]:
    """Yields its port. Without TLS, which needs a certificate; `ports` stand for those of the example.

    Raises FileNotFoundError where there is no nginx.
    """
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        raise FileNotFoundError("nginx")
    port = free_port()
    shutil.copy(DEPLOY / "monolane_proxy.conf", folder)
    (folder / "nginx.conf").write_text(_configuration(folder, port, ports))
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        yield port
    finally:
        process.terminate()
        process.wait(60)


def _configuration(folder: Path, port: int, ports: Sequence[int]) -> str:
    site = (DEPLOY / "nginx.conf").read_text()
    for example, real in zip(re.findall(r"server (127\.0\.0\.1:\d+)", site), ports, strict=True):
        site = site.replace(example, f"127.0.0.1:{real}")
    site = re.sub(r"^ *(listen \[::\]|http2 |ssl_certificate).*\n", "", site, flags=re.M)
    site = site.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    site = site[: site.rindex("server {")].replace("/etc/nginx/", f"{folder}/")
    return f"""
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{}}
http {{
access_log off;
client_body_temp_path {folder}/body;
proxy_temp_path {folder}/proxy;
fastcgi_temp_path {folder}/fastcgi;
uwsgi_temp_path {folder}/uwsgi;
scgi_temp_path {folder}/scgi;
{site}
}}
"""
