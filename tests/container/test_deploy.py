"""Files in `deploy/`: accepted by the engines, and by the rules of docs/deploying.md."""

import configparser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from compose_spec.models import ComposeSpecification, Service

from runner.files.upkeep import LAST_SEND_S
from runner.http.readiness import PATHS
from runner.settings.settings import Settings
from runner.settings.sources import load

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = "1.34"
POD_KINDS = {"StatefulSet": "template", "SandboxTemplate": "podTemplate"}
DRAIN_S = Settings.model_fields["drain_s"].default
TOTAL_TIMEOUT_S = Settings.model_fields["total_timeout_s"].default
# Kinds of kubernetes-sigs/agent-sandbox, KEDA and kustomize, for which Kubernetes publishes no schema.
OTHERS = {"SandboxTemplate", "SandboxWarmPool", "SandboxClaim", "Kustomization", "ScaledObject"}
Mapped = dict[str, Any]
"""A mapping as YAML has it, of one thing or of many."""


class Unit(configparser.RawConfigParser):
    """A unit of systemd: names keep their case."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def manifests() -> list[tuple[Path, Mapped]]:
    paths = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
    return [(path, one) for path in paths for one in yaml.safe_load_all(path.read_text())]


def named(found: list[tuple[Path, Mapped]]) -> list[Any]:
    return [pytest.param(path, one, id=label(path, one)) for path, one in found]


def label(path: Path, one: Mapped) -> str:
    return "-".join([path.parent.name, path.stem, one["kind"], one.get("metadata", {}).get("name", "")])


def pods() -> list[tuple[Path, Mapped]]:
    """Every pod of a server that is described whole; an overlay's patch of one is not."""
    return [
        (path, one["spec"][POD_KINDS[one["kind"]]] | {"kind": one["kind"]})
        for path, one in manifests()
        if one["kind"] in POD_KINDS and path.name != "user.yaml" and path.parent.name != "fleet"
    ]


def of_kind(kind: str) -> list[Mapped]:
    return [one for _, one in manifests() if one["kind"] == kind]


def seconds(duration: str) -> int:
    found = re.fullmatch(r"(\d+)(s|m)", duration)
    assert found is not None, f"{duration} is not a time in seconds or minutes"
    number, unit = found.groups()
    return int(number) * {"s": 1, "m": 60}[unit]


