"""How tasks of the crud environment are worded: frames by goal, each list parted into pools."""

from trainer.worlds.generated.crud_collections import RecordField
from trainer.worlds.generated.crud_plans import CrudGoal, CrudPlan
from trainer.worlds.generated.pools import Pool

FRAMES: dict[Pool, dict[CrudGoal, tuple[str, ...]]] = {
    "train": {
        "count": (
            "How many {nouns} are there?",
            "Count the {nouns}.",
            "What is the number of {nouns} in {app}?",
            "how many {nouns} do we have",
            "Tell me how many {nouns} there are in {app}.",
        ),
        "count_state": (
            "How many {nouns} are {state}?",
            "Count the {nouns} that are {state}.",
            "What is the number of {state} {nouns}?",
            "how many of the {nouns} are {state}",
        ),
        "read": (
            "What is the {field} of {one}?",
            "Tell me the {field} of {one}.",
            "Which {field} does {one} have?",
            "Look up the {field} of {one}.",
            "what's the {field} of {one}",
            "I need the {field} of {one}.",
            "Find {one} and tell me its {field}.",
        ),
        "create": (
            "Create a {noun} {given}.",
            "Add a {noun} {given}.",
            "Add a new {noun} {given}.",
            "I need a new {noun} {given}.",
            "Please create a {noun} {given}.",
            "new {noun} {given}, please",
            "Make a {noun} {given}.",
        ),
        "change": (
            "Change the {field} of {one} to {new}.",
            "Set the {field} of {one} to {new}.",
            "The {field} of {one} should be {new}.",
            "Update {one}: its {field} is {new} now.",
            "Please change {one} so that its {field} is {new}.",
            "make {new} the {field} of {one}",
        ),
        "delete": (
            "Delete {one}.",
            "Remove {one}.",
            "Please delete {one}.",
            "I no longer need {one}: delete it.",
            "Get rid of {one}.",
            "delete {one} please",
        ),
        "act": (
            "{Act} {one}.",
            "Please {act} {one}.",
            "{act} {one}",
            "I want {one} {acted}.",
            "{One} should be {acted}.",
            "Can you {act} {one}?",
        ),
        "act_all": (
            "{Act} all {nouns}.",
            "Please {act} every {noun}.",
            "I want all {nouns} {acted}.",
            "{act} all the {nouns} in {app}",
        ),
        "delete_state": (
            "Delete all {nouns} that are {state}.",
            "Remove every {state} {noun}.",
            "Please delete the {nouns} that are {state}.",
            "delete all {state} {nouns}",
        ),
        "info": (
            "Which {version} does {app} run?",
            "What {version} of {app} is this?",
            "Tell me the {version} of {app}.",
            "what is the {version} of the {app} server",
        ),
    },
    "validation": {
        "count": ("Number of {nouns}, please.",),
        "count_state": ("Number of {nouns} that are {state}, please.",),
        "read": ("For {one}, what do we have as {field}?",),
        "create": ("There should be a {noun} {given}: set it up.",),
        "change": ("Let {new} be the {field} of {one}.",),
        "delete": ("Throw {one} away.",),
        "act": ("See to it that {one} gets {acted}.",),
        "act_all": ("See to it that each {noun} gets {acted}.",),
        "delete_state": ("Throw away whichever {nouns} are {state}.",),
        "info": ("Do you know the {version} that {app} is on?",),
    },
    "test": {
        "count": (
            "Give me a tally of the {nouns}.",
            "Can you find out how many {nouns} are in {app} at the moment?",
        ),
        "count_state": (
            "Go through the {nouns} and say how many are {state}.",
            "Give me a tally of {state} {nouns}.",
        ),
        "read": (
            "Look at {one}: what does it say under {field}?",
            "I cannot remember the {field} of {one}, can you check?",
        ),
        "create": ("We are missing a {noun} {given}; put one in.", "Start a {noun} {given}."),
        "change": (
            "{One} has the wrong {field}: it has to be {new}.",
            "Switch the {field} of {one} over to {new}.",
        ),
        "delete": ("{One} can go.", "Take {one} out of {app}."),
        "act": ("Make sure that {one} is {acted}.", "{One} has to be {acted}."),
        "act_all": ("Go through the {nouns} and {act} each one.", "Every single {noun} has to be {acted}."),
        "delete_state": (
            "Those of the {nouns} that are {state} can go.",
            "Clean up: no {noun} that is {state} stays.",
        ),
        "info": ("I have to report the {version} of our {app}: look it up.",),
    },
}

