"""What pretrained models are examined on."""

HELD_OUT = {
    "gym, unseen domains": "gym?held_out=domains",
    "gym, unseen API shapes": "gym?held_out=shapes",
    "gym, unseen compositions": "gym?held_out=compositions",
    "gym, unseen phrasings": "gym?held_out=phrasings",
    "strangers, unseen APIs and phrasings": "strangers",
    "office, unseen templates": "office",
    "office, unseen templates and wording": "office?wording=free",
    "office, unseen templates and names": "office?names=varied",
}
"""The environments of the test split, by what training never saw."""


def file_name(title: str) -> str:
    """
    >>> file_name("gym, unseen API shapes")
    'gym-unseen-api-shapes'
    """
    return title.lower().replace(",", "").replace(" ", "-")