def variables(value: Any) -> Iterator[tuple[str, str]]:
    """Every name that is given a text, at any depth: mappings, and lists of `name` and `value`."""
    if isinstance(value, dict):
        if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
            yield value["name"], value["value"]
        for name, inner in value.items():
            if isinstance(inner, str):
                yield str(name), inner
            else:
                yield from variables(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from variables(inner)


def literal_secrets(value: Any) -> list[str]:
    """Names that sound like a secret and have a value that is neither a path nor a reference."""
    secret = re.compile(r"(?i)passw|token|secret_?key|access_?key|client_?secret$|cookie_?secret$")
    return [
        name
        for name, text in variables(value)
        if secret.search(name) and not text.startswith(("/", "./", "$"))
    ]


@pytest.fixture
def compose() -> Mapped:
    read: Mapped = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return read


@pytest.fixture
def unit() -> Unit:
    return read_unit("toolcell@.service")


def read_unit(name: str) -> Unit:
    # Environment= stands there several times; what is asked for below, once.
    parser = Unit(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.read_string((DEPLOY / "systemd" / name).read_text())
    return parser


# Kubernetes


@pytest.mark.parametrize(
    ("path", "manifest"), named([one for one in manifests() if one[1]["kind"] not in OTHERS])
)
def test_manifest_valid_by_schema_of_its_kind(path: Path, manifest: Mapped) -> None:
    if path.name == "user.yaml":
        # A patch: it is nothing but the variable, in the container of the base.
        (base,) = [
            one for file, one in manifests() if one["kind"] == "StatefulSet" and file.parent.name == "base"
        ]
        (patched,) = manifest["spec"]["template"]["spec"]["containers"]
        base["spec"]["template"]["spec"]["containers"][0]["env"] = patched["env"]
        manifest = base

    assert kubernetes_validate.validate(manifest, KUBERNETES, strict=True) == KUBERNETES


def test_schemas_refuse_unknown_field() -> None:
    (service, *_) = of_kind("Service")
    service["spec"]["clusterIp"] = "None"

    with pytest.raises(kubernetes_validate.ValidationError, match="clusterIp"):
        kubernetes_validate.validate(service, KUBERNETES, strict=True)


@pytest.mark.parametrize(("path", "pod"), named(pods()))
def test_pod_manifest_valid_also_as_sandbox_template(path: Path, pod: Mapped) -> None:
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": pod["spec"]}

    assert kubernetes_validate.validate(manifest, KUBERNETES, strict=True) == KUBERNETES


def test_kustomization_files_exist_and_cover_every_manifest() -> None:
    reached = set()
    for path, one in manifests():
        if one["kind"] == "Kustomization":
            named_there = [*one["resources"], *(patch["path"] for patch in one.get("patches", []))]
            for target in ((path.parent / name).resolve() for name in named_there):
                assert target.exists(), f"{path} names {target}"
                reached.add(target)

    assert {path.resolve() for path, one in manifests() if one["kind"] != "Kustomization"} <= reached


def test_overlay_changes_no_selector() -> None:
    overlays = [one for _, one in manifests() if one["kind"] == "Kustomization"]

    assert not any("commonLabels" in one for one in overlays)
    assert not [label for one in overlays for label in one.get("labels", []) if label["includeSelectors"]]


@pytest.mark.parametrize(("path", "pod"), named(pods()))
def test_pod_is_restricted(path: Path, pod: Mapped) -> None:
    spec = pod["spec"]
    rights = spec["securityContext"]

    assert spec["automountServiceAccountToken"] is False
    assert rights["runAsNonRoot"] is True
    assert rights["runAsUser"] > 0
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert not [one for one in spec["volumes"] if "hostPath" in one]


@pytest.mark.parametrize(("path", "pod"), named(pods()))
def test_container_read_only_without_capabilities_and_limited(path: Path, pod: Mapped) -> None:
    for container in pod["spec"]["containers"]:
        rights = container["securityContext"]

        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["limits"])
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])


@pytest.mark.parametrize(("path", "pod"), named(pods()))
def test_probe_path_answered_with_allowed_host_name(path: Path, pod: Mapped) -> None:
    (container,) = pod["spec"]["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}

    health, ready = PATHS
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": health,
        "readiness": ready,
        "liveness": health,
    }
    for probe in probes.values():
        assert probe["httpHeaders"] == [{"name": "Host", "value": "localhost"}]


@pytest.mark.parametrize(("path", "pod"), named(pods()))
def test_pod_grace_period_covers_drain(path: Path, pod: Mapped) -> None:
    (container,) = pod["spec"]["containers"]
    waited = container["lifecycle"]["preStop"]["sleep"]["seconds"]

    assert pod["spec"]["terminationGracePeriodSeconds"] >= waited + DRAIN_S + 5


def test_pod_templates_equal_except_user_source() -> None:
    one, other = [pod["spec"] for _, pod in pods()]
    for spec in (one, other):
        (container,) = spec["containers"]
        container["env"] = [each for each in container["env"] if each["name"] != "RUNNER_USER"]

    assert one == other


def test_servers_have_separate_users_and_claims() -> None:
    claims = of_kind("SandboxClaim")
    users = [each["value"] for one in claims for each in one["spec"]["env"] if each["name"] == "RUNNER_USER"]
    (template,) = of_kind("SandboxTemplate")
    names = [each["name"] for each in template["spec"]["podTemplate"]["spec"]["containers"][0]["env"]]

    assert len(users) == len(set(users)) == len(claims) == 2
    # Allowed means: a claim adds variables, and replaces none. So the user must not be there before.
    assert template["spec"]["envVarsInjectionPolicy"] == "Allowed"
    assert "RUNNER_USER" not in names


