"""The manifests in docker/kubernetes/ agree with each other, with the image, and with the options of the servers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minimq_broker.assembly import BrokerOptions
from minimq_nameserver.options import NameServerOptions
from support.cases import for_each
from support.container_files import (
    COMMANDS,
    DOCKERFILE,
    ROOT,
    Document,
    read_compose,
    read_manifests,
    started,
    variables,
)

MANIFESTS = read_manifests()
(KUSTOMIZATION,) = MANIFESTS.pop("kustomization.yaml")
DOCUMENTS = [document for file in MANIFESTS.values() for document in file]
NAMESPACE = "queues"
#: Where Kubernetes looks for a name that a pod in that namespace asks for, as far as it matters here.
SEARCH = (f".{NAMESPACE}.svc", "")


def of_kind(kind: str) -> dict[str, Document]:
    return {document["metadata"]["name"]: document for document in DOCUMENTS if document["kind"] == kind}


SETS = of_kind("StatefulSet")
SERVICES = of_kind("Service")
CONFIG: dict[str, str] = of_kind("ConfigMap")["minimq"]["data"]
ETCD = "minimq-etcd"
#: All pods but those of the controller.
PODS = [
    (name, number) for name, document in SETS.items() for number in range(document["spec"]["replicas"]) if name != ETCD
]
MEMBERS = [(ETCD, number) for number in range(SETS[ETCD]["spec"]["replicas"])]


#: What probes run, and how the variables begin by which it finds the server.
CHECK = ["python", "/opt/minimq/healthcheck.py"]
PREFIX = {"minimq-broker": "MINIMQ_BROKER", "minimq-nameserver": "MINIMQ_NAMESERVER"}


def pod_of(name: str) -> Document:
    template: Document = SETS[name]["spec"]["template"]["spec"]
    return template


def container_of(name: str) -> Document:
    (container,) = pod_of(name)["containers"]
    assert isinstance(container, dict)
    return container


def labels_of(name: str) -> dict[str, str]:
    labels: dict[str, str] = SETS[name]["spec"]["template"]["metadata"]["labels"]
    return labels


def environment_of(name: str, number: int) -> dict[str, str]:
    """Return the variables of a pod, as Kubernetes would fill them in."""
    fields = {
        "metadata.name": f"{name}-{number}",
        "metadata.namespace": NAMESPACE,
        "metadata.labels['apps.kubernetes.io/pod-index']": str(number),
    }
    found: dict[str, str] = {}
    for entry in container_of(name)["env"]:
        value = entry["value"] if "value" in entry else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value)
    return found


def options_of(
    name: str, number: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> BrokerOptions | NameServerOptions:
    """Return the options with which a pod runs, out of its variables and its file."""
    (command,) = container_of(name)["command"]
    environment = environment_of(name, number)
    (variable,) = (key for key in environment if key.endswith("_CONFIG"))
    mount = {entry["name"]: entry["mountPath"] for entry in container_of(name)["volumeMounts"]}["config"]
    folder, _, file = environment[variable].rpartition("/")
    assert folder == mount
    (path / file).write_text(CONFIG[file])
    return started(command, {**environment, variable: str(path / file)}, monkeypatch)


def resolve(host: str) -> tuple[str, int]:
    """Return which pod a name stands for, by the records that headless services have."""
    for suffix in SEARCH:
        match = re.fullmatch(rf"([\w-]+)-(\d+)\.([\w-]+)\.{NAMESPACE}\.svc", host + suffix)
        if (
            match
            and (match[1], int(match[2])) in (*PODS, *MEMBERS)
            and SETS[match[1]]["spec"]["serviceName"] == match[3]
        ):
            assert SERVICES[match[3]]["spec"]["clusterIP"] == "None"
            return match[1], int(match[2])
    raise AssertionError(f"no pod has the name {host}")


def reach(address: str) -> tuple[str, int]:
    """Return the pod at an address, which listens at that port."""
    host, _, port = address.partition(":")
    pod = resolve(host)
    assert int(port) in {entry["containerPort"] for entry in container_of(pod[0])["ports"]}
    return pod


@for_each("name", SETS)
def test_a_pod_sets_variables_that_its_command_has(name: str) -> None:
    if name == ETCD:
        assert environment_of(name, 0).keys() == {*read_compose()["services"]["etcd-1"]["environment"]}
        return
    (command,) = container_of(name)["command"]
    assert {key for key in environment_of(name, 0) if key.startswith("MINIMQ_")} <= variables(COMMANDS[command])
    assert pod_of(name)["enableServiceLinks"] is False  # a service "minimq-broker" would set MINIMQ_BROKER_...


@pytest.mark.parametrize(("name", "number"), PODS)
def test_ports_are_those_at_which_the_server_listens(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(name, number, tmp_path, monkeypatch)
    container = container_of(name)
    for address in (options.listen, options.metrics):
        assert address.startswith("0.0.0.0:")
    ports = {"grpc": int(options.listen.partition(":")[2]), "metrics": int(options.metrics.partition(":")[2])}
    assert {entry["name"]: entry["containerPort"] for entry in container["ports"]} == ports
    service = SERVICES[SETS[name]["spec"]["serviceName"]]["spec"]
    assert {entry["name"]: entry["port"] for entry in service["ports"]} == ports
    assert all(entry["targetPort"] == entry["name"] for entry in service["ports"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["exec"] == {"command": CHECK}
    assert int(environment_of(name, 0)[f"{PREFIX[container['command'][0]]}_LISTEN"].partition(":")[2]) == ports["grpc"]


@pytest.mark.parametrize(("name", "number"), [pod for pod in PODS if "broker" in pod[0]])
def test_a_broker_is_advertised_under_its_own_name_and_finds_the_others(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(name, number, tmp_path, monkeypatch)
    assert isinstance(options, BrokerOptions)
    assert (options.broker_id, f"minimq-{options.name}") == (number, name)
    assert reach(options.advertise) == (name, number)
    assert options.advertise.partition(":")[0].endswith(".svc")  # so that pods of other namespaces find it, too
    assert {reach(address) for address in options.nameservers} == {pod for pod in PODS if pod[0] == "minimq-nameserver"}
    members = options.controller.removeprefix("etcds://").split(",")
    assert [reach(address) for address in members] == MEMBERS
    secrets = options.secrets
    assert secrets is not None
    assert options.etcd_secrets == secrets


@for_each(("name", "number"), MEMBERS)
def test_the_members_of_the_controller_find_each_other_and_ask_for_certificates(name: str, number: int) -> None:
    given, container = environment_of(name, number), container_of(name)
    cluster = dict(entry.split("=") for entry in given["ETCD_INITIAL_CLUSTER"].split(","))
    assert cluster[given["ETCD_NAME"]] == given["ETCD_INITIAL_ADVERTISE_PEER_URLS"]
    assert {reach(url.removeprefix("https://")) for url in cluster.values()} == set(MEMBERS)
    assert reach(given["ETCD_ADVERTISE_CLIENT_URLS"].removeprefix("https://")) == (name, number)
    assert given["ETCD_CLIENT_CERT_AUTH"] == given["ETCD_PEER_CLIENT_CERT_AUTH"] == "true"
    # Certificates of users, of the same authority, do not have this name.
    assert given["ETCD_CLIENT_CERT_ALLOWED_HOSTNAME"] == given["ETCD_PEER_CERT_ALLOWED_HOSTNAME"] == "localhost"
    ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
    listens = {
        "client": "ETCD_LISTEN_CLIENT_URLS",
        "peer": "ETCD_LISTEN_PEER_URLS",
        "metrics": "ETCD_LISTEN_METRICS_URLS",
    }
    assert {name: int(given[variable].rpartition(":")[2]) for name, variable in listens.items()} == ports
    service = SERVICES[SETS[name]["spec"]["serviceName"]]["spec"]
    assert {entry["name"]: entry["port"] for entry in service["ports"]} == ports
    mounts = {entry["name"]: entry["mountPath"] for entry in container["volumeMounts"]}
    assert mounts.keys() == {"secrets", "data"}
    assert given["ETCD_DATA_DIR"].startswith(mounts["data"] + "/")
    assert given["ETCD_CERT_FILE"] == f"{mounts['secrets']}/tls.crt"
    (volume,) = pod_of(name)["volumes"]
    assert volume["secret"] == {"secretName": "minimq-server", "defaultMode": 0o440}
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["exec"] == {"command": CHECK}
    assert "livenessProbe" not in container  # all would be restarted when two are down


@pytest.mark.parametrize(("name", "number"), PODS)
def test_what_a_server_keeps_is_on_its_volume(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(name, number, tmp_path, monkeypatch)
    kept = options.data_dir if isinstance(options, BrokerOptions) else options.controller_dir
    claims = {claim["metadata"]["name"] for claim in SETS[name]["spec"].get("volumeClaimTemplates", [])}
    mounts = {entry["mountPath"] for entry in container_of(name)["volumeMounts"] if entry["name"] in claims}
    assert mounts == (set() if kept is None else {str(kept)})
    assert {entry["name"] for entry in container_of(name)["volumeMounts"]} == {"config", "secrets"} | claims


@pytest.mark.parametrize(("name", "number"), PODS)
def test_a_server_is_secured(name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mount,) = (entry for entry in container_of(name)["volumeMounts"] if entry["name"] == "secrets")
    options = options_of(name, number, tmp_path, monkeypatch)
    assert (str(options.secrets), mount["readOnly"]) == (mount["mountPath"], True)
    assert "subPath" not in mount, "kubelet does not update it"
    (volume,) = (volume for volume in pod_of(name)["volumes"] if volume["name"] == "secrets")
    assert volume["secret"]["defaultMode"] == 0o440
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert f"create secret generic {volume['secret']['secretName']} --from-file=secrets/server" in page
    named = {host for line in re.findall(r"--host (\S+)", page) for host in line.strip("'").split(",")}
    called: set[str] = set()
    if isinstance(options, BrokerOptions):
        members = options.controller.removeprefix("etcds://").split(",")
        called = {options.advertise, *options.nameservers, *members}
    for address in called:
        host = address.partition(":")[0]
        assert {host, f"*.{host.partition('.')[2]}"} & named, host  # of a short name gRPC takes no pattern


@for_each("name", SETS)
def test_a_pod_may_do_no_more_than_it_has_to(name: str) -> None:
    (user,) = re.findall(r"--uid (\d+)", DOCKERFILE)
    pod, container = pod_of(name)["securityContext"], container_of(name)["securityContext"]
    assert (pod["runAsNonRoot"], pod["runAsUser"], pod["runAsGroup"]) == (True, int(user), int(user))
    assert pod.get("fsGroup", int(user)) == int(user)
    assert "fsGroup" in pod  # it gives the user what is in its volumes
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod_of(name)["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", SETS)
def test_an_eviction_leaves_as_many_as_are_needed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = of_kind("PodDisruptionBudget").get(name)
    replicas = SETS[name]["spec"]["replicas"]
    if replicas == 1:
        assert budget is None  # its node could never be emptied
        return
    assert budget is not None
    assert budget["spec"]["selector"]["matchLabels"] == labels_of(name)
    needed = 2  # members of three that decide
    if name != ETCD:
        options = options_of(name, 0, tmp_path, monkeypatch)
        needed = options.min_in_sync if isinstance(options, BrokerOptions) else 1
    assert replicas - budget["spec"]["maxUnavailable"] >= needed
