"""The hosted models of projects: their rows, with keys that are only read to be sent, and how each is opened.

One is reached within the network that whoever named its URL may reach, and its calls are charged to the
project.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from ssl import SSLContext
from typing import Any, Self
from uuid import UUID

import httpx
import msgspec
from sqlalchemy import func, select, union_all, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.calls.network import Certificates, OwnServices, PublicNetwork
from app.base.encryption import KeyRing
from app.base.errors import ConflictError, EngineError, NotFoundError
from app.base.settings import Settings
from app.base.values import Json, hosted, hosted_id
from app.db import tables
from app.db.database import TRANSIENT, Sessions, keys_of
from app.db.queries import in_array
from app.db.tables import SERVING_STATES, ReleaseState
from app.engine.hosted.client import Abilities, OpenAiChatModel, Remedies, WithheldError, open_http
from app.engine.protocol import ChatAnswer, ChatModel, Tokens, Told
from app.engine.tokenizer import Message
from app.projects import usage
from app.releases import store as releases

_row = tables.HostedModel
_SHOWN = 3  # tasks that an error names
_CHARGE_SECONDS = 60.0


async def add(
    session: AsyncSession, project_id: UUID, name: str, key: str | None, **columns: Any
) -> tables.HostedModel:
    """Raises ConflictError if the name is taken."""
    given = {"project_id": project_id, "name": name, "key": _sealed(session, key), **columns}
    row: tables.HostedModel | None = await session.scalar(
        insert(_row).values(**given).on_conflict_do_nothing().returning(_row)
    )
    if row is None:
        raise ConflictError(f"this project has a model named {name!r} already: change it, or choose another name")
    return row


async def of_project(session: AsyncSession, project_id: UUID) -> Sequence[tables.HostedModel]:
    """Ordered by name."""
    return (await session.scalars(select(_row).where(_row.project_id == project_id).order_by(_row.name))).all()


async def get(session: AsyncSession, project_id: UUID, name: str, *, lock: bool = False) -> tables.HostedModel:
    """Raises NotFoundError. With `lock`, no release of the project changes meanwhile, and none is proposed."""
    query = select(_row).where(_row.project_id == project_id, _row.name == name)
    if lock:
        await releases.lock(session, project_id)  # always before the row, so that none waits for one that waits
        query = query.with_for_update()
    row = await session.scalar(query.execution_options(populate_existing=True))
    if row is None:
        raise NotFoundError(f"this project has no hosted model named {name!r}; GET /v1/hosted-models lists them")
    return row


async def by_id(session: AsyncSession, model_id: UUID) -> tables.HostedModel:
    """Raises NotFoundError."""
    row = await session.get(_row, model_id, populate_existing=True)
    if row is None:
        raise NotFoundError("the hosted model was removed: let another release serve")
    return row


async def names(session: AsyncSession, ids: Collection[UUID]) -> dict[UUID, str]:
    """By id, of those that there are."""
    found = await session.execute(select(_row.id, _row.name).where(in_array(_row.id, ids)))
    return {row.id: row.name for row in found}


async def change(session: AsyncSession, row: tables.HostedModel, **columns: Any) -> None:
    """Of a locked row; `key` is plain. Raises ConflictError for another model where a release was made with this
    one: what serves never changes.
    """
    if columns.get("model", row.model) != row.model and (used := await _releases(session, row.id, *ReleaseState)):
        raise ConflictError(
            f"release {used[0]} was made with {row.model}: add the other model under a name of its own"
        )
    if "key" in columns:
        columns["key"] = _sealed(session, columns["key"])
    for name, value in columns.items():
        setattr(row, name, value)
    await session.flush()


async def delete(session: AsyncSession, project_id: UUID, name: str) -> tables.HostedModel:
    """Its name stays with its releases. Raises NotFoundError, and ConflictError while a release serves with it, or
    tasks are to be done with it: what they cost is counted by its prices.
    """
    row = await get(session, project_id, name, lock=True)
    if used := await _releases(session, row.id, *releases.SERVING):
        raise ConflictError(f"release {used[0]} serves with the model {name}: activate another release first")
    if left := await _unfinished(session, row.id):
        which = ", ".join(map(str, left[:_SHOWN])) + (f" and {len(left) - _SHOWN} more" if left[_SHOWN:] else "")
        raise ConflictError(
            f"tasks still run on the model {name}, or wait for it: let these end, or cancel them: {which}"
        )
    release = tables.Release
    await session.execute(update(release).where(release.model == hosted(row.id)).values(removed_model=name))
    await session.delete(row)
    await session.flush()
    return row


async def note(
    session: AsyncSession, row: tables.HostedModel, abilities: dict[str, Json], failure: str | None
) -> None:
    """What the latest request to the model, as `row` has it, taught, and why it failed; None: it did not. Nothing
    if it was put elsewhere meanwhile.
    """
    same = (_row.id == row.id, _row.url == row.url, _row.model == row.model)
    await session.execute(update(_row).where(*same).values(abilities=abilities, failure=failure))


async def failing(session: AsyncSession) -> Sequence[UUID]:
    """The projects that a hosted model serves whose latest request failed."""
    return tuple({row.project_id for row in await serving(session) if row.failure is not None})


async def serving(session: AsyncSession) -> Sequence[tables.HostedModel]:
    """Those of active releases and canaries, of all projects."""
    release = tables.Release
    serve = [  # a query for each state, as there is an index for each
        select(release.model).where(release.state == state, ~releases.is_local(release.model))
        for state in SERVING_STATES
    ]
    named = await session.scalars(union_all(*serve))
    which = in_array(_row.id, [each for each in map(hosted_id, named) if each is not None])
    return (await session.scalars(select(_row).where(which).order_by(_row.created_at))).all()


async def others(session: AsyncSession, url: str, model: str) -> Sequence[tuple[str, tables.Release]]:
    """The active releases with another model than this one at a URL, each after the name of its project."""
    same = await session.scalars(select(_row.id).where(_row.url == url, _row.model == model))
    theirs = {hosted(each) for each in same}
    served = await releases.serving(session)
    return [each for each in served if each[1].state is ReleaseState.ACTIVE and each[1].model not in theirs]


async def known(session: AsyncSession, url: str, model: str) -> dict[str, Any] | None:
    """The abilities of a model at a URL, by the latest probe for any project."""
    same = select(_row.abilities).where(_row.url == url, _row.model == model, _row.abilities.is_not(None))
    found: dict[str, Any] | None = await session.scalar(same.order_by(_row.probed_at.desc()).limit(1))
    return found


async def renew(session: AsyncSession, url: str, model: str, abilities: dict[str, Json]) -> None:
    """Note a good probe of the model that the settings name, in all projects that have it."""
    named = (_row.url == url, _row.model == model, _row.trusted, _row.key.is_(None))
    await session.execute(update(_row).where(*named).values(probed(abilities)))


def probed(abilities: dict[str, Json]) -> dict[str, Any]:
    """The columns that a good probe changes."""
    return {"abilities": abilities, "probed_at": func.clock_timestamp(), "failure": None}


def about(row: tables.HostedModel) -> dict[str, Json]:
    """For the audit log."""
    shown: dict[str, Json] = {
        name: getattr(row, name) for name in ("name", "url", "model", "price_in", "price_out")
    }
    return {**shown, "key": row.key is not None}


def _sealed(session: AsyncSession, key: str | None) -> str | None:
    return keys_of(session).encrypt(key) if key else None


async def propose(session: AsyncSession, project_id: UUID, name: str) -> tables.Release:
    """Add a candidate release whose policy is the project's hosted model of this name. Raises NotFoundError."""
    row = await get(session, project_id, name, lock=True)
    return await releases.propose(session, project_id, hosted(row.id))


