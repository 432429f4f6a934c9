"""A real reverse proxy: nginx of the distribution, in front of one server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.waiting import wait_until

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
LACKING = "there is no nginx: make setup installs it as root (apt-get install nginx-light)"

_CONFIGURATION = """
daemon off;
user root; # without this, root's workers are another user, who may not write here
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    {locations}
  }}
}}
"""

_GRPC_CONFIGURATION = """
daemon off;
user root;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  {directives}
  {servers}
}}
"""

#: Of each path: with directives of its own of this kind, nginx would not take those of the server.
_HEADERS = "proxy_set_header Host $http_host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"


@contextmanager
def nginx(folder: Path, locations: Mapping[str, str], also: str = "") -> Iterator[str]:
    """Run nginx beside the block; yields its address.

    Args:
        folder: for its files.
        locations: the directives of each path.
        also: a location as it is printed.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        blocks = "\n".join(
            f"location {path} {{ proxy_http_version 1.1; {_HEADERS} {directives} }}"
            for path, directives in locations.items()
        )
        blocks += also
        configuration = folder / "nginx.conf"
        configuration.write_text(_CONFIGURATION.format(folder=folder, port=port, locations=blocks))
        started = _start(folder, configuration, [listening])
    with _ended(folder, started):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def grpc_proxies(folder: Path, targets: Sequence[str], directives: str) -> Iterator[list[str]]:
    """Run nginx in front of gRPC servers, with directives for all of them; yields its address for each."""
    with ExitStack() as sockets:
        listening = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in targets]
        addresses = ["{}:{}".format(*each.getsockname()) for each in listening]
        servers = "\n".join(
            f"server {{ listen {near} http2; location / {{ grpc_pass grpc://{far}; }} }}"
            for near, far in zip(addresses, targets, strict=True)
        )
        configuration = folder / "nginx.conf"
        configuration.write_text(_GRPC_CONFIGURATION.format(folder=folder, directives=directives, servers=servers))
        started = _start(folder, configuration, listening)
    with _ended(folder, started):
        yield addresses


def _start(folder: Path, configuration: Path, listening: Sequence[socket.socket]) -> subprocess.Popen[bytes]:
    assert NGINX is not None
    # It takes over sockets that listen already, as when it is upgraded: no other process gets the ports.
    descriptors = [each.fileno() for each in listening]
    environment = {**os.environ, "NGINX": "".join(f"{each};" for each in descriptors)}
    command = [NGINX, "-p", str(folder), "-c", str(configuration)]
    return subprocess.Popen(command, env=environment, pass_fds=descriptors, stderr=subprocess.PIPE)


@contextmanager
def _ended(folder: Path, started: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        wait_until(lambda: (folder / "nginx.pid").exists() or started.poll() is not None, what="nginx serves")
        assert started.poll() is None, (folder / "error.log").read_text()
        yield
    finally:
        started.terminate()
        started.communicate(timeout=20)