ONE: dict[Pool, tuple[str, ...]] = {
    "train": (
        'the {noun} "{value}"',
        'the {noun} with the {by} "{value}"',
        "the {noun} {value}",
        "the {noun} named {value}",
        "the {noun} whose {by} is {value}",
        "{noun} {value}",
        'the {noun} called "{value}"',
    ),
    "validation": ('the {noun} that goes by "{value}"',),
    "test": ('the {noun} titled "{value}"', 'the one of our {nouns} that says "{value}"'),
}
BY_LINK: dict[Pool, tuple[str, ...]] = {
    "train": ("the {noun} with the {by} {value}", "the {noun} whose {by} is {value}", "the {noun} of {value}"),
    "validation": ("the {noun} that points to {value}",),
    "test": ("the {noun} at {value}",),
}
GIVEN: dict[Pool, tuple[str, ...]] = {
    "train": ("with the {field} {value}", "with {field} {value}", "whose {field} is {value}"),
    "validation": ("that has {value} as {field}",),
    "test": ("where the {field} says {value}",),
}
TITLED: dict[Pool, tuple[str, ...]] = {
    "train": (
        'with the {field} "{value}"',
        'called "{value}"',
        "named {value}",
        'under the {field} "{value}"',
        "whose {field} is {value}",
    ),
    "validation": ('that goes by "{value}"',),
    "test": ('titled "{value}"',),
}
LINKED: dict[Pool, tuple[str, ...]] = {
    "train": ("for {value}", "with the {field} {value}", "with {field} {value}", "whose {field} is {value}"),
    "validation": ("that points to {value}",),
    "test": ("on {value}",),
}
_IN_FULL = 0.3  # of tasks call the records what the description of the app does
_FRAMES_OF: dict[RecordField, dict[Pool, tuple[str, ...]]] = {"title": TITLED, "link": LINKED}


def instruction_of(plan: CrudPlan, index: int) -> str:
    """The same for the same task. The tasks of a scenario may be worded differently."""
    rng, pool = plan.key.random(f"wording {index}"), plan.key.pool("phrasings")
    form, target, values = plan.form, plan.target, plan.values[index]
    prose, one = target.prose, ""
    noun, nouns = target.domain.noun, target.domain.nouns
    if rng.random() < _IN_FULL:
        noun, nouns = target.described
    if form.by in values:
        frames = BY_LINK[pool] if form.by == "link" else ONE[pool]
        one = rng.choice(frames).format(noun=noun, nouns=nouns, by=prose[form.by], value=values[form.by])
    parts = [
        rng.choice(_FRAMES_OF.get(field, GIVEN)[pool]).format(field=prose[field], value=values[field])
        for field in (form.written if form.goal == "create" else ())
    ]
    return rng.choice(FRAMES[pool][form.goal]).format(
        noun=noun,
        nouns=nouns,
        app=plan.main.name,
        one=one,
        One=f"{one[:1].upper()}{one[1:]}",
        field=prose[form.field],
        given=" and ".join(parts),
        new=values.get("new", ""),
        state=values.get("state", ""),
        version=plan.main.words["version"],
        act=plan.verb.base,
        Act=plan.verb.base.capitalize(),
        acted=plan.verb.done,
    )
