"""Activates releases: what that changes, before it is done and after, and the first release of a project.

Model servers load and verify the weights, then the rows change in one transaction. A project begins with the
base model and the adapter that comes with it, if one does, or with the hosted model that the settings name.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Protocol, Self
from uuid import UUID, uuid4

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import AdapterError, ConflictError, EngineError
from app.base.settings import Settings
from app.base.values import Json, Probe, hosted, hosted_id
from app.db import tables
from app.db.database import Sessions
from app.db.lease import swap_lock
from app.db.tables import AuditAction, ReleaseState
from app.engine.adapter_files import AdapterFiles
from app.projects import audit
from app.projects import store as projects
from app.releases import hosted_models, manifest, manifest_store, tools
from app.releases import store as releases
from app.releases.adapter_store import AdapterStore
from app.releases.bundled_adapter import BundledAdapter
from app.releases.manifest import PartChange, SkillsMode
from app.releases.manifest_store import SkillName

ActivationCheck = Callable[[tables.Release, tables.Release | None], None]
"""Raises ConflictError if a release may not replace the active one. Called while both are locked."""

OnActivated = Callable[[AsyncSession, tables.Release, tables.Release | None], Awaitable[None]]
"""Writes more in the transaction that activates a release, given this one and the one that served before."""


class SkillMoves(msgspec.Struct, frozen=True, kw_only=True):
    """The skills that an activation moves, by name and version.

    `superseded` are replaced by a version that is restored; `withdrawn` ones may be written again; `deleted` ones
    belong to the release, and cannot return.
    """

    restored: list[SkillName] = []
    superseded: list[SkillName] = []
    withdrawn: list[SkillName] = []
    deleted: list[SkillName] = []


class DocumentMoves(msgspec.Struct, frozen=True, kw_only=True):
    """APIs by name. Of `missing` ones the release has documents, but they are no longer registered."""

    added: list[str] = []
    removed: list[str] = []
    changed: list[str] = []
    missing: list[str] = []


class ActivationChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What activating a release changes. A part that stays is null or empty.

    `replaces` is the number of the release that retires; null if the release is active already, which changes
    nothing. The `prompt` comes with the version of the server, and changes where a hosted model takes the place of
    a local one (`hosted`), or the reverse (`local`); where it `stays`, `former_prompt` is the hash of another one
    that the release served with. `watch` says what becomes of the watch of the release that retires; `canary` is
    the number of one that goes on, and is compared with this release from then on.
    """

    replaces: int | None = None
    rolls_back: bool = False
    model: PartChange | None = None
    skills: SkillMoves = msgspec.field(default_factory=SkillMoves)
    documents: DocumentMoves = msgspec.field(default_factory=DocumentMoves)
    prompt: Literal["stays", "hosted", "local"] = "stays"
    former_prompt: str | None = None
    watch: Literal["ends", "goes_on"] | None = None
    canary: int | None = None


def rolls_back(release: tables.Release, active: tables.Release) -> bool:
    """Whether activating the release in place of the active one goes back to what served before it."""
    return release.activated_at is not None and release.number < active.number


async def changes_of(
    session: AsyncSession, release: tables.Release, active: tables.Release | None, skills: SkillsMode = "restore"
) -> ActivationChanges:
    """What activating the release in place of the active one would change now."""
    if active is None or active.id == release.id:
        return ActivationChanges()
    moved = {} if skills == "keep" else await manifest.planned(session, release, active)
    canary = await projects.canary_of(session, release.project_id)
    return ActivationChanges(
        replaces=active.number,
        rolls_back=rolls_back(release, active),
        model=None if active.model == release.model else PartChange(active.policy, release.policy),
        skills=SkillMoves(**moved),
        documents=await _documents(session, release, active),
        prompt=(prompt := _prompt(release, active)),
        former_prompt=None if prompt != "stays" or active.prompt in (None, release.prompt) else release.prompt,
        watch=_watch(release, active),
        canary=None if canary is None or canary.id == release.id else canary.number,
    )


