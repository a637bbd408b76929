"""How tasks are worded: frames by goal, and phrases by what they name, each list parted into pools.

A frame of the gym has {them} (the nouns with their conditions) or {nouns} and {conditions} apart; verbs are {act}
and {acted}. Those of `crud` have {one} for the record that is meant, and {given} for the fields of a new one.
"""

from typing import TypeAlias

from trainer.environment import Split

Wordings: TypeAlias = tuple[str, ...]

GYM_FRAMES: dict[Split, dict[str, Wordings]] = {
    "train": {
        "count": (
            "How many {them} are there?",
            "Count the {them}.",
            "What is the number of {them}?",
            "Please tell me how many {them} we have.",
            "I need the number of {them}.",
            "how many {them} do I have",
            "Can you count all {them}?",
        ),
        "total": (
            "What is the total {number} of all {them}?",
            "Add up the {number} of the {them}.",
            "Sum the {number} over all {them}.",
            "I need the sum of the {number} of all {them}.",
            "Calculate the combined {number} of the {them}.",
            "what's the {number} of the {them} in total",
        ),
        "peak": (
            "What is the highest {number} among the {them}?",
            "Find the largest {number} of all {them}.",
            "Tell me the maximum {number} of the {them}.",
            "I want to know the highest {number} of my {them}.",
            "Which {number} is the highest among all {them}?",
            "give me the biggest {number} of the {them}",
        ),
        "who": (
            "Who is the {person} of the {noun} with the highest {number} among the {them}?",
            "Find the {person} of the one with the largest {number} among all {them}.",
            "Of the {them}, which {person} has the one with the highest {number}?",
            "Tell me the {person} of the {noun} that has the maximum {number} of all {them}.",
            "I need the name of the {person} whose {noun} has the highest {number}, of all {them}.",
        ),
        "act": (
            "{Act} all {them}.",
            "Please {act} the {them}.",
            "{Act} every one of the {them}.",
            "I want all {them} {acted}.",
            "Could you {act} my {them}?",
            "All {them} should be {acted}.",
            "{act} all the {them} please",
        ),
        "act_top": (
            "{Act} the {noun} with the highest {number} among the {them}.",
            "Of all {them}, {act} only the one with the highest {number}.",
            "Please {act} the one with the largest {number} of the {them}.",
            "Find the {noun} with the maximum {number} among all {them}, and {act} it.",
            "Only {act} the one {noun} with the highest {number}, of all {them}.",
        ),
        "act_count": (
            "{Act} all {them} and tell me how many there were.",
            "Please {act} the {them} and give me their number.",
            "{Act} every one of the {them}. How many did you {act}?",
            "I want all {them} {acted}; tell me how many that were.",
            "Count the {them}, and {act} them all.",
        ),
        "move": (
            "Set the {label} of all {them} to {target}.",
            "Change the {label} to {target} for all {them}.",
            "Please give all {them} the {label} {target}.",
            "The {label} of the {them} should be {target}.",
            "Update the {them}: their {label} is {target} now.",
            "make {target} the {label} of all {them}",
        ),
        "act_check": (
            "{Act} all {them}, then tell me how many {nouns} are still {initial}.",
            "Please {act} the {them}. How many {nouns} are {initial} after that?",
            "{Act} every one of the {them} and count the {nouns} that stay {initial}.",
            "I want all {them} {acted}, and then the number of {nouns} that are still {initial}.",
            "{Act} the {them}, and then check how many of all {nouns} remain {initial}.",
        ),
        "branch": (
            "If there are more than {threshold} {them}, {act} them all; otherwise {act2} them all.",
            "Count the {them}. If it is more than {threshold}, {act} them, and if not, {act2} them.",
            "{Act} all {them} if there are more than {threshold} of them, else {act2} them.",
            "When the number of {them} is above {threshold}, {act} each of them, otherwise {act2} each of them.",
            "Are there more than {threshold} {them}? Then {act} them. If there are not, {act2} them.",
        ),
    },
    "validation": {
        "count": ("Could you work out how many {them} exist?", "Number of {them}, please."),
        "total": ("What do the {number} values of all {them} come to?", "Total {number} of the {them}, please."),
        "peak": ("How high does the {number} get among the {them}?", "Top {number} of the {them}, please."),
        "who": ("Which {person} does the {noun} with the top {number} among the {them} belong to?",),
        "act": ("See to it that the {them} get {acted}.", "Let's {act} each of the {them}."),
        "act_top": ("Pick whichever of the {them} has the top {number} and {act} it.",),
        "act_count": ("See that the {them} get {acted}, and report how many you handled.",),
        "move": ("Let {target} be the {label} of each of the {them}.",),
        "act_check": ("Have the {them} {acted} and report how many {nouns} are left {initial}.",),
        "branch": ("More than {threshold} {them}? {Act} them. No more than that? {Act2} them.",),
    },
    "test": {
        "count": (
            "Go through my {nouns} and tell me how many there are {conditions}.",
            "Give me a tally of the {them}.",
            "Can you find out how many {them} are in there at the moment?",
        ),
        "total": (
            "Take all {them} and tell me what their {number} adds up to.",
            "If you put all {them} together, how much {number} is that?",
            "Go through my {nouns} and add together the {number} of those {conditions}.",
        ),
        "peak": (
            "Look at all {them} and report the top value of their {number}.",
            "Among my {nouns} {conditions}, what does {number} reach at most?",
        ),
        "who": (
            "Look through the {them}: one has the top {number}. Which {person} is on it?",
            "Name the {person} on whichever of the {them} beats the others in {number}.",
        ),
        "act": (
            "Go through my {nouns} and {act} each one {conditions}.",
            "Make sure that the {them} are all {acted}.",
            "The {them} have to be {acted}, every single one.",
        ),
        "act_top": (
            "Look at the {them} and {act} whichever beats the others in {number}.",
            "One of the {them} has the top {number}: {act} that one and leave the others alone.",
        ),
        "act_count": (
            "Go through my {nouns}, {act} each one {conditions}, and report their count.",
            "Get all the {them} {acted} and let me know how many it took.",
        ),
        "move": (
            "Go through my {nouns} and switch the {label} of each one {conditions} over to {target}.",
            "From now on the {them} go under {label} {target}.",
        ),
        "act_check": (
            "Get the {them} {acted} first; afterwards let me know the count of {nouns} that are {initial}.",
            "Go through my {nouns}, {act} each one {conditions}, and say how many are {initial} at the end.",
        ),
        "branch": (
            "Should {them} number more than {threshold}, {act} all of them; failing that, {act2} all of them.",
            "My limit is {threshold}: should the {them} exceed it, {act} every one, or else {act2} every one.",
        ),
    },
}

