"""The Helm chart: linted and rendered by Helm's own code, and compared with Kubernetes' schemas.

`make test-chart` installs both in an environment of its own.
"""

import json
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.base.settings import Settings

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-chart" / "bin" / "python"
VERSIONS = ["1.27", "1.37"]
VALUES: dict[str, Any] = {"secret": "sage", "settings": {"ENGINE_URLS": "http://vllm-pods:8000"}}
HOSTED: dict[str, Any] = VALUES | {
    "settings": {"SAGE_MODEL_URL": "https://api.example.com/v1", "SAGE_MODEL": "wise-1"}
}
FULL: dict[str, Any] = VALUES | {
    "settings": {
        "ENGINE_URLS": "dns+http://vllm-pods:8000",
        "SAGE_ENGINE_ROUTER_URL": "http://gateway",
        "SAGE_MODEL": "/models/qwen",
        "EMBEDDINGS_URL": "http://embeddings:8000",
    },
    "image": {"registry": "registry.example.org/team", "tag": "0.2.0", "pullSecrets": ["registry"]},
    "worker": {
        "gpus": 2,
        "runtimeClassName": "nvidia",
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    },
    "adapters": {"claim": "shared-adapters"},
    "models": {"claim": "models"},
    "runs": {"claim": "runs"},
    "service": {"type": "LoadBalancer", "port": 8080},
    "networkPolicy": {
        "clients": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}],
        "monitoring": [{"namespaceSelector": {"matchLabels": {"team": "ops"}}}],
        "blocked": ["169.254.0.0/16", "10.0.0.0/24"],
    },
    "podAnnotations": {"example.org/owner": "agents"},
}


def examined(values: dict[str, Any], *, name: str = "prod", version: str = VERSIONS[-1]) -> dict[str, Any]:
    given = json.dumps({"values": values, "name": name, "version": version})
    done = subprocess.run(
        [PYTHON, ROOT / "tests/integration/chart/render.py"],
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Rendered(NamedTuple):
    objects: list[dict[str, Any]]

    def one(self, kind: str, part: str = "") -> dict[str, Any]:
        names = {each["metadata"]["name"]: each for each in self.objects if each["kind"] == kind}
        return names["-".join(["prod-sage-server", *([part] if part else [])])]

    def pods(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for each in self.objects:
            if each["kind"] in {"Deployment", "Job"}:
                yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def rendered(values: dict[str, Any]) -> Rendered:
    found = examined(values)
    assert "error" not in found, found
    return Rendered(found["objects"])


@pytest.fixture(scope="module")
def plain() -> Rendered:
    return rendered(VALUES)


@pytest.fixture(scope="module")
def full() -> Rendered:
    return rendered(FULL)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [VALUES, FULL, HOSTED], ids=["least", "all", "hosted"])
def test_the_chart_passes_helms_linter_and_fits_kubernetes_schemas(values: dict[str, Any], version: str) -> None:
    found = examined(values, version=version)
    assert (found.get("error"), found["findings"], found["faults"]) == (None, [], [])


def test_no_container_is_root_or_writes_to_its_image(plain: Rendered) -> None:
    assert len(list(plain.pods())) == 4
    for _, pod in plain.pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 2000
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"requests", "limits"} <= container["resources"].keys()
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_each_mount_has_its_volume(plain: Rendered, full: Rendered) -> None:
    for each in (plain, full):
        for name, pod in each.pods():
            mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in pod["volumes"]}, name


