"""One operation of an API: a form of what a person sets for it, in place of what its document says."""

from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.api_operations import (
    Approval,
    Description,
    OperationPatch,
    OperationPlace,
    PythonName,
    find_override,
    operation_states,
    set_for_operation,
)
from app.api.api_reading import read_api
from app.apis.document_reader import DocumentReader
from app.apis.presentation import OperationOverride
from app.base.errors import AppError, ConflictError, InvalidError
from app.db import apis
from app.web.access import Db
from app.web.forms import Form, read_form
from app.web.pages import Visit, Visitor, after_change, page


class OperationFields(msgspec.Struct, frozen=True, kw_only=True):
    """The form of an operation. Of a field that is empty, the document decides."""

    name: PythonName | None = None
    description: Description | None = None
    hidden: bool = False
    safe: bool | None = None
    approval: Approval | None = None
    explore: bool | None = None

    def patch(self) -> OperationPatch:
        return OperationPatch(**msgspec.structs.asdict(self))


class OperationPage(Controller):
    path = "/apis/{api:str}/operations/{operation:str}"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def show(
        self,
        api: FromPath[str],
        operation: FromPath[str],
        visit: Visitor,
        session: Db,
        document_reader: NamedDependency[DocumentReader],
    ) -> Response[str]:
        return await _page(visit, session, document_reader, OperationPlace(api, operation))

    @post()
    async def change(
        self,
        api: FromPath[str],
        operation: FromPath[str],
        request: Request[Any, Any, Any],
        visit: Visitor,
        session: Db,
        document_reader: NamedDependency[DocumentReader],
    ) -> Response[Any]:
        place = OperationPlace(api, operation)
        form = await read_form(request, OperationFields)
        if form.value is None:
            return await _page(visit, session, document_reader, place, form)
        try:
            changed = await set_for_operation(
                session, visit.access, visit.project, place, form.value.patch(), document_reader
            )
        except (ConflictError, InvalidError) as error:
            await session.rollback()
            return await _refused(visit, session, document_reader, place, (form, error))
        return after_change(visit.url(f"/console/apis/{api}") + "#operations", f"changed {changed.name}")


async def _refused(
    visit: Visit,
    session: AsyncSession,
    reader: DocumentReader,
    place: OperationPlace,
    what: tuple[Form[OperationFields], AppError],
) -> Response[str]:
    form, error = what
    return await _page(visit, session, reader, place, form.refused(error))


async def _page(
    visit: Visit,
    session: AsyncSession,
    reader: DocumentReader,
    place: OperationPlace,
    form: Form[OperationFields] | None = None,
) -> Response[str]:
    """`form` is the one that was refused."""
    row = await apis.get(session, visit.project.id, place.api, document=False)
    app = await read_api(reader, session, row, row.bind)
    key, override = find_override(app, place.operation)
    state = next(each for each in operation_states(app) if each.key == key)
    shown = form or Form(values=_entered(override))
    return page(visit, "api_operation.html", api=row.name, operation=state, form=shown, status=shown.status)


def _entered(override: OperationOverride) -> Mapping[str, str]:
    """What is set, as the fields of the form have it."""
    chosen = {None: "", True: "true", False: "false"}
    return {
        "name": override.name,
        "description": override.description,
        "hidden": "true" if override.hidden else "",
        "safe": chosen[override.safe],
        "approval": override.approval or "",
        "explore": chosen[override.explore],
    }