def test_network_policy_allows_proxy_in_dns_and_store_out_only() -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind("NetworkPolicy")}
    (template,) = of_kind("SandboxTemplate")
    sandbox = template["spec"]["networkPolicy"]

    assert policies["deny-all"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for policy in (policies["toolcell"], sandbox):
        peers = [
            peer
            for rule in (*policy["ingress"], *policy["egress"])
            for peer in rule.get("from", rule.get("to"))
        ]
        assert len(peers) == 3
        assert all(peer["namespaceSelector"]["matchLabels"] for peer in peers)
        assert [[port["port"] for port in rule["ports"]] for rule in policy["egress"]] == [[53, 53], [7070]]
    assert sandbox == {name: policies["toolcell"][name] for name in ("ingress", "egress")}


def test_configuration_accepted_by_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (settings,) = of_kind("ConfigMap")
    (tmp_path / "runner.toml").write_text(settings["data"]["runner.toml"])
    for name in ("RUNNER_STORE", "RUNNER_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)

    read = load({}, config=tmp_path / "runner.toml")

    assert str(read.store) == "s3://toolcell/files"
    assert read.max_calls * read.call_memory_mb <= 3 * 1024
    assert read.drain_s == DRAIN_S


@pytest.mark.parametrize(("path", "manifest"), named(manifests()))
def test_manifest_holds_no_secret(path: Path, manifest: Mapped) -> None:
    assert manifest["kind"] != "Secret"
    assert literal_secrets(manifest) == []
    for text in manifest.get("data", {}).values():
        assert not re.search(r"(?im)^\s*\w*(key|secret|token|password)\w*\s*=", text)


def test_secret_in_manifest_would_be_found() -> None:
    assert literal_secrets({"env": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "abc"}]}) == [
        "AWS_SECRET_ACCESS_KEY"
    ]
    assert literal_secrets({"environment": {"AWS_ACCESS_KEY_ID": "abc"}}) == ["AWS_ACCESS_KEY_ID"]


# Compose


def known_keys() -> set[str]:
    return {field.alias or name for name, field in Service.model_fields.items()}


def test_compose_file_valid_by_specification(compose: Mapped) -> None:
    ComposeSpecification.model_validate(compose)

    # The models pass over a key that they do not know.
    assert not [key for one in compose["services"].values() for key in set(one) - known_keys()]


def test_misspelt_service_key_would_be_found() -> None:
    assert "read_onyl" not in known_keys()
    assert "read_only" in known_keys()


def test_images_are_named_with_version(compose: Mapped) -> None:
    assert all(re.search(r":v?\d+\.\d+\.\d+}?$", one["image"]) for one in compose["services"].values())


def test_services_are_confined_and_limited(compose: Mapped) -> None:
    for name, one in compose["services"].items():
        assert one["read_only"] is True, name
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        assert int(one["user"].split(":")[0]) > 0, name
        assert one["mem_limit"] == one["memswap_limit"], name
        assert one["pids_limit"] > 0, name
        assert not {"privileged", "cap_add", "pid", "network_mode", "devices"} & set(one), name


def test_compose_publishes_proxy_only_server_alone_reaches_store(compose: Mapped) -> None:
    services, networks = compose["services"], compose["networks"]

    assert [name for name, one in services.items() if "ports" in one] == ["proxy"]
    assert services["proxy"]["profiles"] == ["proxy"]
    assert {name for name, one in services.items() if "store" in one["networks"]} == {"toolcell", "s3"}
    assert services["s3"]["networks"] == ["store"]
    assert networks["store"] == networks["front"] == {"internal": True}
    assert "outside" not in services["toolcell"]["networks"]