async def _releases(session: AsyncSession, model_id: UUID, *states: ReleaseState) -> Sequence[int]:
    """The numbers of those with it, newest first."""
    release = tables.Release
    query = select(release.number).where(release.model == hosted(model_id), release.state.in_(states))
    return (await session.scalars(query.order_by(release.number.desc()))).all()


async def _unfinished(session: AsyncSession, model_id: UUID) -> Sequence[UUID]:
    """The tasks that wait for it, or run on it, once whoever is pinning one to its releases has done so."""
    release, task = tables.Release, tables.Task
    of_it = select(release.id).where(release.model == hosted(model_id))
    ids = (await session.scalars(of_it.order_by(release.id).with_for_update())).all()
    unfinished = select(task.id).where(in_array(task.release_id, ids), task.finished_at.is_(None))
    return (await session.scalars(unfinished.order_by(task.created_at))).all()


class HostedModels(msgspec.Struct, frozen=True):
    """The rules: a URL that a project's own key named leads to no service of the deployment, and to private
    addresses only where they are open. One that a key for all projects named may lead anywhere.
    """

    private: bool = True
    own: OwnServices = OwnServices()
    tls: SSLContext | None = None
    seconds: float = 600.0  # for one answer
    url: str = ""  # of the settings' own model, whose key is in no database
    model: str = ""
    key: str = ""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Raises SettingError for authorities that cannot be read."""
        own, tls = OwnServices.of(settings), Certificates.of(settings).context()
        named = (settings.model_url, settings.model, settings.model_key) if settings.model_url else ()
        return cls(settings.allow_private_hosts, own, tls, settings.engine_timeout_seconds, *named)

    def key_of(self, row: tables.HostedModel, keys: KeyRing) -> str:
        """ "" without one. Raises SettingError if it cannot be decrypted."""
        if row.key is None:
            return self.key if self.names(row) else ""
        return keys.decrypt(row.key)

    def names(self, row: tables.HostedModel) -> bool:
        """Whether it is the settings' own model, with their key."""
        return row.trusted and row.key is None and (row.url, row.model) == (self.url, self.model)

    @asynccontextmanager
    async def open(
        self, sessions: Sessions, model_id: UUID, /, patience: float = 120.0, *, told: Told | None = None
    ) -> AsyncIterator[ChatModel]:
        """What is found out about it, and its failures, are noted, also while it is asked again, as is `told`.
        `patience` are seconds of retries.

        Raises NotFoundError, or SettingError for a key that cannot be decrypted.
        """
        async with sessions() as session:
            row = await by_id(session, model_id)
            key = self.key_of(row, keys_of(session))
        known = msgspec.convert(row.abilities or {}, Abilities)
        async with self._http(trusted=row.trusted) as http:
            model = OpenAiChatModel(
                row.url,
                row.model,
                key=key,
                abilities=known,
                http=http,
                timeout=self.seconds,
                patience=patience,
                has_answered=True,  # when it was added
            )
            yield _Noted(model, sessions, row, told)

    @asynccontextmanager
    async def connect(
        self,
        url: str,
        model: str,
        key: str,
        *,
        trusted: bool,
        patience: float,
        remedies: Remedies = Remedies(),  # noqa: B008
    ) -> AsyncIterator[OpenAiChatModel]:
        """One to be probed."""
        async with self._http(trusted=trusted) as http:
            yield OpenAiChatModel(url, model, key=key, http=http, patience=patience, remedies=remedies)

    def _http(self, *, trusted: bool) -> httpx.AsyncClient:
        return open_http(None if trusted else PublicNetwork(private=self.private, own=self.own), self.tls)


