"""Routes for the operations of an API: what a person sets for one, in place of what its document says."""

import keyword
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

import msgspec
from litestar import Controller, get, patch
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.api_reading import read_api, read_request
from app.apis.app_view import AppView, OperationTraits, OperationView
from app.apis.document_reader import DocumentReader
from app.apis.names import nearest
from app.apis.presentation import OperationOverride, Presentation
from app.base.errors import ConflictError, InvalidError, NotFoundError
from app.db import apis, manifests, tables
from app.db.tables import AuditAction
from app.projects import audit
from app.projects.authorization import find_project
from app.projects.settings import Risk
from app.release import manifest
from app.web.access import Access, Caller, Db
from app.web.fields import ProjectName, Text
from app.web.problem import problems

_OVERRIDES = 2_000  # of one API

Approval: TypeAlias = Literal["always", "write", "first", "never"]
PythonName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z][A-Za-z0-9_]{0,99}(?!\n)$", description="which the agent calls it by", examples=["send"]
    ),
]
Description = Annotated[
    Text, msgspec.Meta(min_length=1, max_length=10_000, description="its first line is shown in lists")
]


class OperationPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out stay as they are; with null, the document decides again."""

    name: PythonName | UnsetType | None = UNSET
    description: Description | UnsetType | None = UNSET
    hidden: bool | UnsetType | None = UNSET
    safe: bool | UnsetType | None = UNSET
    approval: Approval | UnsetType | None = UNSET
    explore: bool | UnsetType | None = UNSET


class OperationState(msgspec.Struct, frozen=True, kw_only=True):
    """An operation, and what a person has `set` for it. One that is `gone` is no longer in the document.

    `approval` says which calls wait for a person: null leaves it to the project's rules and to `risk`. `explore`
    says whether tasks that explore may make calls that change something: null leaves it to the project's
    `explore_writes`.
    """

    name: str
    key: str  #: its operationId, or method and path
    method: str
    path: str
    signature: str
    hidden: bool
    safe: bool | None
    risk: Risk | None
    approval: str | None
    explore: bool | None
    gone: bool = False
    set: list[str]

    @classmethod
    def of(cls, view: OperationView, traits: OperationTraits, app: AppView) -> Self:
        override = app.overridden.get(view.name)
        return cls(
            name=view.name,
            key=traits.key,
            method=view.method,
            path=view.path,
            signature=view.signature,
            hidden=view.name in app.hidden_traits,
            safe=traits.safe,
            risk=traits.risk,
            approval=traits.approval,
            explore=traits.explore,
            set=[] if override is None else _set_fields(override),
        )

    @classmethod
    def of_gone(cls, key: str, override: OperationOverride) -> Self:
        method, _, path = override.place.partition(" ")
        return cls(
            name=override.name or override.was,
            key=key,
            method=method,
            path=path,
            signature="",
            hidden=override.hidden,
            safe=override.safe,
            risk=None,
            approval=override.approval,
            explore=override.explore,
            gone=True,
            set=_set_fields(override),
        )


class OperationPlace(NamedTuple):
    """An operation, by its name, of an API of a project."""

    api: str
    operation: str


class ApiOperationController(Controller):
    path = "/apis/{name:str}/operations"
    tags = ("APIs",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="List the operations of an API", responses=problems(400, 401, 403, 404))
    async def list_operations(
        self,
        name: FromPath[str],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
        project: ProjectName = None,
    ) -> list[OperationState]:
        """With those that are hidden, and those for which something is set though they are gone."""
        owner = await find_project(session, access, project)
        row = await apis.get(session, owner.id, name, document=False)
        return operation_states(await read_api(document_reader, session, row, row.bind))

    @patch(
        "/{operation:str}",
        opt={"scope": "admin"},
        summary="Rename, describe, hide or mark an operation of an API",
        responses=problems(400, 401, 403, 404, 409),
    )
    async def change_operation(
        self,
        name: FromPath[str],
        operation: FromPath[str],
        data: JSONBody[OperationPatch],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
        project: ProjectName = None,
    ) -> OperationState:
        """What is set stays when the document changes or is registered again, and is part of a release as the
        document is. Skills that call the operation in another way are not offered while they do not fit."""
        owner = await find_project(session, access, project)
        return await set_for_operation(
            session, access, owner, OperationPlace(name, operation), data, document_reader
        )


async def set_for_operation(
    session: AsyncSession,
    access: Access,
    owner: tables.Project,
    place: OperationPlace,
    data: OperationPatch,
    reader: DocumentReader,
) -> OperationState:
    """Commits. Raises NotFoundError, InvalidError, ConflictError."""
    row = await apis.get(session, owner.id, place.api, document=False)
    seen = apis.state_of(row)
    before = await read_api(reader, session, row, row.bind)
    key, old = find_override(before, place.operation)
    new = _changed(old, data)
    if data.name is not UNSET and data.name is not None:
        _check_name(before, key, data.name)
    presentation = msgspec.structs.replace(before.presentation, overrides=_with(before, key, (old, new)))
    content = await manifests.document(session, row.id, row.digest)
    await session.commit()  # no transaction is held while a document is read
    request = msgspec.structs.replace(read_request(row, row.bind), presentation=presentation)
    after = await reader.view(request, content, row.digest)
    if new != old:
        await _store(session, access, row, seen, presentation, (old, new))
    return _state(after, key, new)


def _with(
    app: AppView, key: str, change: tuple[OperationOverride, OperationOverride]
) -> dict[str, OperationOverride]:
    """The overrides of an API after one has changed. Raises InvalidError if these are too many."""
    old, new = change
    overrides = {each: one for each, one in app.presentation.overrides.items() if each != key and one != old}
    overrides |= {} if new.is_empty else {key: new}
    if len(overrides) > _OVERRIDES:
        raise InvalidError(f"at most {_OVERRIDES:,} operations of one API can have something set for them")
    return overrides


def operation_states(app: AppView) -> list[OperationState]:
    shown = [OperationState.of(each, app.traits[each.name], app) for each in app.operations]
    hidden = [OperationState.of(each, app.hidden_traits[each.name], app) for each in app.hidden]
    return [*shown, *hidden, *(OperationState.of_gone(key, app.presentation.overrides[key]) for key in app.gone)]


def _state(app: AppView, key: str, override: OperationOverride) -> OperationState:
    return next((each for each in operation_states(app) if each.key == key), OperationState.of_gone(key, override))


def find_override(app: AppView, name: str) -> tuple[str, OperationOverride]:
    """Key of an operation by its name, and what is set for it. Raises NotFoundError."""
    every = app.traits | app.hidden_traits
    if name in every:
        unset = OperationOverride(place=every[name].place, was=name)
        return every[name].key, app.overridden.get(name, unset)
    for key in app.gone:
        override = app.presentation.overrides[key]
        if name in (override.name, override.was):
            return key, override
    raise NotFoundError(f"this API has no operation {name!r}: {nearest(name, every)}")


def _changed(old: OperationOverride, data: OperationPatch) -> OperationOverride:
    empty = OperationOverride(place=old.place, was=old.was)
    given = {field: getattr(data, field) for field in _FIELDS if getattr(data, field) is not UNSET}
    return msgspec.structs.replace(
        old, **{field: getattr(empty, field) if each is None else each for field, each in given.items()}
    )


def _check_name(app: AppView, key: str, name: str) -> None:
    """Raises InvalidError for a name that code cannot use, ConflictError for one that is taken."""
    if keyword.iskeyword(name):
        raise InvalidError(f"name: {name!r} is a keyword of Python; choose another")
    taken = (app.traits | app.hidden_traits).get(name)
    if taken is not None and taken.key != key:
        raise ConflictError(f"name: {name!r} is the name of {taken.place}; choose another")


async def _store(
    session: AsyncSession,
    access: Access,
    row: tables.Api,
    seen: object,
    presentation: Presentation,
    change: tuple[OperationOverride, OperationOverride],
) -> None:
    """In a new release if tasks have begun with the active one. Raises ConflictError if the API is not as it was
    `seen`.
    """
    serving = await manifest.lock_active(session, row.project_id)
    await apis.check_unchanged(session, row.project_id, row.name, seen)
    row.presentation = msgspec.to_builtins(presentation)
    await session.flush()
    await manifest.update_tools(session, serving, [row.name], access.actor)
    before, after = map(msgspec.to_builtins, change)
    detail = {"name": f"{row.name}.{change[0].was}", "before": before, "after": after}
    await audit.add(session, row.project_id, None, access.actor, AuditAction.OPERATION_CHANGED, detail)
    await session.commit()


_FIELDS = OperationPatch.__struct_fields__


def _set_fields(override: OperationOverride) -> list[str]:
    empty = OperationOverride(place=override.place, was=override.was)
    return [field for field in _FIELDS if getattr(override, field) != getattr(empty, field)]
