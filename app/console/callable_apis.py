"""What a new task can call: the APIs of its project, with operations, credentials and server variables."""

from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.api_reading import read_api
from app.api.credential_view import CredentialView, shared_credentials
from app.apis.app_view import AppView, OperationView
from app.apis.document_reader import DocumentReader
from app.base.errors import ApiDocumentError
from app.db import api_credentials, apis, tables

_READ = 10  # documents
_SHOWN = 30  # operations of each


class CallableApi(msgspec.Struct, frozen=True, kw_only=True):
    """`total` operations, of which the first are shown. `problem`: its document cannot be read."""

    name: str
    operations: Sequence[OperationView] = ()
    total: int = 0
    reads: frozenset[str] = frozenset()  # names of operations that change nothing
    credentials: Sequence[CredentialView] = ()  # for all tasks
    variables: Mapping[str, str] = {}
    problem: str = ""


class CallableApis(msgspec.Struct, frozen=True):
    """The first APIs of a project, and the names of the others."""

    read: Sequence[CallableApi]
    others: Sequence[str]

    @property
    def variables(self) -> dict[str, str]:
        return {name: value for api in self.read for name, value in api.variables.items()}


async def read_callable(session: AsyncSession, project: tables.Project, reader: DocumentReader) -> CallableApis:
    """Ends the transaction."""
    rows = await apis.of_project(session, project.id)
    stored = await api_credentials.of_project(session, project.id)
    read = [await _read(session, reader, row, stored.get(row.id, [])) for row in rows[:_READ]]
    return CallableApis(read, [row.name for row in rows[_READ:]])


async def _read(
    session: AsyncSession, reader: DocumentReader, row: tables.Api, stored: Sequence[tables.ApiCredential]
) -> CallableApi:
    try:
        app: AppView = await read_api(reader, session, row, row.bind)
    except ApiDocumentError as error:
        return CallableApi(name=row.name, problem=str(error))
    has_token = row.token is not None or row.secret is not None
    return CallableApi(
        name=row.name,
        operations=app.operations[:_SHOWN],
        total=len(app.operations),
        reads=frozenset(name for name, traits in app.traits.items() if traits.safe),
        credentials=shared_credentials(app.schemes, stored, has_token=has_token),
        variables=app.variables,
    )
