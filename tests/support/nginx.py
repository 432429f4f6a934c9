"""A real reverse proxy: nginx of the distribution, in front of one server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    assert NGINX is not None
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        blocks = "\n".join(
            f"location {path} {{ proxy_http_version 1.1; {_HEADERS} {directives} }}"
            for path, directives in locations.items()
        )
        blocks += also
        configuration = folder / "nginx.conf"
        configuration.write_text(_CONFIGURATION.format(folder=folder, port=port, locations=blocks))
        # It takes over a socket that listens already, as when it is upgraded: nobody else gets the port meanwhile.
        environment = {**os.environ, "NGINX": f"{listening.fileno()};"}
        command = [NGINX, "-p", str(folder), "-c", str(configuration)]
        started = subprocess.Popen(command, env=environment, pass_fds=[listening.fileno()], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: (folder / "nginx.pid").exists() or started.poll() is not None, what="nginx serves")
        assert started.poll() is None, (folder / "error.log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        started.terminate()
        started.communicate(timeout=20)