def test_server_and_store_report_health(compose: Mapped) -> None:
    toolcell, s3 = compose["services"]["toolcell"], compose["services"]["s3"]

    assert f"http://127.0.0.1:8000{PATHS[0]}" in toolcell["healthcheck"]["test"][-1]
    assert toolcell["healthcheck"]["test"][:3] == ["CMD", "python", "-I"]
    assert "http://127.0.0.1:7070/healthz" in s3["healthcheck"]["test"]
    assert "--health /healthz" in s3["command"][0]


def test_compose_stop_times_fit_those_of_server(compose: Mapped) -> None:
    toolcell, proxy = compose["services"]["toolcell"], compose["services"]["proxy"]
    (upstream,) = [flag.split("=")[1] for flag in proxy["command"] if flag.startswith("--upstream-timeout=")]

    assert seconds(toolcell["stop_grace_period"]) >= DRAIN_S + LAST_SEND_S + 5
    assert seconds(upstream) > TOTAL_TIMEOUT_S


def test_proxy_rejects_unnamed_clients(compose: Mapped) -> None:
    flags = compose["services"]["proxy"]["command"]

    assert "--authenticated-emails-file=/run/secrets/allowed_emails" in flags
    assert not [
        flag for flag in flags if re.match(r"--(email-domain|skip-auth|trusted-ip|upstream=file)", flag)
    ]


def test_compose_takes_secrets_from_files_only(compose: Mapped) -> None:
    used = {name for one in compose["services"].values() for name in one["secrets"]}

    assert literal_secrets(compose["services"]) == []
    assert used == set(compose["secrets"])
    assert all(set(one) == {"file"} for one in compose["secrets"].values())
    assert not [
        flag
        for flag in compose["services"]["proxy"]["command"]
        if re.match(r"--(client|cookie)-secret=", flag)
    ]


# systemd


def test_unit_stop_timeout_exceeds_drain_server_signalled_first(unit: Unit) -> None:
    service = unit["Service"]

    assert int(service["TimeoutStopSec"]) >= DRAIN_S + LAST_SEND_S + 5
    assert service["KillMode"] == "mixed"
    assert service["OOMPolicy"] == "continue"


def test_unit_names_user_by_flag_that_files_cannot_override(unit: Unit) -> None:
    command = unit["Service"]["ExecStart"].split()

    assert command[1:] == ["serve", "--transport", "http", "--user", "%i", "${TOOLCELL_FILE}"]
    assert unit["Service"]["User"] == "tc-%i"
    # Either refuses openat2(2), and then no server starts.
    assert not {"DynamicUser", "RestrictSUIDSGID"} & set(unit["Service"])


def test_unit_leaves_what_confinement_needs(unit: Unit) -> None:
    service = unit["Service"]
    closed = {
        "ProtectProc",
        "ProcSubset",
        "ProtectKernelTunables",
        "ProtectKernelLogs",
        "ProtectControlGroups",
        "RestrictNamespaces",
        "PrivateUsers",
        "MemoryDenyWriteExecute",
    }

    assert not closed & set(service)
    assert service["SystemCallFilter"].startswith("~")
    assert not set(service["SystemCallFilter"][1:].split()) & {
        "@mount",
        "@sandbox",
        "@privileged",
        "@process",
    }
    assert (service["Delegate"], service["DelegateSubgroup"]) == ("memory pids", "runner")


def test_unit_hardened_and_limited_below_common_slice(unit: Unit) -> None:
    service, slice_ = unit["Service"], read_unit("toolcell.slice")["Slice"]

    assert service["Slice"] == "toolcell.slice"
    assert service["NoNewPrivileges"] == service["PrivateTmp"] == service["ProtectHome"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert {"MemoryMax", "TasksMax", "CPUWeight"} <= set(service)
    assert {"MemoryMax", "TasksMax", "CPUWeight"} <= set(slice_)
    assert int(service["TasksMax"]) < int(slice_["TasksMax"])


def test_unit_raises_descriptor_limit(unit: Unit) -> None:
    hard = int(unit["Service"]["LimitNOFILE"].rpartition(":")[2])

    assert hard >= 16384
