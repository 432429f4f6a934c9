"""The options of a console; those that would be unsafe are refused. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from minimq_common.errors import InvalidArgument
from minimq_console.hosts import AllowedHosts, is_loopback, prefix_of


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The options of a console.

    Attributes:
        host: name or IP address to listen on.
        port: its port; 0 chooses a free one.
        interval_s: seconds between two looks at the whole cluster.
        allowed_hosts: names by which browsers call it, besides `host` and those of the machine itself.
        allow_changes: offer the actions, which change the cluster.
        allow_anyone: offer them beyond this machine even if nobody has to sign in.
        tls_certificate: path of the certificate in PEM with which it serves HTTPS; empty for HTTP.
        tls_key: path of the key of the certificate in PEM.
        registry: URL of the schema registry by which bodies are decoded, with user and password if it asks for them;
            empty for none.
        root_path: path of the console at a proxy in front of it, such as "/console"; empty for none.
        trusted_proxies: IP addresses or networks of proxies whose headers `X-Forwarded-For`, `-Proto` and `-Prefix`
            count.
    """

    host: str = "127.0.0.1"
    port: int = 0
    interval_s: float = 2.0
    allowed_hosts: tuple[str, ...] = ()
    allow_changes: bool = False
    allow_anyone: bool = False
    tls_certificate: str = ""
    tls_key: str = ""
    registry: str = ""
    root_path: str = ""
    trusted_proxies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        prefix = prefix_of(self.root_path)
        if prefix is None:
            raise InvalidArgument(f"--root-path {self.root_path!r} is no path: give one such as /console")
        object.__setattr__(self, "root_path", prefix)
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise InvalidArgument(
                    f"--trusted-proxy {proxy!r} is no IP address or network, such as 10.0.0.7 or 10.0.0.0/24"
                ) from None

    @property
    def is_secure(self) -> bool:
        """True if browsers reach the console by HTTPS alone."""
        return bool(self.tls_certificate)

    @property
    def hosts(self) -> AllowedHosts:
        """The names by which browsers may call it. Raises `InvalidArgument`."""
        return AllowedHosts(self.host, self.allowed_hosts)

    def check(self, *, asks_for_keys: bool) -> None:
        """Raise `InvalidArgument` if it would be unsafe.

        Args:
            asks_for_keys: visitors sign in with the key of a user.
        """
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidArgument("--tls-certificate and --tls-key go together: give both of them, or none")
        if is_loopback(self.host):
            return
        if asks_for_keys and not self.is_secure:
            raise InvalidArgument(
                f"visitors would send the keys of users to {self.host} without encryption: give --tls-certificate and "
                "--tls-key, or listen on 127.0.0.1, behind a proxy that has TLS"
            )
        if self.allow_changes and not asks_for_keys and not self.allow_anyone:
            raise InvalidArgument(
                f"anyone who reaches {self.host} could change this cluster, which asks nobody for a key: listen on "
                "127.0.0.1, secure the cluster with `minimq secure init`, or say --allow-anyone"
            )
