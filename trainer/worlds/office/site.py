"""A site: one customer's deployment of the office suite, with its own names of operations and fields and own
rules.
"""

from functools import lru_cache
from random import Random
from typing import Literal

import msgspec

from trainer.worlds.office import apps
from trainer.worlds.office.apps import APPS, AppSpec, Field, Role


class AppSite(msgspec.Struct, frozen=True, kw_only=True):
    """One app as deployed at a site."""

    spec: AppSpec
    names: dict[Role, str]
    fields: dict[Field, str]
    first_page: Literal[0, 1]
    hidden: Field  # missing from list rows: only looking up one item returns it
    guarded: Role  # the act that requires the preparing operation first

    def role(self, operation: str) -> Role | None:
        return next((role for role, name in self.names.items() if name == operation), None)


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that differs between deployments. A seed determines its site."""

    seed: int
    apps: dict[str, AppSite]
    contacts_login: str
    members: str  # the operation that lists the members of a group
    member: str  # the field of a member that holds the name

    @staticmethod
    @lru_cache(maxsize=512)
    def of(seed: int) -> "Site":
        rng = Random(f"site {seed}")
        return Site(
            seed=seed,
            apps={name: _app_site(spec, rng) for name, spec in APPS.items()},
            contacts_login=rng.choice(apps.LOGIN_NAMES),
            members=rng.choice(apps.MEMBER_NAMES),
            member=rng.choice(apps.MEMBER_FIELDS),
        )


def candidates(spec: AppSpec) -> dict[Role, tuple[str, ...]]:
    """Every name that a site may choose for each operation of an app."""
    return {
        "login": apps.LOGIN_NAMES,
        "list": tuple(f"{verb}_{spec.nouns}" for verb in apps.LIST_VERBS),
        "show": tuple(f"{verb}_{spec.noun}" for verb in apps.SHOW_VERBS),
        "prepare": tuple(f"{verb}_{spec.noun}" for verb in apps.PREPARE_VERBS),
        **{
            role: tuple(f"{verb}_{spec.noun}" for verb in act.names)
            for role, act in zip(apps.ACTS, spec.acts, strict=True)
        },
    }


def _app_site(spec: AppSpec, rng: Random) -> AppSite:
    return AppSite(
        spec=spec,
        names={role: rng.choice(names) for role, names in candidates(spec).items()},
        fields={
            "person": rng.choice(spec.persons),
            "label": rng.choice(spec.labels),
            "number": rng.choice(spec.numbers),
        },
        first_page=rng.choice((0, 1)),
        hidden=rng.choice(("label", "number")),
        guarded=rng.choice(apps.ACTS),
    )
