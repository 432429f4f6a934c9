"""The files in docker/ agree with the commands they run, and the health check tells a server that serves from others.

`make compose-test` runs them.
"""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from click.testing import CliRunner

from minimq import Credentials, LocalCluster
from minimq.local.certificate_authority import CertificateAuthority
from minimq.local.certificate_signer import Signer
from minimq.local.server_process import free_port
from minimq_broker.assembly import BrokerOptions
from minimq_cli.console import console, serving_console
from minimq_cli.main import main as command_minimq
from minimq_cli.secure import secure
from minimq_common.security.credentials_file import CredentialsFile
from minimq_console.console_options import ConsoleOptions
from minimq_nameserver.options import NameServerOptions
from support.cases import for_each
from support.command import environment
from support.container_files import COMMANDS, DOCKERFILE, ROOT, Document, read_compose, started, variables
from support.process import process
from support.waiting import wait_until

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE = read_compose()
SERVICES: dict[str, Document] = COMPOSE["services"]
#: What test_monitoring_files.py is about.
MONITORING = ("trust", "prometheus", "grafana")
OURS = {name: service for name, service in SERVICES.items() if name not in MONITORING}
#: What runs once, at the start.
MAKING = ("secrets", "console-secrets")
RUNNING = [name for name, service in SERVICES.items() if "profiles" not in service and name not in (*MAKING, "console")]
#: The members of the controller.
ETCD = [name for name in RUNNING if name.startswith("etcd")]
SERVERS = [name for name in RUNNING if name not in ETCD]
#: Servers see it, and nothing else of the secrets.
SECRETS = "secrets:/etc/minimq/secrets/server"
BROKERS = [name for name in SERVERS if name.startswith("broker")]


def command_of(service: str) -> str:
    (command,) = SERVICES[service].get("entrypoint") or SERVICES[service]["command"]
    return str(command)


def options_of(service: str, monkeypatch: pytest.MonkeyPatch) -> BrokerOptions | NameServerOptions:
    given = {"MINIMQ_BROKER_DATA_DIR": image_data_dir(), **SERVICES[service]["environment"]}
    return started(command_of(service), given, monkeypatch)


def image_data_dir() -> str:
    found = re.search(r"MINIMQ_BROKER_DATA_DIR=(\S+)", DOCKERFILE)
    assert found
    return found[1]


def test_it_is_the_cluster_that_is_documented() -> None:
    table = re.findall(r"^\| (?:name servers|broker|etcd)[^|]*\|[^|]*\| (.*?) \|", document("docker.md"), re.MULTILINE)
    assert set(re.findall(r"`([\w-]+):\d+`", " ".join(table))) == set(RUNNING)
    assert list(SERVICES) == ["secrets", *RUNNING, "console-secrets", "console", "client", "spark", *MONITORING]
    assert set(COMMANDS) == set(PYPROJECT["project"]["scripts"])
    assert {command_of(service) for service in (*SERVERS, "console", "client")} == set(COMMANDS)


