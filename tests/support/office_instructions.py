"""What an instruction of the office in fixed wording asks for."""

from trainer.worlds.office.scenarios import TEMPLATES, Template

_BY_PHRASING = {phrasing: template for template in TEMPLATES for phrasing in template.phrasings}


def asked_by(instruction: str) -> tuple[Template, str]:
    """The only template and value that the instruction can mean."""
    words = instruction.split(" ")
    (found,) = [
        (template, word)
        for place, word in enumerate(words)
        if (template := _BY_PHRASING.get(" ".join([*words[:place], "{value}", *words[place + 1 :]])))
        and word in template.values
    ]
    return found
