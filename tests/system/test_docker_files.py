"""The files in docker/ agree with the commands they run, and the health check tells a server that serves from others.

`make compose-test` runs them.
"""

from __future__ import annotations

import json
import re
import shlex
import socket
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from minimq import Credentials, LocalCluster
from minimq.local.certificate_authority import CertificateAuthority
from minimq.local.certificate_signer import Signer
from minimq.local.server_process import free_port
from minimq_broker.options import BrokerOptions
from minimq_cli.console import console, serving_console
from minimq_cli.main import main as command_minimq
from minimq_cli.secure import secure
from minimq_common.security.credentials_file import CredentialsFile
from minimq_console.console_options import ConsoleOptions
from minimq_nameserver.options import NameServerOptions
from support.cases import for_each
from support.command import Minimq, environment
from support.container_files import COMMANDS, DOCKERFILE, ROOT, Document, read_compose, started, variables
from support.process import process
from support.waiting import wait_until

COMPOSE_TEST = (ROOT / "docker" / "compose-test.sh").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
JOB = "examples/spark_job.py"

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


def test_the_image_sets_variables_that_a_command_has() -> None:
    known = variables_of_the_console().union(*map(variables, COMMANDS.values()))
    check = (ROOT / "docker" / "healthcheck.py").read_text()
    assert {*re.findall(r"(MINIMQ_\w+)=", DOCKERFILE), *re.findall(r'"(MINIMQ_\w+)"', check)} <= known
    assert "etcd-server" in DOCKERFILE


