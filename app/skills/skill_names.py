"""Names of skills that look like no other name. Pure."""

import unicodedata

_TOGETHER = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "BOPOMOFO": "CJK", "HANGUL": "CJK"}  # are written together


def name_objection(name: str) -> str | None:
    """Why a function of this name becomes no skill; None if it may.

    >>> name_objection("send_mail2"), name_objection("отправить_письмо"), name_objection("メール送信")
    (None, None, None)
    >>> name_objection("s\N{CYRILLIC SMALL LETTER IE}nd_mail")
    'Its name mixes the scripts CYRILLIC and LATIN.'
    >>> name_objection("\N{MATHEMATICAL BOLD SMALL S}end_mail")
    'Its name is not in the normal form NFKC.'
    """
    if unicodedata.normalize("NFKC", name) != name:
        return "Its name is not in the normal form NFKC."
    scripts = {_script(letter) for letter in name if unicodedata.category(letter)[0] == "L"}
    return f"Its name mixes the scripts {' and '.join(sorted(scripts))}." if len(scripts) > 1 else None


def _script(letter: str) -> str:
    """The first word of a letter's name, which is its script for all but rare ones."""
    word = unicodedata.name(letter, "unknown").split()[0].split("-")[0]
    return _TOGETHER.get(word, word)
