"""`sage manifests`: objects for routers, from the releases that serve."""

import os
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
import yaml
from jsonschema import Draft202012Validator

from app.base.errors import InvalidError
from app.base.values import hosted
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.releases import store as releases
from app.releases.cluster_manifests import KINDS, ClusterNames, ServedRelease, render_manifests
from tests.processes.test_asgi import run
from tests.support.crd_schemas import CRD_SCHEMAS
from tests.support.rows import project_row

OLD, NEW, OTHER = "0a" * 16, "f1" * 16, "77" * 16
NAMES = ClusterNames(adapters="/data/adapters")
SERVED = [
    ServedRelease("shop", OLD, 97.5),
    ServedRelease("shop", NEW, 2.5),
    ServedRelease("My office", OTHER, 100),
    ServedRelease("new", "base", 100),
]


def parsed(text: str) -> list[dict[str, Any]]:
    """The objects, each of which fits the definition of its kind."""
    found = list(yaml.safe_load_all(text))
    for each in found:
        Draft202012Validator(CRD_SCHEMAS[each["kind"]]).validate(each)
    return found


def render(
    kind: str, served: Sequence[ServedRelease] = SERVED, names: ClusterNames = NAMES
) -> list[dict[str, Any]]:
    return parsed(render_manifests(kind, served, names))


@pytest.mark.parametrize("kind", KINDS)
def test_objects_fit_their_definitions_and_are_the_same_in_any_order(kind: str) -> None:
    assert render(kind)
    assert render_manifests(kind, SERVED, NAMES) == render_manifests(kind, SERVED[::-1], NAMES)
    assert render(kind, []) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_hosted_model_needs_no_router(kind: str) -> None:
    hosted_ones = [
        ServedRelease("claude", hosted(UUID(int=7)), 100),
        ServedRelease("shop", hosted(UUID(int=8)), 5),
    ]
    assert render(kind, [*SERVED, *hosted_ones]) == render(kind)


def test_a_canary_has_its_share_as_a_weight() -> None:
    rewrites = {each["metadata"]["name"]: each["spec"] for each in render("llm-d")}
    assert list(rewrites) == ["sage-my-office-19c4bd52", "sage-new", "sage-shop"]
    assert rewrites["sage-shop"] == {
        "poolRef": {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "vllm"},
        "rules": [
            {
                "matches": [{"model": {"type": "Exact", "value": "shop"}}],
                "targets": [
                    {"modelRewrite": OLD, "weight": 975_000},
                    {"modelRewrite": NEW, "weight": 25_000},
                ],
            }
        ],
    }
    assert rewrites["sage-new"]["rules"][0]["targets"] == [{"modelRewrite": "base", "weight": 1_000_000}]


def test_a_tiny_share_has_the_least_weight_and_none_has_no_target() -> None:
    served = [ServedRelease("p", OLD, 100), ServedRelease("p", NEW, 1e-9), ServedRelease("p", OTHER, 0)]
    [rewrite] = render("llm-d", served)
    weights = {each["modelRewrite"]: each["weight"] for each in rewrite["spec"]["rules"][0]["targets"]}
    assert weights == {OLD: 1_000_000, NEW: 1}


def test_aibrix_serves_each_adapter_under_its_hash() -> None:
    objects = render("aibrix", names=ClusterNames(adapters="/data/adapters", base="qwen", namespace="llm"))
    assert [each["metadata"]["name"] for each in objects] == [OLD, OTHER, NEW]
    assert {each["metadata"]["namespace"] for each in objects} == {"llm"}
    assert objects[0]["spec"] == {
        "baseModel": "qwen",
        "podSelector": {
            "matchLabels": {"model.aibrix.ai/name": "qwen", "adapter.model.aibrix.ai/enabled": "true"}
        },
        "artifactURL": f"/data/adapters/{OLD}",
    }


def test_production_stack_loads_each_adapter_from_its_directory() -> None:
    objects = render("production-stack", names=ClusterNames(adapters="/mnt/a", base="qwen"))
    assert [each["spec"] for each in objects] == [
        {
            "baseModel": "qwen",
            "adapterSource": {"type": "local", "adapterName": model, "adapterPath": f"/mnt/a/{model}"},
        }
        for model in (OLD, OTHER, NEW)
    ]


@pytest.mark.parametrize(
    ("names", "option"),
    [
        (ClusterNames(adapters="data/adapters"), "--adapters"),
        (ClusterNames(adapters="/a", namespace="My_space"), "--namespace"),
        (ClusterNames(adapters="/a", pool="vllm!"), "--pool"),
        (ClusterNames(adapters="/a", pool="p" * 254), "--pool"),
        (ClusterNames(adapters="/a", base="org/model"), "--base"),
        (ClusterNames(adapters="/a", base=""), "--base"),
    ],
)
def test_a_name_that_kubernetes_does_not_accept_is_refused_with_its_option(
    names: ClusterNames, option: str
) -> None:
    with pytest.raises(InvalidError, match=f"^{option} "):
        render_manifests("llm-d", SERVED, names)


async def test_the_command_prints_the_releases_that_serve(committed: Sessions, database_url: str) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
        name = project.name
        first = await releases.active(session, project.id)
        first.model = OLD
        canary = await releases.propose(session, project.id, NEW)
        canary.state, canary.canary_percent = ReleaseState.CANARY, 20.0
        await releases.propose(session, project.id, OTHER)
    env = dict(os.environ) | {"DATABASE_URL": database_url, "SAGE_DATA_DIR": "/srv/sage"}
    command = ("-m", "app.cli", "manifests", "--project", name, "--for")
    code, out, err = await run(*command, "llm-d", env=env)
    assert (code, err) == (0, "")
    [rewrite] = parsed(out)
    assert rewrite["spec"]["rules"][0]["targets"] == [
        {"modelRewrite": OLD, "weight": 800_000},
        {"modelRewrite": NEW, "weight": 200_000},
    ]
    code, out, err = await run(*command, "production-stack", env=env)
    assert (code, err) == (0, "")
    paths = [each["spec"]["adapterSource"]["adapterPath"] for each in parsed(out)]
    assert paths == [f"/srv/sage/adapters/{OLD}", f"/srv/sage/adapters/{NEW}"]


async def test_a_command_names_what_is_wrong(database_url: str) -> None:
    env = dict(os.environ) | {"DATABASE_URL": ""}
    command = ("-m", "app.cli", "manifests", "--for", "llm-d")
    code, _, err = await run(*command, env=env)
    assert code == 1
    assert "DATABASE_URL is not set" in err
    code, _, err = await run(*command, "--project", "nobody", env=env | {"DATABASE_URL": database_url})
    assert code == 1
    assert "no project is named 'nobody'" in err
    code, _, err = await run("-m", "app.cli", "manifests", "--for", "nomad", env=env)
    assert code == 2
    assert "'--for'" in err