@pytest.mark.parametrize("service", SERVERS)
def test_a_port_is_the_same_inside_and_outside(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(service, monkeypatch)
    host, _, port = options.listen.partition(":")
    assert host == "0.0.0.0"
    assert SERVICES[service]["ports"] == [f"127.0.0.1:{port}:{port}"]
    if isinstance(options, BrokerOptions):
        assert options.advertise == f"{service}.localhost:{port}"
        assert SERVICES[service]["networks"]["default"]["aliases"] == [f"{service}.localhost"]


def test_no_two_servers_share_a_port_or_a_volume() -> None:
    ports = [port for service in SERVERS for port in SERVICES[service]["ports"]]
    mounted = [volume for service in RUNNING for volume in SERVICES[service]["volumes"]]
    assert mounted.count(f"{SECRETS}:ro") == len(RUNNING)
    volumes = [volume for volume in mounted if volume != f"{SECRETS}:ro"]
    assert len(set(ports)) == len(ports) == len(SERVERS)
    assert (
        len(set(volumes))
        == len(volumes)
        == len(COMPOSE["volumes"].keys() - {"authority", "secrets", "console", "trust", "prometheus"})
    )


@pytest.mark.parametrize("service", SERVERS)
def test_what_a_server_keeps_is_on_a_volume_of_its_own(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(service, monkeypatch)
    kept = options.data_dir if isinstance(options, BrokerOptions) else options.controller_dir
    own = [] if kept is None else [f"{service}:{image_data_dir()}"]
    assert SERVICES[service]["volumes"] == [*own, f"{SECRETS}:ro"]
    assert kept is None or str(kept) == image_data_dir()
    assert kept is None or service in COMPOSE["volumes"]


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


def test_the_secrets_are_made_as_the_service_does(tmp_path: Path) -> None:
    making = SERVICES["secrets"]
    arguments = [word.replace("/etc/minimq", str(tmp_path)) for word in making["command"]]
    for said in ("start them", "nothing was changed"):
        done = CliRunner().invoke(command_minimq, arguments, env=making["environment"])
        assert done.exit_code == 0, done.output
        assert said in done.output
    opened = CredentialsFile(Credentials(str(tmp_path / "secrets" / "admin.minimq")))
    assert opened.nameservers == ("127.0.0.1:9876", "127.0.0.1:9877")
    assert set(making["environment"]["MINIMQ_SECURE_INIT_HOST"].split()) <= set(
        CertificateAuthority(tmp_path / "secrets").server_certificate().names
    )
    page = (ROOT / "docs" / "docker.md").read_text()
    for command in re.findall(r"run --rm -T secrets (user .*?)(?: >.*)?$", page, re.MULTILINE):
        done = CliRunner().invoke(command_minimq, shlex.split(command.replace("/etc/minimq", str(tmp_path))))
        assert (done.exit_code, "alice" in done.output) == (0, True), done.output


def test_brokers_and_clients_know_the_name_servers_where_they_listen() -> None:
    listening = {
        f"{name}:{SERVICES[name]['environment']['MINIMQ_NAMESERVER_LISTEN'].partition(':')[2]}"
        for name in SERVERS
        if name.startswith("nameserver")
    }
    for service in (*BROKERS, "console", "client", "spark"):
        given = SERVICES[service]["environment"]
        told = given.get("MINIMQ_BROKER_NAMESERVER") or given["MINIMQ_NAMESERVER"]
        assert set(told.split(",")) == listening


def test_the_controller_is_an_etcd_of_three_members_that_takes_the_certificate_of_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(ETCD) == 3
    for broker in BROKERS:
        options = options_of(broker, monkeypatch)
        assert isinstance(options, BrokerOptions)
        assert options.controller == "etcds://" + ",".join(f"{member}:2379" for member in ETCD)
        secrets = options.secrets
        assert secrets is not None
        assert options.etcd_secrets == secrets
        assert set(ETCD) <= SERVICES[broker]["depends_on"].keys()
    for member in ETCD:
        service, given = SERVICES[member], SERVICES[member]["environment"]
        assert service["command"] == ["etcd"]
        assert service["volumes"] == [f"{member}:{image_data_dir()}", f"{SECRETS}:ro"]
        assert given["ETCD_DATA_DIR"].startswith(image_data_dir() + "/")
        assert (given["ETCD_NAME"], given["ETCD_ADVERTISE_CLIENT_URLS"]) == (member, f"https://{member}:2379")
        assert f"{member}={given['ETCD_INITIAL_ADVERTISE_PEER_URLS']}" in given["ETCD_INITIAL_CLUSTER"].split(",")
        assert given["ETCD_CLIENT_CERT_AUTH"] == given["ETCD_PEER_CLIENT_CERT_AUTH"] == "true"
        assert "ports" not in service
        assert member in SERVICES["secrets"]["environment"]["MINIMQ_SECURE_INIT_HOST"].split()


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


@pytest.mark.system
def test_the_health_port_of_the_controller_changes_nothing(member: tuple[Path, dict[str, str]]) -> None:
    with closing(HTTPConnection("127.0.0.1", int(member[1]["2381"]), timeout=60)) as connection:
        connection.request("POST", "/v3/kv/put", b'{"key": "YQ==", "value": "YQ=="}')
        assert connection.getresponse().status == 404


def test_only_brokers_reach_the_controller() -> None:
    on = {name: [*service.get("networks", ["default"])] for name, service in SERVICES.items()}
    assert {name for name, networks in on.items() if "controller" in networks} == {*ETCD, *BROKERS}
    assert all(on[name] == ["controller"] for name in ETCD)
    assert COMPOSE["networks"] == {"controller": {"internal": True}}


def test_each_broker_has_a_slave_that_can_take_its_place_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: dict[str, dict[int, BrokerOptions]] = {}
    for service in BROKERS:
        options = options_of(service, monkeypatch)
        assert isinstance(options, BrokerOptions)
        assert service == f"{options.name}-{options.broker_id}"
        pairs.setdefault(options.name, {})[options.broker_id] = options
    assert set(pairs) == {"broker-a", "broker-b"}
    for pair in pairs.values():
        assert {number: options.role for number, options in pair.items()} == {0: "sync-master", 1: "slave"}
        assert {options.min_in_sync for options in pair.values()} == {1}


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


def test_what_may_be_substituted_is_documented() -> None:
    documented = set(re.findall(r"^\| `(MINIMQ_\w+)`", document("docker.md"), re.MULTILINE))
    text = (ROOT / "docker" / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == documented


def test_the_image_has_the_python_of_the_constraints() -> None:
    written_on = re.search(r"Python (3\.\d+)", (ROOT / "constraints.txt").read_text())
    assert written_on
    assert f"ARG PYTHON_IMAGE=python:{written_on[1]}-slim" in DOCKERFILE


def test_the_build_is_given_all_it_needs() -> None:
    given = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = " ".join(re.findall(r"^COPY ([\w/. ]+) \S+$", DOCKERFILE, re.MULTILINE)).split()
    assert JOB in copied
    assert {package.split("/")[0] for package in packages} <= given
    project = PYPROJECT["project"]
    assert {"pyproject.toml", project["readme"], *project["license-files"], *set(copied) - {"."}} <= given
    for path in given:
        assert (ROOT / path).exists(), path


def test_the_images_are_stages_with_the_extras_that_they_need() -> None:
    found = stages()
    assert {service["build"]["target"] for service in OURS.values()} == {"server", "spark"} <= found.keys()
    for stage, installed, file in (
        ("server", "installed", "requirements.txt"),
        ("spark", "spark-installed", "requirements-spark.txt"),
    ):
        assert f"COPY --from={installed} /opt/minimq /opt/minimq" in found[stage]
        [extras] = re.findall(r"minimq\[([\w,]+)\]", (ROOT / "docker" / file).read_text())
        assert set(extras.split(",")) <= set(PYPROJECT["project"]["optional-dependencies"])
    assert "requirements.txt" in " ".join(found["installed"])
    assert "requirements-spark.txt" in " ".join(found["spark-wheels"])
    assert f'"/opt/minimq/{JOB}"' in DOCKERFILE


def stages() -> dict[str, list[str]]:
    """Return the instructions of each stage of the Dockerfile that has a name, one line each."""
    lines = re.sub(r"\\\n", " ", DOCKERFILE)
    found = re.findall(r"^FROM \S+ AS (\S+)$(.*?)(?=^FROM |\Z)", lines, re.DOTALL | re.MULTILINE)
    return {name: re.findall(r"^[A-Z]+ .*$", body, re.MULTILINE) for name, body in found}


@for_each("target", sorted({service["build"]["target"] for service in OURS.values()}))
def test_an_image_runs_as_a_user_that_is_not_root(target: str) -> None:
    users = [line for line in stages()[target] if line.startswith("USER ")]
    assert users[-1:] == ["USER minimq"]


def test_the_image_of_the_servers_runs_the_health_check_that_it_has() -> None:
    server = stages()["server"]
    (check,) = (line for line in server if line.startswith("HEALTHCHECK "))
    (python, script) = json.loads(check.partition(" CMD ")[2])
    assert python == "python"
    (copied,) = (line for line in server if line.startswith("COPY docker/healthcheck.py "))
    assert f"{copied.split()[-1]}healthcheck.py" == script


def calls() -> list[list[str]]:
    """Return the arguments of each call of the command minimq in compose-test.sh."""
    commands = "|".join(command_minimq.list_commands(click.Context(command_minimq)))
    found = re.findall(rf"\b(?:minimq|inside) ((?:{commands}) (?:[\w./$\"-]+ ?)+)", COMPOSE_TEST)
    return [line.split() for line in found]


@for_each("arguments", calls())
def test_the_script_calls_commands_with_flags_they_have(arguments: list[str]) -> None:
    command: click.Command = command_minimq
    words = iter(arguments)
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), next(words))
        assert found
        command = found
    assert {word for word in words if word.startswith("-")} <= {
        flag for parameter in command.params for flag in parameter.opts
    }


def test_the_script_is_valid_and_does_the_whole_round() -> None:
    assert {words[0] for words in calls()} >= {"topic", "produce", "consume", "cluster"}
    assert f"servers={len(RUNNING)}\n" in COMPOSE_TEST
    subprocess.run(["bash", "-n", str(ROOT / "docker" / "compose-test.sh")], check=True)


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


@for_each("host", ["127.0.0.2", "[::1]", "[::]", "localhost"])
def test_the_health_check_asks_where_its_server_listens(host: str) -> None:
    listen = f"{host}:{free_port()}"
    with process(sys.executable, "-m", "minimq_nameserver", "--listen", listen) as server:
        assert server.stdout
        assert server.stdout.readline().startswith("ready")
        # As Kubernetes sets it where a service is named minimq-console.
        healthy = check_health({"MINIMQ_NAMESERVER_LISTEN": listen, "MINIMQ_CONSOLE_PORT": "tcp://10.0.0.1:8088"})
    assert (healthy.returncode, healthy.stdout) == (0, "SERVING\n"), healthy.stderr


def test_the_health_check_of_a_console_asks_where_it_listens() -> None:
    with serving_console("127.0.0.1:1", "127.0.0.3", 0) as served:
        port = served.address.rpartition(":")[2]
        healthy = check_health({"MINIMQ_CONSOLE_PORT": port, "MINIMQ_CONSOLE_HOST": "127.0.0.3"})
        assert (healthy.returncode, healthy.stdout) == (0, "it answers\n"), healthy.stderr
    lost = check_health({"MINIMQ_CONSOLE_PORT": "tcp://10.0.0.1:8088"})
    assert (lost.returncode, lost.stdout) == (1, "")
    assert "the health check does not know what to ask" in lost.stderr


@pytest.mark.long
@pytest.mark.system
@pytest.mark.spark
def test_the_spark_job_counts_what_is_there() -> None:
    with LocalCluster(brokers=1) as cluster:
        minimq = Minimq(cluster.nameserver)
        lines = "".join(f"message {number}\n" for number in (*range(1000), 1, 2))
        minimq("topic", "create", "t", "--queues", "2")
        minimq("produce", "t", stdin=lines.encode())
        job = [sys.executable, str(ROOT / JOB), "t", "--nameserver", cluster.nameserver]
        done = subprocess.run(job, capture_output=True, text=True, timeout=300, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1002 messages, 1000 different bodies"
    rows = re.findall(r"^\| *broker-a\| *(\d) *\| *(\d+) *\| *(\d+) *\| *(\d+) *\|$", done.stdout, re.MULTILINE)
    assert sum(int(messages) for _, messages, _, _ in rows) == 1002
    assert all(int(last) - int(first) + 1 == int(messages) for _, messages, first, last in rows)
