"""What activating a release changes, in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.base.text import visible
from app.base.values import shown_model

_MOST = 20  # names in a line
_SKILLS = {
    "restored": "skills offered again",
    "superseded": "skills replaced by the version that returns",
    "withdrawn": "skills withdrawn",
    "deleted": "skills that cannot return, since they were deleted",
}
_PROMPTS = {"hosted": "that of hosted models", "local": "that of the model of this server"}
_STAYS = ("the same", "stays, though the release served with another one")
_DOCUMENTS = {
    "added": "APIs there again",
    "removed": "APIs no longer called",
    "changed": "APIs called by the document of that time",
    "missing": "APIs that cannot return, since they were removed",
}


def activation_lines(number: int, changes: Mapping[str, Any]) -> Iterator[str]:
    """A line for each part, of the server's statement.

    >>> changes = {"rolls_back": True, "replaces": 3, "model": {"from": "f00d", "to": "base"}}
    >>> changes |= {"prompt": "stays", "former_prompt": None, "watch": "ends", "canary": 4}
    >>> changes |= {"skills": {"withdrawn": [{"name": "greet", "version": 2}]}, "documents": {"changed": ["mail"]}}
    >>> print(*activation_lines(1, changes), sep="\\n")
    rolls back from release 3 to release 1
      weights: f00d -> base
      skills withdrawn: greet v2
      APIs called by the document of that time: mail
      prompt: the same
      the watch of release 3 ends
      release 4 stays a canary, and is compared with release 1
    >>> list(activation_lines(1, {"replaces": None}))
    ['release 1 is active already: nothing changes']
    """
    before = changes["replaces"]
    if before is None:
        yield f"release {number} is active already: nothing changes"
        return
    if changes["rolls_back"]:
        yield f"rolls back from release {before} to release {number}"
    else:
        yield f"release {number} replaces release {before}"
    model = changes["model"]
    yield (
        f"  weights: {shown_model(model['from'])} -> {shown_model(model['to'])}"
        if model
        else "  weights: the same"
    )
    skills = changes["skills"].items()
    moved = {how: [f"{each['name']} v{each['version']}" for each in found] for how, found in skills}
    yield from _named(_SKILLS, moved, "skills")
    yield from _named(_DOCUMENTS, changes["documents"], "APIs")
    yield f"  prompt: {_PROMPTS.get(changes['prompt']) or _STAYS[changes['former_prompt'] is not None]}"
    if changes["watch"]:
        yield f"  the watch of release {before} {'goes on' if changes['watch'] == 'goes_on' else 'ends'}"
    if changes["canary"]:
        yield f"  release {changes['canary']} stays a canary, and is compared with release {number}"


def _named(labels: Mapping[str, str], found: Mapping[str, Sequence[str]], what: str) -> Iterator[str]:
    if not any(found.values()):
        yield f"  {what}: the same"
    for how, label in labels.items():
        if names := found.get(how):
            others = f" and {len(names) - _MOST} others" if len(names) > _MOST else ""
            yield visible(f"  {label}: {', '.join(names[:_MOST])}{others}")