async def _documents(session: AsyncSession, release: tables.Release, active: tables.Release) -> DocumentMoves:
    before, after = [await tools.tools_of(session, each) for each in (active, release)]
    there = await manifest_store.api_tools(session, release.project_id)
    both = before.keys() & after.keys() & there.keys()
    return DocumentMoves(
        added=sorted((after.keys() - before.keys()) & there.keys()),
        removed=sorted((before.keys() - after.keys()) & there.keys()),
        changed=sorted(name for name in both if before[name] != after[name]),
        missing=sorted(after.keys() - there.keys()),
    )


def _prompt(release: tables.Release, active: tables.Release) -> Literal["stays", "hosted", "local"]:
    was_hosted, is_hosted = (hosted_id(each.model) is not None for each in (active, release))
    if was_hosted == is_hosted:
        return "stays"
    return "hosted" if is_hosted else "local"


def _watch(release: tables.Release, active: tables.Release) -> Literal["ends", "goes_on"] | None:
    if active.watched_against is None:
        return None
    return "goes_on" if active.model == release.model and active.watched_against != release.id else "ends"


OnChanges = Callable[[ActivationChanges], object]
"""Is given what an activation changes, once no other one can come between. It may still fail."""


class Swapper(Protocol):
    """Loads weights on the model servers."""

    async def swap(self, model: str, probe: Probe | None) -> msgspec.Struct:
        """All servers have loaded and verified the weights when this returns. The report is for the audit log.

        Raises AdapterError or EngineError; then nothing has changed.
        """
        ...


class SupersededError(ConflictError):
    """The baseline of a release is no longer active, so its comparison is void."""


class Promoter:
    """Activates releases, one per project at a time across all processes."""

    def __init__(self, sessions: Sessions, swapper: Swapper, prompt_hash: str) -> None:
        """`prompt_hash` is of the prompt that this process serves with."""
        self._sessions, self._swapper, self._prompt = sessions, swapper, prompt_hash

    async def activate(
        self,
        release_id: UUID,
        actor: str,
        *,
        allow_rejected: bool = False,
        skills: SkillsMode = "restore",
        check: ActivationCheck | None = None,
        on_activated: OnActivated | None = None,
        on_changes: OnChanges | None = None,
    ) -> tables.Release:
        """New tasks are pinned to it when this returns, and the swap is in the audit log. Safe to repeat.

        Raises NotFoundError, ConflictError while another release of the project is being activated, if one was
        while a hosted model was asked, and for a rejected one (unless `allow_rejected`), what `check` raises, and
        AdapterError or EngineError if the servers cannot load or verify it: then nothing has changed but the audit
        log.
        """
        async with self._sessions() as session:
            release = await releases.get(session, release_id)
            await releases.check_can_serve(session, release, allow_rejected=allow_rejected)
            before = await releases.find_active(session, release.project_id)
        if release.state is ReleaseState.ACTIVE:
            return release
        async with self.loaded(release, actor) as report:
            async with self._sessions.begin() as session:
                row = await releases.locked(session, release_id)
                if row.state is ReleaseState.ACTIVE:  # another process was first
                    return row
                previous = await releases.find_active(session, release.project_id)
                if check is not None:
                    check(row, previous)
                _check_unmoved(row, before, previous)
                if on_changes is not None:
                    on_changes(await changes_of(session, row, previous, skills))
                overridden = await releases.check_can_serve(session, row, allow_rejected=allow_rejected)
                row = await releases.activate(session, release_id, allow_rejected=allow_rejected)
                changed = await manifest.record_activation(session, row, previous, self._prompt, skills=skills)
                detail = {"previous": previous.number if previous else None, "swap": report, **changed}
                detail["serves"] = {name: getattr(row, name) for name in ("model", "skills", "tools", "prompt")}
                detail |= overriding(overridden)
                await audit.add(session, row.project_id, row.id, actor, AuditAction.ACTIVATED, detail)
                if on_activated is not None:
                    await on_activated(session, row, previous)
                await session.refresh(row)
            return row

    @asynccontextmanager
    async def loaded(self, release: tables.Release, actor: str) -> AsyncIterator[Json]:
        """The report of the swap, while no other release of the project can be activated.

        A hosted model is asked before: nothing else waits for an endpoint that may be silent. Raises ConflictError
        while another release is being activated, and as `load_weights`.
        """
        asked = await self.load_weights(release, actor) if hosted_id(release.model) is not None else None
        async with swap_lock(self._sessions, release.project_id, release.number):
            yield await self.load_weights(release, actor) if asked is None else asked

    async def load_weights(self, release: tables.Release, actor: str) -> Json:
        """The report of the swap. Raises AdapterError or EngineError, after writing it to the audit log."""
        async with self._sessions() as session:
            probe = await manifest_store.probe(session, release.model)
        try:
            report = await self._swapper.swap(release.model, probe)
        except (AdapterError, EngineError) as error:
            detail = {"error": type(error).__name__, "reason": str(error)}
            about = release.project_id, release.id, actor, AuditAction.REFUSED
            async with self._sessions.begin() as session:
                await audit.add_once(session, *about, detail)
            raise
        return msgspec.to_builtins(report)