CONDITIONS: dict[Split, dict[str, Wordings]] = {
    "train": {
        "person": (
            "of {v}", "with {v} as {person}", "whose {person} is {v}", "that belong to {v}",
            "where the {person} is {v}", "that have the {person} {v}",
        ),
        "label": (
            "with {label} {v}", "whose {label} is {v}", "in {label} {v}", "that have the {label} {v}",
            "where {label} is {v}", "marked {v}",
        ),
        "over": (
            "with {number} over {v}", "whose {number} is above {v}", "with more than {v} in {number}",
            "where the {number} is greater than {v}",
        ),
        "under": (
            "with {number} under {v}", "whose {number} is below {v}", "with less than {v} in {number}",
            "where the {number} is smaller than {v}",
        ),
        "before": ("{when} before {v}", "{when} earlier than {v}", "{when} sooner than {v}"),
        "member": (
            "of people in the {group} {v}", "of members of {v}", "whose {person} is in the {group} {v}",
            "that belong to anyone in {group} {v}",
        ),
        "other": (
            "of people who have any {noun2} with {group} {v}", "whose {person} has any {noun2} in {group} {v}",
            "of anyone with {nouns2} whose {group} is {v}",
        ),
    },
    "validation": {
        "person": ("under the name of {v}",),
        "label": ("listed as {v}",),
        "over": ("where the {number} exceeds {v}",),
        "under": ("where the {number} does not reach {v}",),
        "before": ("{when} prior to {v}",),
        "member": ("of anybody that {v} has as {group}",),
        "other": ("of those who own {nouns2} marked {v}",),
    },
    "test": {
        "person": ("that have {v} down as their {person}", "that {v} is responsible for"),
        "label": ("filed under {v}", "that come with {v} as their {label}"),
        "over": ("that go beyond {v} in {number}", "with {number} higher than {v}"),
        "under": ("that stay short of {v} in {number}", "with {number} lower than {v}"),
        "before": ("{when} strictly ahead of {v}", "{when} any day until, but not on, {v}"),
        "member": ("of everyone who works in {v}", "handled by the people of {v}"),
        "other": ("of everyone for whom there are {nouns2} filed under {v}",),
    },
}  # fmt: skip

CRUD_FRAMES: dict[Split, dict[str, Wordings]] = {
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

ONE: dict[Split, Wordings] = {
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
BY_LINK: dict[Split, Wordings] = {
    "train": ("the {noun} with the {by} {value}", "the {noun} whose {by} is {value}", "the {noun} of {value}"),
    "validation": ("the {noun} that points to {value}",),
    "test": ("the {noun} at {value}",),
}
GIVEN: dict[Split, Wordings] = {
    "train": ("with the {field} {value}", "with {field} {value}", "whose {field} is {value}"),
    "validation": ("that has {value} as {field}",),
    "test": ("where the {field} says {value}",),
}
TITLED: dict[Split, Wordings] = {
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
LINKED: dict[Split, Wordings] = {
    "train": ("for {value}", "with the {field} {value}", "with {field} {value}", "whose {field} is {value}"),
    "validation": ("that points to {value}",),
    "test": ("on {value}",),
}
