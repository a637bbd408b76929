"""Opens the hosted models of projects, within the network that whoever named their URL may reach."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from ssl import SSLContext
from typing import Self
from uuid import UUID

import httpx
import msgspec

from app.apis.calls.network import Certificates, OwnServices, PublicNetwork
from app.base.encryption import KeyRing
from app.base.errors import EngineError
from app.base.settings import Settings
from app.db import hosted_models, tables
from app.db.database import TRANSIENT, Sessions, keys_of
from app.engine.hosted.client import Abilities, OpenAiChatModel, Remedies, WithheldError, open_http
from app.engine.protocol import ChatAnswer, ChatModel, Tokens, Told
from app.engine.tokenizer import Message
from app.projects import usage

_CHARGE_SECONDS = 60.0


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
            row = await hosted_models.by_id(session, model_id)
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
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,
        stop_strings: Sequence[str] = (),
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
                await hosted_models.note(session, self._row, msgspec.to_builtins(now[0]), failure)
            self._noted = now
