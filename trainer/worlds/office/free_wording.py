"""Instructions of the office as people write them, in frames and phrases that are parted into pools.

A frame has {them} (the nouns with their condition) or {nouns} and {where} apart.
"""

from random import Random

from trainer.worlds.generated.words import Pool
from trainer.worlds.office.apps import AppSpec
from trainer.worlds.office.task_templates import Selector, Template

_FRAMES: dict[Pool, dict[str, tuple[str, ...]]] = {
    "train": {
        "act": (
            "{Act} every one of my {them}.", "{Act} all {them}.", "Please {act} the {them}.",
            "Can you {act} all my {them}?", "I want you to {act} the {them}.", "{act} all of the {them} please",
            "Find the {them} and {act} them.", "I have {them}. {Act} all of them.",
        ),
        "count": (
            "How many {them} do I have?", "Count my {them}.", "What is the number of {them}?",
            "Tell me how many {them} there are.", "how many {them} are there", "I need the number of my {them}.",
        ),
        "total": (
            "What is the total {measure} of my {them}?", "Add up the {measure} of all {them}.",
            "Sum the {measure} of the {them}.", "Calculate the combined {measure} of my {them}.",
            "I need the {measure} of all {them} in total.", "what's the {measure} of the {them} all together",
        ),
        "top": (
            "{Act} only the {most} of my {them}.", "Of the {them}, {act} the {most}.",
            "Please {act} the {most} one of the {them}.", "Find the {most} of all {them} and {act} it.",
            "Among my {them}, {act} just the {most} one.", "{act} the one {most} {noun} of all {them}",
        ),
    },
    "validation": {
        "act": ("Make sure you {act} each of my {them}.",),
        "count": ("Give me a count of the {them}.",),
        "total": ("How much {measure} do the {them} have in total?",),
        "top": ("Look at the {them} and {act} the {most} one.",),
    },
    "test": {
        "act": (
            "Go through my {nouns} and {act} those {where}.", "It is time to {act} all {them}.",
            "Would you {act} whatever {nouns} I have {where}?", "The {them}: {act} them all.",
        ),
        "count": (
            "Of my {nouns}, how many are there {where}?", "I would like to know the number of {them}.",
            "Work out how many {nouns} I have {where}.",
        ),
        "total": (
            "Put together, what {measure} do my {them} have?",
            "Tell me what the {measure} of the {them} adds up to.",
            "Take all {them} and give me the sum of their {measure}.",
        ),
        "top": (
            "I want the {most} of the {them} and no other: {act} it.",
            "From all {them}, pick the {most} and {act} it.",
            "Which of my {them} is the {most}? {Act} that one.",
        ),
    },
}  # fmt: skip
_WHERE: dict[Pool, dict[Selector, tuple[str, ...]]] = {
    "train": {
        "person": ("from {v}", "{by} {v}", "that come from {v}", "that are {by} {v}"),
        "label": ("in {v}", "in the {label} {v}", "with the {label} {v}", "whose {label} is {v}", "marked {v}"),
        "group": (
            "from my {v}", "from people in my {v}", "from anyone in my {v}", "{by} someone in my {v}",
            "that come from members of my {v}",
        ),
        "over": (
            "with {measure} over {v}", "with a {measure} above {v}", "whose {measure} is more than {v}",
            "with more than {v} in {measure}", "where the {measure} is greater than {v}",
        ),
    },
    "validation": {
        "person": ("that were {by} {v}",),
        "label": ("listed under {v}",),
        "group": ("from anybody who is in my {v}",),
        "over": ("whose {measure} exceeds {v}",),
    },
    "test": {
        "person": ("that {v} is responsible for", "coming from {v}", "with {v} as the {person}"),
        "label": ("filed under {v}", "that belong to {v}", "where the {label} says {v}"),
        "group": ("from the people of my {v}", "{by} any member of my {v}"),
        "over": ("with a {measure} higher than {v}", "that go beyond {v} in {measure}"),
    },
}  # fmt: skip
_BY = {
    "mail": "sent by",
    "notes": "written by",
    "calendar": "hosted by",
    "music": "performed by",
    "payments": "paid by",
    "files": "uploaded by",
    "todo": "assigned to",
}


def word_freely(template: Template, value: str, pool: Pool, rng: Random) -> str:
    """An instruction for the template in words of the pool."""
    spec = template.spec
    act = template.act.verb if template.act else ""
    kind = "act" if template.verb.startswith("act") else template.verb
    words = {"noun": spec.noun, "nouns": spec.nouns, "measure": spec.measure, "most": spec.most}
    where = rng.choice(_WHERE[pool][template.selector]).format(v=value, **_fields(spec), **words)
    frame = rng.choice(_FRAMES[pool][kind])
    return frame.format(act=act, Act=act.title(), where=where, them=f"{spec.nouns} {where}", **words)


def _fields(spec: AppSpec) -> dict[str, str]:
    return {"by": _BY[spec.name], "person": spec.persons[0], "label": spec.labels[0]}