def test_the_api_is_probed_and_the_migration_comes_first(plain: Rendered) -> None:
    [container] = plain.one("Deployment", "api")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sage", "serve"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["startupProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    job, settings = plain.one("Job", "migrate"), plain.one("ConfigMap", "migrate")
    hooks = [each["metadata"]["annotations"]["helm.sh/hook"] for each in (job, settings)]
    assert hooks == ["pre-install,pre-upgrade"] * 2
    assert int(settings["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0
    source = job["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]
    assert source == {"configMapRef": {"name": settings["metadata"]["name"]}}


def test_selectors_match_the_pods_of_their_part(plain: Rendered) -> None:
    labels = {
        part: plain.one("Deployment", part)["spec"]["template"]["metadata"]["labels"]
        for part in ("api", "runner", "worker")
    }
    selectors = {part: plain.one("Deployment", part)["spec"]["selector"]["matchLabels"] for part in labels}
    selectors |= {
        f"{part} policy": plain.one("NetworkPolicy", part)["spec"]["podSelector"]["matchLabels"] for part in labels
    }
    selectors |= {
        f"{part} budget": plain.one("PodDisruptionBudget", part)["spec"]["selector"]["matchLabels"]
        for part in ("api", "runner")
    }
    selectors["api service"] = plain.one("Service")["spec"]["selector"]
    for owner, selector in selectors.items():
        chosen = [part for part, given in labels.items() if selector.items() <= given.items()]
        assert chosen == [owner.split()[0]]


def test_secrets_are_references_and_settings_are_those_of_the_server(full: Rendered) -> None:
    settings = full.one("ConfigMap")["data"]
    assert Settings.from_env(settings).engine_router_url == "http://gateway"
    assert Settings.from_env(settings).adapters_dir == Path("/data/adapters")
    assert settings == full.one("ConfigMap", "migrate")["data"]
    for _, pod in full.pods():
        for container in pod["containers"]:
            assert {"secretRef": {"name": "sage"}} in container["envFrom"]
            assert "env" not in container


def test_a_hosted_model_needs_no_model_server_of_ones_own_and_its_key_is_in_the_secret(plain: Rendered) -> None:
    hosted = rendered(HOSTED)
    settings = Settings.from_env(hosted.one("ConfigMap")["data"])
    assert (settings.model_url, settings.model) == ("https://api.example.com/v1", "wise-1")
    service = hosted.one("Service", "model-server")
    assert settings.engine_urls == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    pod = hosted.one("Deployment", "model-server")["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert f"--model={settings.local_model}" in container["command"]
    assert "envFrom" not in container, "it needs no secret"
    allowed = hosted.one("NetworkPolicy", "model-server")["spec"]["ingress"][0]["from"]
    for part, peer in zip(("api", "runner", "worker"), allowed, strict=True):
        labels = hosted.one("Deployment", part)["spec"]["template"]["metadata"]["labels"]
        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    kinds = [(each["kind"], each["metadata"]["name"]) for each in plain.objects]
    assert not any("model-server" in name for _, name in kinds)


def test_a_change_of_settings_restarts_pods() -> None:
    changed = deepcopy(VALUES)
    changed["settings"]["SAGE_LOG_LEVEL"] = "debug"
    hashes = [
        rendered(values).one("Deployment", "api")["spec"]["template"]["metadata"]["annotations"]
        for values in (VALUES, changed)
    ]
    assert hashes[0]["settings-hash"] != hashes[1]["settings-hash"]


def test_a_worker_with_gpus_has_their_image_limit_and_nodes(plain: Rendered, full: Rendered) -> None:
    pod = full.one("Deployment", "worker")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == "registry.example.org/team/sage-server/trainer-cuda:0.2.0"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2, "memory": "16Gi"}
    assert (pod["runtimeClassName"], pod["nodeSelector"]) == ("nvidia", {"gpu": "h200"})
    without = plain.one("Deployment", "worker")["spec"]["template"]["spec"]["containers"][0]
    assert without["image"] == "sage-server/trainer:0.1.0"
    assert without["resources"]["limits"] == {"memory": "16Gi"}


def test_only_the_api_is_reached_and_no_pod_reaches_what_is_blocked(plain: Rendered, full: Rendered) -> None:
    assert plain.one("NetworkPolicy", "api")["spec"]["ingress"] == [{"ports": [{"port": "http"}]}]
    for part in ("runner", "worker"):
        assert plain.one("NetworkPolicy", part)["spec"]["ingress"] == []
    teams = [
        peer["namespaceSelector"]["matchLabels"]["team"]
        for peer in full.one("NetworkPolicy", "api")["spec"]["ingress"][0]["from"]
    ]
    assert teams == ["web", "ops"]
    for part in ("api", "runner", "worker"):
        blocks = full.one("NetworkPolicy", part)["spec"]["egress"][1]["to"][0]["ipBlock"]
        assert blocks["except"] == ["169.254.0.0/16", "10.0.0.0/24"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"secret": ""}, "secret: name a Secret"),
        ({"settings": {}}, "settings.ENGINE_URLS: name the model servers"),
        (
            {"settings": VALUES["settings"] | {"DATABASE_URL": "postgresql://x"}},
            "settings.DATABASE_URL: put it in",
        ),
        ({"settings": HOSTED["settings"] | {"SAGE_MODEL_KEY": "sk"}}, "settings.SAGE_MODEL_KEY: put it in"),
        ({"settings": {"SAGE_MODEL_URL": "https://api.example.com/v1"}}, "settings.SAGE_MODEL: name the model at"),
        ({"settings": VALUES["settings"] | {"SAGE_PORT": "9000"}}, "settings.SAGE_PORT: the chart sets it"),
        ({"settings": VALUES["settings"] | {"SAGE_RUNNERS": 3}}, "/settings/SAGE_RUNNERS"),
        ({"runner": {"replicas": -1}}, "/runner/replicas"),
        ({"runners": {"replicas": 1}}, "runners"),
        ({"adapters": {"size": "much"}}, "/adapters/size"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], words: str) -> None:
    assert words in examined(VALUES | change)["error"]
