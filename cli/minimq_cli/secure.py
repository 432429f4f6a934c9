"""`minimq secure`: certificates for the servers of a cluster, and credentials for its users."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import click

from minimq.admin import values
from minimq.admin.operation import Param
from minimq.admin.texts import duration_of
from minimq.admin.views import Row, Rows, Table, View, columns
from minimq.local.access_file import AccessFile
from minimq.local.certificate_authority import CertificateAuthority, issue_key
from minimq.options import DEFAULT_NAMESERVER, nameserver_addresses
from minimq_cli.commands import Output, declared, show
from minimq_common.errors import InvalidArgument
from minimq_common.names import check_named
from minimq_common.security.server_secrets import ACCESS, EXPIRES_SOON_S

_CERTIFICATES = Table("no certificate", columns("certificate names ends_at left", left="Time left"))


Directory = Annotated[Path, Param(metavar="DIR", read=values.path)]
Hosts = Annotated[
    Sequence[str],
    Param(
        flag="--host",
        metavar="HOST[,HOST]",
        help="Names and addresses of the servers for clients and other servers; localhost is always included. A "
        "name may begin with *., which stands for one label.",
    ),
]
_SERVER = "--server"
_NAMESERVERS = Param(
    letter="-s", flag=_SERVER, metavar="HOST:PORT[,HOST:PORT]", help="Name servers of the cluster, for the credentials."
)


@declared("init", "Make an authority, certificates, and the user admin.")
def _init(
    _nameserver: str,
    directory: Directory,
    *,
    hosts: Hosts = (),
    nameservers: Annotated[str, _NAMESERVERS] = DEFAULT_NAMESERVER,
    if_not_exists: Annotated[bool, Param(help="Do nothing if DIR already has an authority.")] = False,
) -> None:
    """Make an authority in DIR, a certificate for all servers, and the user admin with its credentials.

    Servers with that folder require a key from every caller; `minimq user add NAME` adds users. The
    authority is valid for ten years, a certificate for 397 days.

    Example: minimq secure init secrets --host mq1.example.org,mq2.example.org -s mq1.example.org:9876
    """
    authority = CertificateAuthority(directory)
    if not authority.init(
        _split(hosts), check_named(_SERVER, nameserver_addresses, nameservers), if_not_exists=if_not_exists
    ):
        click.echo(f"{directory} already has an authority; nothing was changed")
        return
    names = authority.server_certificate().names
    click.echo(f"made a certificate for servers at {', '.join(names)}; start them, wherever they run, with:")
    click.echo(f"  --secrets {authority.server}")
    click.echo("Clients need the credentials of a user; those of admin, who may do everything, are in:")
    click.echo(f"  {authority.admin}")
    click.echo("Add others:")
    click.echo(f"  minimq user add alice --write 'orders*' --secrets {directory} --to alice.minimq")


@declared("renew", "Make a new certificate for the servers.")
def _renew(_nameserver: str, directory: Directory, *, hosts: Hosts = ()) -> None:
    """Make a new certificate for the servers, for the same names and those that you add.

    Servers use it for new connections within a second; copy DIR/server to other machines yourself.

    Example: minimq secure renew secrets --host mq3.example.org
    """
    made = CertificateAuthority(directory).renew(_split(hosts))
    click.echo(f"made a certificate for {', '.join(made.names)}, valid until {_moment(made.ends_at)}")


@declared("issue", "Write the credentials of a USER with a certificate.")
def _issue(
    _nameserver: str,
    directory: Directory,
    user: str,
    *,
    nameservers: Annotated[str | None, _NAMESERVERS] = None,
    force: Annotated[bool, Param(help="Replace an existing credentials file; its key stays.")] = False,
) -> None:
    """Write the credentials of a USER, with a certificate of its own, to DIR/USER.minimq.

    The key of a former file with that name stays; a new file has none: copy the line `key` of the user's former
    credentials into it. By default it names the name servers of the former file, or those of admin.

    Example: minimq secure issue secrets alice -s mq1.example.org:9876
    """
    authority = CertificateAuthority(directory)
    if not force and user in {each.stem for each in directory.glob("*.minimq")}:
        raise InvalidArgument(
            f"{directory / user}.minimq exists: --force replaces it, which does not revoke the former one"
        )
    given = nameservers if nameservers is not None else authority.nameservers(user) or DEFAULT_NAMESERVER
    written = authority.issue(user, check_named(_SERVER, nameserver_addresses, given))
    click.echo(written)
    if not authority.has_key(user):
        click.echo("note: there is no key in it: copy the line `key` of the user's former credentials there", err=True)
    if user not in _users(directory):
        click.echo(f"note: {ACCESS} has no user {user}: `minimq user add {user}` adds one", err=True)


@declared("new-key", "Print a new key for cluster.key.")
def _new_key(_nameserver: str) -> None:
    """Print a new key, to append to cluster.key: servers send the first key in it, and accept all of them.

    Example: minimq secure new-key >> secrets/server/cluster.key
    """
    click.echo(issue_key()[0].text)


@declared("describe", "Show the certificates in DIR, and the users.")
def _show_certificates(_nameserver: str, directory: Directory, *, output: Output = "table") -> None:
    """Show the certificates in DIR with their names and expiry dates, and the users.

    Example: minimq secure describe secrets
    """
    found = CertificateAuthority(directory).certificates()
    rows: list[Row] = [
        {
            "certificate": name,
            "names": list(certificate.names) if output == "json" else ", ".join(certificate.names),
            "ends_at": datetime.fromtimestamp(certificate.ends_at, UTC),
            "left": duration_of(certificate.ends_at - time.time()),
        }
        for name, certificate in found.items()
    ]
    show(View(json=rows, lines=[Rows(_CERTIFICATES, rows)]), output)
    if output == "table" and (users := _users(directory)):
        click.echo(f"\n{ACCESS} has the users {', '.join(sorted(users))}")
    for name, certificate in found.items():
        left = certificate.ends_at - time.time()
        if left < EXPIRES_SOON_S:
            ends = f"ends in {duration_of(left)}" if left > 0 else "has ended"
            click.echo(f"warning: the certificate of {name} {ends}: {_remedy(directory, name)}", err=True)


secure = click.Group(
    "secure",
    [_init, _renew, _issue, _new_key, _show_certificates],
    help="Make certificates for the servers of a cluster, and credentials for its users.\n\nStart servers with "
    "--secrets DIR/server. DIR/authority signs the certificates: keep it where no server runs.",
    short_help="Make certificates and credentials.",
)


def _users(directory: Path) -> Iterable[str]:
    return AccessFile(directory).read().users if (directory / "server" / ACCESS).exists() else ()


def _remedy(directory: Path, name: str) -> str:
    if name.startswith("user "):
        return f"`minimq secure issue {directory} {name.removeprefix('user ')} --force` makes a new one"
    if name == "authority":
        return "docs/security.md shows how to replace it"
    return f"`minimq secure renew {directory}` makes a new one"


def _split(hosts: Sequence[str]) -> list[str]:
    return [host.strip() for given in hosts for host in given.split(",") if host.strip()]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
