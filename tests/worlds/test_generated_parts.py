"""The parts of generated worlds serve one by one: document, services, tasks, wording, programs of any schema."""

from copy import deepcopy
from functools import partial
from random import Random

import httpx
import msgspec

from app.apis.calls.gateway import Gateway
from app.apis.catalog import Catalog
from app.apis.documents.protocols import parse_document
from app.sandbox.protocol import Sandbox, SessionLimits
from tests.support.every_row import every_row
from trainer.worlds.generated.apis import ApiShape, Collection, CrudApi
from trainer.worlds.generated.crud import CRUD_GOALS, CrudAsk, CrudForm, draw_form, draw_records, draw_values
from trainer.worlds.generated.crud_expert import write_program
from trainer.worlds.generated.documents import SUPERVISOR, document_of, supervisor_document
from trainer.worlds.generated.words import Domain, Verb
from trainer.worlds.generated.worlds import AppServices, LiveWorlds, Record, Records, WorldRequest, verify_records

BASE = "http://parts"
BOOKS = Collection(
    domain=Domain(
        noun="book",
        person="author",
        label="shelf",
        values=("north", "south"),
        number="pages",
        date="bought on",
        state="loan state",
        initial="at home",
        verbs=(Verb("lend", "lent"), Verb("sell", "sold")),
        distractors=("binding",),
    ),
    style="snake",
    words={"title": "title", "link": "url"},
    hidden="number",
)
SHAPE = ApiShape(
    auth="key",
    paging="page",
    envelope="data",
    nesting="flat",
    ids="number",
    write="path",
    rows="full",
    style="snake",
)
LIBRARY = CrudApi(
    name="library",
    shape=SHAPE,
    words={
        "list": "list", "show": "get", "create": "add", "update": "edit", "delete": "remove", "info": "get about",
        "version": "version", "id": "id", "data": "items", "page": "page", "header": "X-Key", "error": "error",
    },
    collections=(BOOKS,),
    about="keeps books",
    version="1.2.3",
    others=(),
    has_search=True,
    order=0,
)  # fmt: skip


def book(identity: int, title: str, pages: int) -> Record:
    return Record(id=identity, title=title, person="Ada", label="north", number=pages, state="at home")


def services(records: list[Record]) -> AppServices:
    return AppServices([LIBRARY], {("library", 0): records}, secret="parts", ids=Random(1))


def request(method: str, *path: str, body: object = None, **query: str) -> WorldRequest:
    key = services([]).password("library")
    content = b"" if body is None else msgspec.json.encode(body)
    return WorldRequest(method=method, path=path, query=query, headers={"x-key": key}, body=content)


def test_services_keep_what_a_schema_and_records_say() -> None:
    double = services([book(7, "Dune", 500), book(8, "Emma", 300)])
    assert double.respond("library", request("GET", "books", "8")).content == {
        "id": 8, "title": "Emma", "author": "Ada", "shelf": "north", "pages": 300, "bought_on": "",
        "loan_state": "at home",
    }  # fmt: skip
    added = double.respond("library", request("POST", "books", body={"title": "Ulysses", "pages": 730}))
    assert added.status == 200
    assert double.respond("library", request("POST", "books", "7", "lend")).content["loan_state"] == "lent"
    assert double.respond("library", request("DELETE", "books", "8")).status == 204
    found = double.respond("library", request("GET", "books", "search", q="u"))
    assert [each["title"] for each in found.content["items"]] == ["Dune", "Ulysses"]
    assert double.respond("library", request("POST", "books", body={"pages": 9})).status == 422
    assert double.respond("library", request("GET", "books", "8")).status == 404


def test_a_document_is_made_of_an_api_alone() -> None:
    operations = parse_document("library", document_of(LIBRARY, BASE)).operations
    assert {route.python for route in LIBRARY.routes} == set(operations)
    assert {"list_books", "add_book", "lend_book", "get_about"} < set(operations)


def test_a_task_is_worded_answered_and_carried_out_on_any_records() -> None:
    ask = CrudAsk(form=CrudForm(goal="read", field="number"), main=LIBRARY, at=0, verb=BOOKS.verbs[0])
    records: Records = {("library", 0): [book(7, "Dune", 500), book(8, "Emma", 300)]}
    assert "pages" in ask.word({"title": "Emma"}, "train", Random(2))
    assert ask.answer(records, {"title": "Emma"}) == 300
    lend = msgspec.structs.replace(ask, form=CrudForm(goal="act"))
    lend.carry_out(records, {"title": "Dune"})
    assert [each.state for each in records["library", 0]] == ["lent", "at home"]


async def execute(sandbox: Sandbox, double: AppServices, code: str) -> Gateway:
    """Run the code against services of their own."""
    documents = {"library": document_of(LIBRARY, BASE), SUPERVISOR: supervisor_document(["library"], BASE)}
    catalog = Catalog({app: parse_document(app, each) for app, each in documents.items()})
    served = LiveWorlds(lambda _: double)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url=BASE) as client:
        gateway = Gateway(catalog, client, variables={"world": "parts"})
        session = await sandbox.open(gateway.names(), gateway, SessionLimits())
        await session.run(code)
        await session.close()
    return gateway


async def test_a_task_drawn_from_a_schema_is_solved_by_its_program(sandbox: Sandbox) -> None:
    with every_row() as row:
        for goal in CRUD_GOALS:
            with row(goal):
                rng = Random(f"parts {goal}")
                form = draw_form(BOOKS, rng, dict.fromkeys(CRUD_GOALS, 0) | {goal: 1})
                ask = CrudAsk(form=form, main=LIBRARY, at=0, verb=BOOKS.verbs[0])
                values = draw_values(ask, "train", rng)[0]
                books = draw_records(LIBRARY, BOOKS, "train", 9, rng)
                ask.make_fit(books, values, rng)
                start: Records = {("library", 0): books}
                wanted, double = deepcopy(start), services(deepcopy(books))
                ask.carry_out(wanted, values)
                program = write_program(ask)
                answers = "answer=result" if form.is_answered else ""
                call = program.call(tuple(map(repr, values.values())))
                code = f"{program.function}\n\n{call}\napis.supervisor.complete_task({answers})"
                gateway = await execute(sandbox, double, code)
                judge = partial(verify_records, start, wanted, expected=ask.answer(start, values), completed=True)
                assert gateway.completed
                assert judge(double.records, answer=gateway.answer).success, code
                assert not judge(start, answer=None).success
