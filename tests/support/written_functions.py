"""Trajectories whose code defines functions, and the catalog of the APIs that these call."""

from uuid import UUID

from app.apis.catalog import App, Catalog, Operation, Parameter
from app.base.values import Call, Offer, Policy, Stop, Task, Trajectory, Turn, Use

ARCHIVE = '''\
def archive_mails_by_person(name: str) -> int:
    """Archive all mails from one person."""
    token = apis.mail.sign_in(password=apis.supervisor.show_passwords()["mail"])["access_token"]
    done = 0
    page = 1
    while rows := apis.mail.fetch_mails(access_token=token, page=page):
        for row in rows:
            if row["sender"] == name:
                apis.mail.file_mail(access_token=token, id=row["id"])
                done += 1
        page += 1
    return done
'''


def ran(code: str, *uses: Use, calls: tuple[str, ...] = ()) -> Turn:
    """A turn whose code was run."""
    text = f"Now.\n```python\n{code}```"
    made = tuple(Call(seq=seq, turn=0, api=api, arguments={}) for seq, api in enumerate(calls))
    return Turn(
        context_ids=(),
        sampled_ids=(),
        logprobs=(),
        text=text,
        outcome="ok",
        uses=uses,
        calls=made,
        observation="ok",
    )


def rollout(instruction: str, *turns: Turn, offered: tuple[Offer, ...] = ()) -> Trajectory:
    task = Task(id=UUID(int=1), instruction=instruction)
    return Trajectory(
        task=task, policy=Policy(), profile="compact", turns=turns, stop=Stop.COMPLETED, offered=offered
    )


def archived(who: str = "iris", source: str = ARCHIVE, name: str = "archive_mails_by_person") -> Trajectory:
    """A rollout that wrote a function for a person's mails and called it successfully."""
    turn = ran(f'{source}result = {name}("{who}")\nprint(result)\n', Use(name, False, 1, 1))
    return rollout(f"archive every one of my mails from {who}", turn)


def offer(name: str, source: str, number: int = 7) -> Offer:
    return Offer(
        skill_id=UUID(int=number), name=name, version=1, signature=f"{name}()", source=source, instruction="before"
    )


def _operation(app: str, name: str, *arguments: str, fields: tuple[str, ...] = ()) -> Operation:
    parameters = tuple(
        Parameter(name=each, wire_name=each, place="query", required=True, schema={}) for each in arguments
    )
    row = {"type": "object", "properties": {field: {"type": "string"} for field in fields}}
    return Operation(
        app=app,
        name=name,
        method="GET",
        path=f"/{name}",
        summary="",
        parameters=parameters,
        returns={"type": "array", "items": row} if fields else {},
    )


def _app(name: str, *operations: Operation) -> App:
    named = {operation.name: operation for operation in operations}
    return App(name=name, description="", server="http://x", variables={}, operations=named, digest="")


CATALOG = Catalog(
    {
        "mail": _app(
            "mail",
            _operation("mail", "sign_in", "password", fields=("access_token",)),
            _operation("mail", "fetch_mails", "access_token", "page", fields=("id", "sender", "folder")),
            _operation("mail", "file_mail", "access_token", "id"),
        ),
        "supervisor": _app("supervisor", _operation("supervisor", "show_passwords")),
    }
)