@asynccontextmanager
async def charged(
    opened: AbstractAsyncContextManager[ChatModel],
    sessions: Sessions,
    project_id: UUID,
    owner: str,
    model_id: UUID,
    in_task: Callable[[], Tokens] | None = None,
) -> AsyncIterator[ChatModel]:
    """The opened model. On leaving, however that comes about, its project is charged for whatever it was asked,
    answers that broke off included; but for what a task has recorded as its own, if it is asked for one. Otherwise
    it is charged each minute already.
    """

    async def charge(used: Tokens) -> None:
        async with sessions.begin() as session:
            tokens, of_task = (used.prompt, used.generated), in_task is not None
            await usage.charge(session, project_id, owner, model_id, *tokens, of_task=of_task)

    async with opened as model:
        counting = _Counting(model, charge if in_task is None else None)
        try:
            yield counting
        finally:
            used = counting.due - in_task() if in_task is not None else counting.due
            if used.prompt or used.generated:
                await charge(used)


class _Front(ABC):
    """A chat model in front of another one."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model

    @property
    def context_length(self) -> int | None:
        return self._model.context_length

    @property
    def lost(self) -> Tokens:
        return self._model.lost

    @property
    def thinks(self) -> bool:
        return self._model.thinks

    async def answer(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, stop_strings: Sequence[str] = ()
    ) -> ChatAnswer:
        return await self._watch(
            self._model.answer(messages, max_tokens=max_tokens, temperature=temperature, stop_strings=stop_strings)
        )

    @abstractmethod
    async def _watch(self, asked: Awaitable[ChatAnswer]) -> ChatAnswer:
        """Wait for the other one's answer."""


class _Counting(_Front):
    """Counts the tokens of a chat model's requests. `charge` gets those of each minute."""

    def __init__(self, model: ChatModel, charge: Callable[[Tokens], Awaitable[None]] | None) -> None:
        super().__init__(model)
        self._charge = charge
        self._answered = self._charged = Tokens()
        self._charged_at = time.monotonic()

    @property
    def due(self) -> Tokens:
        """What was not charged yet."""
        return self._answered + self.lost - self._charged

    async def _watch(self, asked: Awaitable[ChatAnswer]) -> ChatAnswer:
        found = await asked
        self._answered += found.tokens
        if self._charge is not None and time.monotonic() - self._charged_at > _CHARGE_SECONDS:
            due, self._charged_at = self.due, time.monotonic()
            with suppress(*TRANSIENT):  # then it is charged later
                await self._charge(due)
                self._charged += due
        return found


class _Noted(_Front):
    """A chat model of which the database learns what it can do, and why it fails until it answers again."""

    def __init__(
        self, model: OpenAiChatModel, sessions: Sessions, row: tables.HostedModel, told: Told | None
    ) -> None:
        super().__init__(model)
        self._noting, self._sessions, self._row, self._told = model, sessions, row, told
        model.told = self._retried
        self._noted: tuple[Abilities, str | None] = (model.abilities, row.failure)

    async def _watch(self, asked: Awaitable[ChatAnswer]) -> ChatAnswer:
        try:
            found = await asked
        except WithheldError:  # of these messages
            raise
        except EngineError as error:
            await self._note(str(error))
            raise
        await self._note(None)
        return found

    async def _retried(self, failure: str) -> None:
        await self._note(failure)
        if self._told is not None:
            await self._told(failure)

    async def _note(self, failure: str | None) -> None:
        now = (self._noting.abilities, failure)
        if now == self._noted:
            return
        with suppress(*TRANSIENT):
            async with self._sessions.begin() as session:
                await note(session, self._row, msgspec.to_builtins(now[0]), failure)
            self._noted = now