def _check_unmoved(release: tables.Release, before: tables.Release | None, active: tables.Release | None) -> None:
    """Raises ConflictError if another release, such as a roll-back, serves than when a hosted model was asked."""
    if hosted_id(release.model) is None or active is None or (before is not None and before.id == active.id):
        return
    raise ConflictError(
        f"release {active.number} was activated while the hosted model of release {release.number} was asked: "
        "activate it again if it is to serve"
    )


def check_baseline(release: tables.Release, active: tables.Release | None) -> None:
    """Raises SupersededError unless the active release has the weights that the gate compared it with, whatever
    its prompt and tools.
    """
    against: Mapping[str, Json] = (release.evidence or {}).get("compared_with", {})
    if active is not None and against.get("model") != active.model:
        raise SupersededError(
            f"it was compared with release {against.get('number')}, but release {active.number}, with other "
            "weights, was activated since: train again, or activate it by hand "
            f"(POST /v1/releases/{release.id}/activate)"
        )


def overriding(rejected: tables.Release | None) -> dict[str, Json]:
    """The detail of an audit entry about a release that serves although its weights were rejected."""
    return {} if rejected is None else {"overrides_rejection_of": rejected.number}


class FirstRelease:
    """Creates projects. Reads the adapter and the base model once."""

    def __init__(
        self,
        bundled: BundledAdapter | None,
        model_dir: Path,
        store: AdapterStore,
        *,
        base: str,
        hosted: tuple[str, str] | None = None,
    ) -> None:
        """`base` is the name of the base model in the deployment, `hosted` the URL and the name of one there."""
        self._hosted = hosted
        self._bundled, self._model_dir, self._store, self._base = bundled, model_dir, store, base
        self._verified: AdapterFiles | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Raises ModelError for a model that is not here."""
        store = AdapterStore(settings.adapters_dir, settings.adapter_store)
        hosted = (settings.model_url, settings.model) if settings.model_url else None
        bundled = None if hosted else BundledAdapter.of(settings.model_dir)
        return cls(bundled, settings.model_dir, store, base=settings.local_model, hosted=hosted)

    async def create_project(self, session: AsyncSession, name: str) -> tables.Project:
        """Create a project, whose release 1 is active. Call it without a transaction: files are read first.

        Raises ConflictError if the name is taken, AdapterError for an adapter that must not be served, and
        StorageError if it cannot be stored.
        """
        if self._hosted is not None:
            return await _create_hosted(session, name, *self._hosted)
        if self._bundled is None:
            return await projects.create(session, name)
        if self._verified is None:
            self._verified = await asyncio.to_thread(self._bundled.verify, self._model_dir)
        model, rank = await self._store.import_adapter(self._bundled.path), self._verified.rank
        await manifest_store.put(session, model, base=self._base, rank=rank, project_id=None)
        return await projects.create(session, name, model, {"reason": f"it comes with {self._bundled.model}"})


async def _create_hosted(session: AsyncSession, name: str, url: str, model: str) -> tables.Project:
    """The model's key stays in the settings."""
    model_id, known = uuid4(), await hosted_models.known(session, url, model)
    project = await projects.create(session, name, hosted(model_id), {"reason": "SAGE_MODEL_URL names it"})
    columns = {"id": model_id, "url": url, "model": model, "trusted": True, "abilities": known}
    await hosted_models.add(session, project.id, _entry_name(model), None, **columns)
    return project


def _entry_name(model: str) -> str:
    """
    >>> _entry_name("qwen/qwen3:8b"), _entry_name("...")
    ('qwen-qwen3-8b', 'model')
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", model).lstrip("-._")[:64] or "model"
