"""The options of a console; those that would be unsafe are refused. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from minimq_common.errors import InvalidArgument
from minimq_console.hosts import allowed_hosts, is_loopback, prefix_of


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The options of a console, as `minimq console` documents them."""

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
    def hosts(self) -> frozenset[str]:
        """The names by which browsers may call it. Raises `InvalidArgument`."""
        return allowed_hosts(self.host, self.allowed_hosts)

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
