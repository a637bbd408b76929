"""What skills gain from a finished task: the functions that it wrote are kept, with their manifest and provenance,
and skills that have not proved themselves are run again on its recorded calls.
"""

import ast
import asyncio
import json
from collections.abc import Iterator, Sequence

import httpx
import structlog

from app.apis.calls.gateway import Gateway
from app.apis.calls.skill_guard import GuardedSkill, SkillGuard
from app.apis.catalog import Catalog
from app.base.errors import SandboxError
from app.base.secrets import SecretValues
from app.base.untrusted import syntax_tree
from app.base.values import Call, Json, SkillCall, Trajectory
from app.db import lease, results, tables
from app.db.database import Sessions, reading
from app.db.tables import LIVE_SKILLS, NEXT_SKILL_STATE, SkillState
from app.sandbox.protocol import Function, Sandbox, SessionLimits
from app.skills import evidence, offers
from app.skills import store as skills
from app.skills.admission import stored_manifest
from app.skills.checks import validate_drafts
from app.skills.extract import Draft
from app.skills.library import Library
from app.skills.provenance import SkillOrigin, manifests_of, taints_of

log = structlog.get_logger(__name__)

_HOLDS_SECRET = "it holds a secret that this task has met"
_ENOUGH = 3  # tasks on whose calls a skill was replayed; more of its own would prove little
_REPEATED = 3  # calls of one skill that are run again
_OTHERS = 2  # versions of one name, besides the one that the task used


class SkillKeeping:
    """Decides which functions of a task become skills."""

    def __init__(self, sessions: Sessions, library: Library) -> None:
        self._sessions = sessions
        self._library = library

    async def keep(
        self, row: tables.Task, owner: str, catalog: Catalog, trajectory: Trajectory, secrets: SecretValues
    ) -> None:
        """Store the functions that the task wrote and that pass the checks; a resumed task stores each once.

        Raises ConflictError if another runner has the task.
        """
        validated = await asyncio.to_thread(validate_drafts, trajectory, catalog)
        kept = [draft.name for draft in validated.kept]
        said = secrets.mask_fields({"kept": kept, "refused": validated.refused})
        log.debug("skills of a task", task=str(row.id), **said)
        if not kept:
            return
        async with reading(self._sessions) as session:
            already = {skill.name for skill in await skills.made_by(session, row.id)}
            shown = await offers.to_task(session, row.id)
        drafts = without_secrets(validated.kept, secrets)
        if refused := [draft for draft in validated.kept if draft not in drafts]:
            await self._refuse(row, refused, secrets)
        drafts = [draft for draft in drafts if draft.name not in already]
        if not drafts:
            return
        unproven = [skill.name for _, skill in shown if _last_live(skill) is SkillState.QUARANTINED]
        provenance = SkillOrigin(
            task_id=row.id,
            release_id=row.release_id,
            scenario=row.scenario,
            principal=row.principal,
            manifests=await asyncio.to_thread(manifests_of, drafts, trajectory, catalog),
            taints=await asyncio.to_thread(taints_of, drafts, trajectory, catalog, unproven),
            catalog=catalog,
        )
        stored = await self._library.save(
            row.project_id, drafts, provenance, claim=lambda session: lease.hold(session, row.id, owner)
        )
        async with self._sessions.begin() as session:
            for offer in stored:
                await results.append(session, row.id, "skill", offers.skill_event("written", offer))

    async def _refuse(self, row: tables.Task, drafts: Sequence[Draft], secrets: SecretValues) -> None:
        """Report skills that hold a secret, without it."""
        async with self._sessions.begin() as session:
            for draft in drafts:
                data = {"status": "refused", "name": secrets.mask(draft.name), "reason": _HOLDS_SECRET}
                log.warning("a skill was refused", task=str(row.id), name=data["name"], reason=_HOLDS_SECRET)
                await results.append(session, row.id, "skill", data)


def without_secrets(drafts: Sequence[Draft], secrets: SecretValues) -> list[Draft]:
    """The drafts that hold no secret of the task, in any part that is stored."""
    return [draft for draft in drafts if secrets.mask_value(draft) == draft]


def _last_live(skill: tables.Skill) -> SkillState | None:
    """The state of a skill, or the one that it left when it was taken out meanwhile."""
    return skill.state if skill.state in LIVE_SKILLS else skill.former


