"""Validates the functions of a rollout before they are kept as skills. Pure."""

from collections.abc import Collection

import msgspec

from app.apis.catalog import Catalog
from app.base import plugins
from app.base.untrusted import compiled, parse
from app.base.values import Trajectory
from app.skills.extract import MAX_CHARS, Draft, extract
from app.skills.skill_names import name_objection


class ValidatedDrafts(msgspec.Struct, frozen=True):
    """The drafts of one rollout: those that every check accepts, and the objections to the others."""

    kept: tuple[Draft, ...]
    refused: dict[str, list[str]]  # name -> objections


def validate_drafts(trajectory: Trajectory, catalog: Catalog) -> ValidatedDrafts:
    """Extract and check the functions that a rollout wrote."""
    reasons = {draft: refusals(draft, trajectory, catalog) for draft in extract(trajectory)}
    kept = tuple(draft for draft, against in reasons.items() if not against)
    return ValidatedDrafts(kept, {draft.name: against for draft, against in reasons.items() if against})


def refusals(
    draft: Draft, trajectory: Trajectory, catalog: Catalog, *, without: Collection[str] = ()
) -> list[str]:
    """The objections of all registered checks, in the order of their names; empty if the draft is accepted.

    `without` are the names of checks that do not apply.

    A check is a function `(Draft, Trajectory, Catalog) -> Iterable[str]` of the entry-point group
    `sage.skill_checks`. It may rely on a draft that compiles.
    """
    if len(draft.source) > MAX_CHARS:
        return ["It is too long to be analysed."]
    if compiled(draft.source) is None:
        return ["It does not compile."]
    if parse(draft.source) is None:
        return ["It is too deep to be analysed."]
    if (reason := name_objection(draft.name)) is not None:
        return [reason]
    checks = plugins.load_all("sage.skill_checks")
    used = [check for name, check in checks.items() if name not in without]
    return [reason for check in used for reason in check(draft, trajectory, catalog)]
