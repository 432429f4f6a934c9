"""The policies in docker/kubernetes: each server reaches whom it has to, and is reached by no others."""

from __future__ import annotations

from support.cases import for_each
from support.container_files import Document, read_manifests

MANIFESTS = read_manifests()
POLICIES: list[Document] = MANIFESTS["networkpolicy.yaml"]
SETS = [each for documents in MANIFESTS.values() for each in documents if each["kind"] == "StatefulSet"]
PODS: dict[str, Document] = {each["metadata"]["name"]: each["spec"]["template"] for each in SETS}
#: Labels of pods that are no servers; None stands for addresses outside of the cluster.
CLIENT = {"app.kubernetes.io/name": "shop", "minimq-client": "true"}
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
STRANGER = {"app.kubernetes.io/name": "shop"}


def labels(pod: str) -> dict[str, str]:
    found: dict[str, str] = PODS[pod]["metadata"]["labels"]
    return found


def ports(pod: str) -> dict[str, int]:
    (container,) = PODS[pod]["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def fits(selector: Document, given: dict[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= given.items()


def policies_of(given: dict[str, str]) -> list[Document]:
    return [each["spec"] for each in POLICIES if fits(each["spec"]["podSelector"], given)]


def admits(rule: Document, side: str, peer: dict[str, str] | None, port: int, *, same_namespace: bool) -> bool:
    """Decide as Kubernetes does: a rule that names no peers fits all, one that names no ports fits all."""
    numbers = [each["port"] for each in rule.get("ports", []) if each["protocol"] == "TCP"]
    if "ports" in rule and port not in numbers:
        return False
    if side not in rule:
        return True
    for each in rule[side]:
        assert each.keys() <= {"podSelector", "namespaceSelector"}
        in_reach = same_namespace if "namespaceSelector" not in each else each["namespaceSelector"] == {}
        if peer is not None and in_reach and fits(each.get("podSelector", {}), peer):
            return True
    return False


def may_come(to: str, port: str, peer: dict[str, str] | None, *, same_namespace: bool = True) -> bool:
    rules = [rule for spec in policies_of(labels(to)) for rule in spec["ingress"]]
    return any(admits(rule, "from", peer, ports(to)[port], same_namespace=same_namespace) for rule in rules)


def may_go(pod: str, peer: dict[str, str] | None, port: int) -> bool:
    rules = [rule for spec in policies_of(labels(pod)) for rule in spec["egress"]]
    return any(admits(rule, "to", peer, port, same_namespace=True) for rule in rules)


SERVERS = [pod for pod in PODS if "etcd" not in pod]


@for_each("pod", SERVERS)
def test_every_port_is_for_those_who_need_it_and_no_others(pod: str) -> None:
    assert ports(pod).keys() == {"grpc", "metrics"}
    for same_namespace in (True, False):
        assert may_come(pod, "grpc", CLIENT, same_namespace=same_namespace)
        assert may_come(pod, "metrics", PROMETHEUS, same_namespace=same_namespace)
        for port, peer in (("grpc", PROMETHEUS), ("metrics", CLIENT), ("grpc", STRANGER), ("metrics", STRANGER)):
            assert not may_come(pod, port, peer, same_namespace=same_namespace)
    for port in ports(pod):
        assert not may_come(pod, port, None)


def test_the_controller_is_for_brokers_and_its_members_for_each_other() -> None:
    [member] = PODS.keys() - set(SERVERS)
    for pod in PODS:
        for port, who in (("client", "broker"), ("peer", "etcd")):
            wanted = who in pod
            assert may_come(member, port, labels(pod)) is may_go(pod, labels(member), ports(member)[port]) is wanted
            assert not may_come(member, port, labels(pod), same_namespace=False)
    for port in ports(member):
        assert not may_come(member, port, None)
        assert not may_come(member, port, CLIENT)
        assert may_come(member, port, PROMETHEUS) is (port == "metrics")
    assert may_go(member, None, 53)
    assert not may_go(member, None, 443)


@for_each("pod", SERVERS)
def test_brokers_reach_all_servers_and_nobody_else(pod: str) -> None:
    for other in SERVERS:
        port = ports(other)["grpc"]
        wanted = "broker" in pod
        assert may_go(pod, labels(other), port) is wanted
        assert may_come(other, "grpc", labels(pod)) is wanted
        assert not may_come(other, "grpc", labels(pod), same_namespace=False)  # a cluster in another namespace
        assert not may_go(pod, labels(other), ports(other)["metrics"])
    assert may_go(pod, None, 53) is ("broker" in pod)
    assert not may_go(pod, None, 443)
