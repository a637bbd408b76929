"""Opens the hosted models of projects, within the network that whoever named their URL may reach."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from ssl import SSLContext
from typing import Self
from uuid import UUID

import msgspec

from app.db import hosted_models, models
from app.db.database import TRANSIENT, Sessions, keys_of
from app.engine.hosted.chat_model import ChatAnswer, ChatModel
from app.engine.hosted.client import Abilities, OpenAiChatModel, Remedies, WithheldError, open_http
from app.engine.tokenizer import Message
from app.errors import EngineError
from app.gateway.certificates import Certificates
from app.gateway.own_services import OwnServices
from app.gateway.ssrf import PublicNetwork
from app.security.encryption import KeyRing
from app.settings import Settings


class HostedModels(msgspec.Struct, frozen=True):
    """The rules: a URL that a project's own key named leads to no service of the deployment, and to private
    addresses only where they are open. One that a key for all projects named may lead anywhere.
    """

    private: bool = True
    own: OwnServices = OwnServices()
    tls: SSLContext | None = None
    url: str = ""  # of the settings' own model, whose key is in no database
    model: str = ""
    key: str = ""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Raises SettingError for authorities that cannot be read."""
        own, tls = OwnServices.of(settings), Certificates.of(settings).context()
        named = (settings.model_url, settings.model, settings.model_key) if settings.model_url else ()
        return cls(settings.allow_private_hosts, own, tls, *named)

    def key_of(self, row: models.HostedModel, keys: KeyRing) -> str:
        """ "" without one. Raises SettingError if it cannot be decrypted."""
        is_named = row.trusted and row.key is None and (row.url, row.model) == (self.url, self.model)
        if is_named or row.key is None:
            return self.key if is_named else ""
        return keys.decrypt(row.key)

    @asynccontextmanager
    async def open(
        self, sessions: Sessions, model_id: UUID, *, patience: float = 120.0
    ) -> AsyncIterator[ChatModel]:
        """Its failures are noted. Raises NotFoundError, or SettingError for a key that cannot be decrypted."""
        async with sessions() as session:
            row = await hosted_models.by_id(session, model_id)
            key = self.key_of(row, keys_of(session))
        abilities = msgspec.convert(row.abilities or {}, Abilities)
        async with self.connect(
            row.url, row.model, key, abilities, trusted=row.trusted, patience=patience
        ) as model:
            yield _Noted(model, sessions, model_id, failed=row.failure is not None)

    @asynccontextmanager
    async def connect(
        self,
        url: str,
        model: str,
        key: str,
        abilities: Abilities = Abilities(),  # noqa: B008  frozen
        *,
        trusted: bool,
        patience: float = 120.0,
        remedies: Remedies = Remedies(),  # noqa: B008  frozen
    ) -> AsyncIterator[OpenAiChatModel]:
        network = None if trusted else PublicNetwork(private=self.private, own=self.own)
        async with open_http(network, self.tls) as http:
            yield OpenAiChatModel(
                url, model, key=key, abilities=abilities, http=http, patience=patience, remedies=remedies
            )


class _Noted:
    """A chat model whose failures are noted in the database, until it answers again."""

    def __init__(self, model: OpenAiChatModel, sessions: Sessions, model_id: UUID, *, failed: bool) -> None:
        self._model, self._sessions, self._id, self._failed = model, sessions, model_id, failed

    @property
    def context_length(self) -> int | None:
        return self._model.context_length

    async def answer(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,
        stop_strings: Sequence[str] = (),
    ) -> ChatAnswer:
        try:
            found = await self._model.answer(
                messages, max_tokens=max_tokens, temperature=temperature, stop_strings=stop_strings
            )
        except WithheldError:  # of these messages
            raise
        except EngineError as error:
            self._failed = True
            await self._note(str(error))
            raise
        if self._failed:
            self._failed = False
            await self._note(None)
        return found

    async def _note(self, failure: str | None) -> None:
        with suppress(*TRANSIENT):
            async with self._sessions.begin() as session:
                await hosted_models.note_failure(session, self._id, failure)
