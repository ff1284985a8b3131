"""Manifests of `deploy/kubernetes/overlays/fleet`: they keep the rules, and their settings make a fleet."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.fleet.serve_node import check_of_fleet
from runner.http.readiness import PATHS
from runner.observation.metrics import Gauges, Metrics
from runner.settings.settings import Settings
from runner.settings.sources import load

pytestmark = [pytest.mark.needs_npm, pytest.mark.release]

FLEET = Path(__file__).parents[2] / "deploy" / "kubernetes" / "overlays" / "fleet"
ROLES = ("host", "node")
KINDS = {"host": "Deployment", "node": "StatefulSet"}
# What another object of the cluster gives in their place.
SECRETS = {"RUNNER_REDIS_URL": "rediss://:secret@redis.redis.svc:6379/0"}


def manifests() -> list[dict[str, Any]]:
    return [one for path in sorted(FLEET.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())]


def of(kind: str, name: str) -> dict[str, Any]:
    (found,) = (
        one for one in manifests() if one["kind"] == kind and one.get("metadata", {}).get("name") == name
    )
    return found


def pod(role: str) -> dict[str, Any]:
    spec: dict[str, Any] = of(KINDS[role], f"toolcell-{role}")["spec"]["template"]["spec"]
    return spec


def settings(role: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (container,) = pod(role)["containers"]
    for each in container["env"]:
        monkeypatch.setenv(each["name"], each.get("value") or SECRETS[each["name"]])
    return load({})


@pytest.mark.parametrize("role", ROLES)
def test_fleet_pods_restricted_read_only_and_limited(role: str) -> None:
    spec = pod(role)
    (container,) = spec["containers"]

    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert not [one for one in spec["volumes"] if "hostPath" in one]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["limits"])


@pytest.mark.parametrize("role", ROLES)
def test_fleet_variables_are_fleet_settings(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = settings(role, monkeypatch)

    check_of_fleet(read)
    waited = pod(role)["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod(role)["terminationGracePeriodSeconds"] >= waited + read.drain_s + 5


def test_fleet_hosts_and_nodes_share_equal_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ("redis_url", "fleet_key_file", "store")
    host, node = (settings(role, monkeypatch) for role in ROLES)

    assert [getattr(host, name) for name in shared] == [getattr(node, name) for name in shared]
    assert node.max_calls * node.call_memory_mb <= 3 * 1024


def test_fleet_probes_use_health_on_host_and_metrics_on_node() -> None:
    probes = {
        role: [
            (name, pod(role)["containers"][0][f"{name}Probe"]["httpGet"]["path"])
            for name in ("startup", "readiness", "liveness")
            if f"{name}Probe" in pod(role)["containers"][0]
        ]
        for role in ROLES
    }

    health, ready = PATHS
    assert probes == {
        "host": [("startup", health), ("readiness", ready), ("liveness", health)],
        "node": [("startup", "/metrics"), ("liveness", "/metrics")],
    }


def test_fleet_nodes_reach_dns_redis_store_only_prometheus_in() -> None:
    policy = of("NetworkPolicy", "toolcell-node")["spec"]

    assert [[port["port"] for port in rule["ports"]] for rule in policy["egress"]] == [
        [53, 53],
        [6379],
        [7070],
    ]
    assert all("to" in rule for rule in policy["egress"])
    assert [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]] == [[9464]]
    deny = of("NetworkPolicy", "deny-all")["spec"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_fleet_nodes_scaled_by_metrics_of_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    scaled = of("ScaledObject", "toolcell-node")["spec"]
    (trigger,) = scaled["triggers"]
    named = re.findall(r"toolcell_\w+", re.sub(r'"[^"]*"', "", trigger["metadata"]["query"]))

    exposed = Metrics().exposition(Gauges()).decode()
    node = settings("node", monkeypatch)

    nodes = of("StatefulSet", "toolcell-node")
    assert scaled["scaleTargetRef"] == {"kind": nodes["kind"], "name": nodes["metadata"]["name"]}
    assert "replicas" not in nodes["spec"]
    of_nodes = Metrics().exposition(Gauges(component="node")).decode()

    assert named == ["toolcell_calls_running", "toolcell_calls_waiting"]
    assert all(f"\n{name} " in exposed for name in named)
    # Each call is counted once: nodes tell of the calls that hosts tell of.
    assert all(f'\n{name}{{component="node"}} ' in of_nodes for name in named)
    assert trigger["metadata"]["query"].count('component!="node"') == len(named)
    assert 0 < int(trigger["metadata"]["threshold"]) <= node.max_calls


def test_fleet_unstored_node_files_outlive_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = of("StatefulSet", "toolcell-node")["spec"]
    (container,) = pod("node")["containers"]
    claims = [claim["metadata"]["name"] for claim in nodes["volumeClaimTemplates"]]
    mounted = [Path(mount["mountPath"]) for mount in container["volumeMounts"] if mount["name"] in claims]

    state = settings("node", monkeypatch).state_dir

    assert any(state.is_relative_to(path) for path in mounted)
    assert set(nodes["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    # Which the controller wants there: a service without an address.
    assert of("Service", nodes["serviceName"])["spec"]["clusterIP"] == "None"