def document(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def variables_of_the_console() -> set[str]:
    return {str(option.envvar or f"MINIMQ_CONSOLE_{option.name}".upper()) for option in console.params}


@for_each("service", [name for name in OURS if name != "console-secrets"])
def test_a_service_sets_variables_that_its_command_has(service: str) -> None:
    known = {"MINIMQ_NAMESERVER", "MINIMQ_CREDENTIALS"}
    if service == "console":
        known |= variables_of_the_console()
    elif service == "secrets":
        known = {f"MINIMQ_SECURE_INIT_{option.name}".upper() for option in secure.commands["init"].params}
    elif service in ETCD:
        known = options_of_etcd()
    elif service != "spark":
        known = variables(COMMANDS[command_of(service)])
    assert SERVICES[service]["environment"]
    assert SERVICES[service]["environment"].keys() <= known


def options_of_etcd() -> set[str]:
    """Return the variables that the etcd of this machine reads, which is Debian's as in the image."""
    said = subprocess.run(["etcd", "--help"], capture_output=True, text=True, check=False)
    return {
        "ETCD_" + flag.upper().replace("-", "_")
        for flag in re.findall(r"^\s+--([\w-]+)", said.stdout + said.stderr, re.M)
    }


@pytest.mark.parametrize("service", SERVERS)
def test_a_server_is_secured_once_its_secrets_are_made(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    making = SERVICES["secrets"]
    (_, _, folder, *_) = making["command"]
    assert making["volumes"] == [f"authority:{folder}", SECRETS]
    assert str(options_of(service, monkeypatch).secrets) == f"{folder}/server" == SECRETS.partition(":")[2]
    assert SERVICES[service]["depends_on"]["secrets"] == {"condition": "service_completed_successfully"}
    options = options_of(service, monkeypatch)
    host = options.advertise.partition(":")[0] if isinstance(options, BrokerOptions) else service
    assert host in making["environment"]["MINIMQ_SECURE_INIT_HOST"].split()
    for client in ("client", "spark"):
        assert SERVICES[client]["environment"]["MINIMQ_CREDENTIALS"] == f"{folder}/admin.minimq"
        assert SERVICES[client]["volumes"] == [f"authority:{folder}:ro"]
    # A new volume is as the folder is in the image: its user's.
    assert f" {folder} {folder}/server\n" in DOCKERFILE.partition("install --directory --owner=minimq")[2]


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A member of the controller as its service runs it, on this machine: the folder of secrets, and its real ports."""
    folder = tmp_path_factory.mktemp("member")
    making = [word.replace("/etc/minimq", str(folder)) for word in SERVICES["secrets"]["command"]]
    assert CliRunner().invoke(command_minimq, making, env=SERVICES["secrets"]["environment"]).exit_code == 0
    with socket.socket() as client, socket.socket() as peer, socket.socket() as health:
        for one in (client, peer, health):
            one.bind(("127.0.0.1", 0))
        numbers = {"2379": client, "2380": peer, "2381": health}
        ports = {number: str(one.getsockname()[1]) for number, one in numbers.items()}
    variables = dict(SERVICES["etcd-1"]["environment"])
    variables["ETCD_INITIAL_CLUSTER"] = variables["ETCD_INITIAL_CLUSTER"].partition(",")[0]
    for name, value in variables.items():
        here = value.replace("/etc/minimq", str(folder)).replace(image_data_dir(), str(folder))
        here = re.sub(r"//(?:etcd-1|0\.0\.0\.0):(\d+)", lambda found: f"//127.0.0.1:{ports[found[1]]}", here)
        variables[name] = here
    checked = {"ETCD_LISTEN_METRICS_URLS": variables["ETCD_LISTEN_METRICS_URLS"]}
    with process("etcd", **variables):
        wait_until(lambda: check_health(checked).returncode == 0, 60, what="it is healthy")
        yield folder / "secrets", ports
    dead = check_health(checked)
    assert (dead.returncode, "etcd does not answer" in dead.stderr) == (1, True)


@pytest.mark.system
def test_a_broker_elects_its_master_through_the_controller(member: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    secrets, ports = member[0] / "server", member[1]
    listen = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "minimq_broker", "--name", "broker-a", "--listen", "127.0.0.1:0"]
    command += ["--etcd-secrets", str(secrets), "--data-dir", str(tmp_path), "--nameserver", listen]
    command += ["--controller", f"etcds://127.0.0.1:{ports['2379']}"]
    with process(sys.executable, "-m", "minimq_nameserver", "--listen", listen), process(*command) as broker:
        assert broker.stderr is not None
        assert any("roles: leading" in line for line in broker.stderr)


@pytest.mark.system
@pytest.mark.parametrize(
    ("port", "certificate", "answer"),
    [
        *((port, "servers", 200) for port in ("2379", "2380")),
        *((port, holder, None) for port in ("2379", "2380") for holder in ("user", "user called localhost", "none")),
    ],
)
def test_the_controller_accepts_the_certificate_of_the_servers_only(
    member: tuple[Path, dict[str, str]], tmp_path: Path, port: str, certificate: str, answer: int | None
) -> None:
    secrets, ports = member
    authority = CertificateAuthority(secrets)
    context = ssl.create_default_context(cafile=authority.server / "ca.crt")
    if certificate == "servers":
        context.load_cert_chain(authority.server / "tls.crt", authority.server / "tls.key")
    elif certificate != "none":
        name = "localhost" if certificate.endswith("localhost") else "mallory"
        own = CertificateAuthority(secrets).issue(name, [])
        pair = CredentialsFile(Credentials(str(own))).trust().pair
        assert pair is not None
        (tmp_path / "pair.pem").write_bytes(pair.certificate + pair.key)
        context.load_cert_chain(tmp_path / "pair.pem")
    assert status_of(HTTPSConnection("127.0.0.1", int(ports[port]), timeout=60, context=context)) == answer


def status_of(connection: HTTPSConnection) -> int | None:
    with closing(connection), suppress(ssl.SSLError, ConnectionError):
        connection.request("GET", "/version")
        return connection.getresponse().status
    return None


def test_only_brokers_reach_the_controller() -> None:
    on = {name: [*service.get("networks", ["default"])] for name, service in SERVICES.items()}
    assert {name for name, networks in on.items() if "controller" in networks} == {*ETCD, *BROKERS}
    assert all(on[name] == ["controller"] for name in ETCD)
    assert COMPOSE["networks"] == {"controller": {"internal": True}}


def test_the_console_serves_this_machine_and_has_no_key_of_a_server_or_a_user(tmp_path: Path) -> None:
    making, service = SERVICES["console-secrets"], SERVICES["console"]
    assert making["depends_on"]["secrets"] == {"condition": "service_completed_successfully"}
    assert service["depends_on"] == {"console-secrets": {"condition": "service_completed_successfully"}}
    [volume, secrets] = making["volumes"]
    assert service["volumes"] == [f"{volume}:ro"]
    authority = CertificateAuthority(tmp_path / "secrets")
    authority.init([], [])
    own = tmp_path / "own"
    own.mkdir()
    [script] = making["command"]
    for inside, here in ((secrets.split(":")[1], authority.server), (volume.split(":")[1], own)):
        script = script.replace(inside, str(here))
    subprocess.run([*making["entrypoint"], script], check=True)
    assert {path.name for path in own.iterdir()} == {"tls.crt", "tls.key", "trust.minimq"}
    trust = CredentialsFile(Credentials(str(own / "trust.minimq"))).trust()
    assert (trust.pair, trust.bearer) == (None, None)
    given = {name: value.replace(volume.split(":")[1], str(own)) for name, value in service["environment"].items()}
    assert given["MINIMQ_CONSOLE_HOST"] == "0.0.0.0"
    assert service["ports"] == ["127.0.0.1:{0}:{0}".format(given["MINIMQ_CONSOLE_PORT"])]
    pair = given["MINIMQ_CONSOLE_TLS_CERTIFICATE"], given["MINIMQ_CONSOLE_TLS_KEY"]
    ConsoleOptions(given["MINIMQ_CONSOLE_HOST"], tls_certificate=pair[0], tls_key=pair[1]).check(asks_for_keys=True)
    with serving_console(
        given["MINIMQ_NAMESERVER"],
        "127.0.0.1",
        0,
        credentials=given["MINIMQ_CREDENTIALS"],
        tls_certificate=pair[0],
        tls_key=pair[1],
    ) as served:
        port = served.address.rpartition(":")[2]
        healthy = check_health({"MINIMQ_CONSOLE_PORT": port, "MINIMQ_CONSOLE_TLS_CERTIFICATE": pair[0]})
        assert (healthy.returncode, healthy.stdout) == (0, "it answers\n"), healthy.stderr
    dead = check_health({"MINIMQ_CONSOLE_PORT": port})
    assert dead.returncode == 1
    assert f"the console does not answer at 127.0.0.1:{port}" in dead.stderr


def stages() -> dict[str, list[str]]:
    """Return the instructions of each stage of the Dockerfile that has a name, one line each."""
    lines = re.sub(r"\\\n", " ", DOCKERFILE)
    found = re.findall(r"^FROM \S+ AS (\S+)$(.*?)(?=^FROM |\Z)", lines, re.DOTALL | re.MULTILINE)
    return {name: re.findall(r"^[A-Z]+ .*$", body, re.MULTILINE) for name, body in found}


@for_each("target", sorted({service["build"]["target"] for service in OURS.values()}))
def test_an_image_runs_as_a_user_that_is_not_root(target: str) -> None:
    users = [line for line in stages()[target] if line.startswith("USER ")]
    assert users[-1:] == ["USER minimq"]


def check_health(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "docker" / "healthcheck.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(**variables),
    )


@pytest.mark.fault
@pytest.mark.system
def test_the_health_check_asks_the_server() -> None:
    with LocalCluster(brokers=1) as cluster:
        for variable, server in (
            ("MINIMQ_NAMESERVER_LISTEN", cluster.nameservers[0]),
            ("MINIMQ_BROKER_LISTEN", cluster.brokers[0]),
        ):
            listen = {variable: f"0.0.0.0:{server.address.rpartition(':')[2]}"}
            healthy = check_health(listen)
            assert (healthy.returncode, healthy.stdout) == (0, "SERVING\n"), healthy.stderr
            server.kill()
            dead = check_health(listen)
            assert dead.returncode == 1
            assert "does not answer" in dead.stderr
            server.start()


@pytest.mark.parametrize("name", ["mq1.example.org", "my_host", "*.example.org", "10.0.0.5", "2001:db8::5"])
def test_the_health_check_takes_the_certificate_of_its_server(name: str, tmp_path: Path) -> None:
    signer = Signer.new()
    pair = signer.sign_server([name])
    for file, data in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", signer.pair.certificate)):
        (tmp_path / file).write_bytes(data)
    listen = f"0.0.0.0:{free_port()}"
    with process(sys.executable, "-m", "minimq_nameserver", "--listen", listen, "--secrets", str(tmp_path)) as server:
        assert server.stdout
        assert server.stdout.readline().startswith("ready")
        healthy = check_health({"MINIMQ_NAMESERVER_LISTEN": listen, "MINIMQ_NAMESERVER_SECRETS": str(tmp_path)})
    assert (healthy.returncode, healthy.stdout) == (0, "SERVING\n"), healthy.stderr
