"""Kubernetes objects that tell a router which adapters serve, from the table of releases.

Each router has a kind of its own: InferenceModelRewrite (llm-d), ModelAdapter (AIBrix), LoraAdapter (vLLM's
production-stack).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import msgspec
import yaml

from app.base.errors import InvalidError, SettingError
from app.base.settings import Settings
from app.base.values import BASE, hosted_id
from app.db.database import open_database
from app.db.tables import ReleaseState
from app.projects import store as projects
from app.releases import store as releases

_LABELS = {"app.kubernetes.io/managed-by": "sage-server"}
_WHOLE = 1_000_000  # the sum of a project's weights, and the highest one that is allowed
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MAX_NAME, _MAX_LABEL = 253, 63


class ServedRelease(msgspec.Struct, frozen=True):
    """A release that new tasks of its project may get."""

    project: str
    model: str  # the content hash of its adapter, or "base"
    share: float  # of the new tasks, in percent


class ClusterNames(msgspec.Struct, frozen=True, kw_only=True):
    """How the cluster names what the objects refer to."""

    adapters: str  # the adapter directory, as model servers see it
    namespace: str = ""  # "": that of the command which applies the objects
    pool: str = "vllm"  # the InferencePool (llm-d)
    base: str = BASE  # a label of the model servers' pods: model.aibrix.ai/name (AIBrix), model (production-stack)


async def served_manifests(
    settings: Settings, *, kind: str, project: str | None, adapters: str | None, **names: str
) -> str:
    """YAML for the router `kind`. `names` are those of the cluster, beside its directory of `adapters`.

    Raises SettingError without a database, NotFoundError for an unknown project, InvalidError for names that
    Kubernetes does not accept.
    """
    if not settings.database_url:
        raise SettingError("DATABASE_URL is not set: name the database of the deployment")
    cluster = ClusterNames(adapters=(adapters or str(settings.adapters_dir)).rstrip("/"), **names)
    async with open_database(settings.database_url) as database, database.sessions() as session:
        only = (await projects.by_name(session, project)).id if project else None
        rows = await releases.serving(session, only)
    canaries = {name: row.canary_percent or 0.0 for name, row in rows if row.state is ReleaseState.CANARY}
    served = []
    for name, row in rows:
        share = canaries.get(name, 0.0)
        is_canary = row.state is ReleaseState.CANARY
        served.append(ServedRelease(name, row.model, share if is_canary else 100 - share))
    return render_manifests(kind, served, cluster)


def render_manifests(kind: str, served: Sequence[ServedRelease], names: ClusterNames) -> str:
    """YAML, the same for the same releases. `kind` is one of `KINDS`. Releases of hosted models need no router.

    Raises InvalidError for names that Kubernetes does not accept.
    """
    _check(names)
    routed = [each for each in served if hosted_id(each.model) is None]
    objects = sorted(KINDS[kind](routed, names), key=lambda each: str(each["metadata"]["name"]))
    return "".join(yaml.safe_dump(each, explicit_start=True, sort_keys=False) for each in objects)


def _llm_d(served: Sequence[ServedRelease], names: ClusterNames) -> list[dict[str, Any]]:
    """A rewrite per project: its name as a model stands for its releases, weighted by their shares."""
    objects = []
    for project in sorted({each.project for each in served}):
        shares = defaultdict[str, float](float)
        for each in served:
            if each.project == project:
                shares[each.model] += each.share
        targets = [
            {"modelRewrite": model, "weight": max(1, round(share / 100 * _WHOLE))}
            for model, share in sorted(shares.items())
            if share
        ]
        spec = {
            "poolRef": {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": names.pool},
            "rules": [{"matches": [{"model": {"type": "Exact", "value": project}}], "targets": targets}],
        }
        api = "inference.networking.x-k8s.io/v1alpha2"
        objects.append(_object(api, "InferenceModelRewrite", _name_of(project), names, spec))
    return objects


def _aibrix(served: Sequence[ServedRelease], names: ClusterNames) -> list[dict[str, Any]]:
    """AIBrix serves an adapter under the name of its object, so that is the hash."""
    selector = {"model.aibrix.ai/name": names.base, "adapter.model.aibrix.ai/enabled": "true"}
    return [
        _object(
            "model.aibrix.ai/v1alpha1",
            "ModelAdapter",
            model,
            names,
            {
                "baseModel": names.base,
                "podSelector": {"matchLabels": selector},
                "artifactURL": f"{names.adapters}/{model}",
            },
            {"model.aibrix.ai/name": model, "model.aibrix.ai/port": "8000"},
        )
        for model in _adapters(served)
    ]


def _production_stack(served: Sequence[ServedRelease], names: ClusterNames) -> list[dict[str, Any]]:
    return [
        _object(
            "production-stack.vllm.ai/v1alpha1",
            "LoraAdapter",
            model,
            names,
            {
                "baseModel": names.base,
                "adapterSource": {
                    "type": "local",
                    "adapterName": model,
                    "adapterPath": f"{names.adapters}/{model}",
                },
            },
        )
        for model in _adapters(served)
    ]


KINDS: dict[str, Callable[[Sequence[ServedRelease], ClusterNames], list[dict[str, Any]]]] = {
    "llm-d": _llm_d,
    "aibrix": _aibrix,
    "production-stack": _production_stack,
}


def _adapters(served: Sequence[ServedRelease]) -> list[str]:
    return sorted({each.model for each in served} - {BASE})


def _object(
    api: str, kind: str, name: str, names: ClusterNames, spec: dict[str, Any], labels: dict[str, str] | None = None
) -> dict[str, Any]:
    namespace = {"namespace": names.namespace} if names.namespace else {}
    metadata = {"name": name, **namespace, "labels": {**_LABELS, **(labels or {})}}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def _name_of(project: str) -> str:
    """A name for an object of the project, unique even if Kubernetes does not accept the project's own.

    >>> _name_of("demo"), _name_of("My project")
    ('sage-demo', 'sage-my-project-cc42295b')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", project.lower()).strip("-")
    if plain == project and len(project) <= _MAX_LABEL:
        return f"sage-{project}"
    digest = sha256(project.encode()).hexdigest()[:8]
    return f"sage-{plain[:_MAX_LABEL]}-{digest}".replace("--", "-")


def _check(names: ClusterNames) -> None:
    for option, name in (("--namespace", names.namespace), ("--pool", names.pool)):
        if name and not (_DNS_NAME.fullmatch(name) and len(name) <= _MAX_NAME):
            raise InvalidError(f"{option} {name!r}: Kubernetes names have lowercase letters, digits, - and .")
    if not (_LABEL_VALUE.fullmatch(names.base) and len(names.base) <= _MAX_LABEL):
        raise InvalidError(f"--base {names.base!r}: labels have up to 63 letters, digits, -, _ and .")
    if not names.adapters.startswith("/"):
        raise InvalidError(f"--adapters {names.adapters!r}: write the whole path, as model servers see it")