class SkillReplays:
    """Runs the replays that a finished task makes possible. Nothing is sent to an API."""

    def __init__(
        self, sessions: Sessions, sandbox: Sandbox, limits: SessionLimits, client: httpx.AsyncClient
    ) -> None:
        self._sessions = sessions
        self._sandbox = sandbox
        self._limits = limits
        self._client = client

    async def run(self, row: tables.Task, catalog: Catalog, trajectory: Trajectory) -> None:
        """Replay the skills that the task used, and record the results as evidence.

        `trajectory` has its secrets: calls are compared with their exact values.
        """
        used = {offer.skill_id: offer.name for offer in trajectory.used()}
        if not used:
            return
        async with reading(self._sessions) as session:
            rows = await skills.of_ids(session, used)
            others = await evidence.in_probation(session, row.project_id, list(used.values()))
            known = await evidence.matched_often(session, used, _ENOUGH)
        for skill in [each for each in rows if each.state in NEXT_SKILL_STATE and each.id not in known]:
            await self._replay(row, catalog, trajectory, skill, own=True)
        for name in used.values():
            newest = [each for each in others if each.name == name and each.id not in used][:_OTHERS]
            for skill in newest:
                await self._replay(row, catalog, trajectory, skill, own=False)

    async def _replay(
        self, row: tables.Task, catalog: Catalog, trajectory: Trajectory, skill: tables.Skill, *, own: bool
    ) -> None:
        """Of another version only a match counts: it may rightly do the same work with other calls."""
        chosen = list(repeatable(trajectory, skill.name))[:_REPEATED]
        if not chosen:
            return
        try:
            matched = [await self._matches(row, catalog, skill, *each) for each in chosen]
        except SandboxError as error:
            log.warning("a skill could not be replayed", task=str(row.id), skill=str(skill.id), cause=str(error))
            return
        if own or all(matched):
            async with self._sessions.begin() as session:
                await evidence.add_replay(session, row.id, skill.id, all(matched))

    async def _matches(
        self, row: tables.Task, catalog: Catalog, skill: tables.Skill, call: SkillCall, made: Sequence[Call]
    ) -> bool:
        """Whether the skill makes exactly these calls again, and returns."""
        gateway = Gateway(catalog, self._client)
        gateway.guard = SkillGuard({skill.name: GuardedSkill.of(stored_manifest(skill), skill.source)})
        gateway.replay(made, closed=True)
        session = await self._sandbox.open(
            gateway.names(),
            gateway,
            self._limits,
            prelude=[Function(skill.name, skill.source)],
            seed=row.seed,
            now=row.started_at,
        )
        try:
            observation = await session.run(invocation(skill.source, skill.name, call.arguments))
        finally:
            await session.close()
        returned = [each.returned for each in observation.skill_calls] == [True]
        return returned and gateway.in_doubt is None and len(gateway.take_calls()) == len(made)


def repeatable(trajectory: Trajectory, name: str) -> Iterator[tuple[SkillCall, tuple[Call, ...]]]:
    """Calls of a skill that returned and whose arguments are known, with the API calls made in each."""
    made = {call.seq: call for call in trajectory.calls}
    for turn in trajectory.turns:
        for call in turn.skill_calls:
            if call.name == name and call.returned and call.exact and call.first_call is not None:
                seqs = range(call.first_call, call.first_call + call.calls)
                if all(seq in made for seq in seqs):
                    yield call, tuple(made[seq] for seq in seqs)


def invocation(source: str, name: str, arguments: dict[str, Json]) -> str:
    """Code that calls a function with arguments by parameter.

    >>> invocation("def f(a: int, *rest: int, b: int = 0) -> None: ...", "f", {"a": 1, "rest": [2], "b": 3})
    'import json\\nf(*json.loads("[1, 2]"), **json.loads("{\\\\"b\\\\": 3}"))'
    """
    return f"import json\n{call_of(source, name, arguments)}"


def call_of(source: str, name: str, arguments: dict[str, Json]) -> str:
    """The call, in one line, as an expression. The module `json` has to be there."""
    functions = [
        node for node in syntax_tree(source).body if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    given, left = functions[-1].args, dict(arguments)
    by_position, positional = [each.arg for each in (*given.posonlyargs, *given.args)], list[Json]()
    rest = left.pop(given.vararg.arg, []) if given.vararg and left.keys() >= set(by_position) else []
    if given.posonlyargs or rest:
        positional = [left.pop(each) for each in by_position if each in left] + rest
    values = (json.dumps(json.dumps(each)) for each in (positional, left))
    return "{}(*json.loads({}), **json.loads({}))".format(name, *values)
