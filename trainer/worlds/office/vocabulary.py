"""Every word that a policy reads or writes in this environment: in instructions, documents, code and errors."""

import re
from collections.abc import Iterator

from trainer.worlds.office import apps, solution
from trainer.worlds.office.apps import APPS, AppSpec
from trainer.worlds.office.documents import APP_NAMES, document
from trainer.worlds.office.expert_script import SENTENCES
from trainer.worlds.office.site import Site, candidates
from trainer.worlds.office.task_templates import TEMPLATES

_WORD = re.compile(r"\w+")

ERRORS = (
    "ApiError: Response status code is 401 404 409 422",
    "message wrong password access_token no call first pages start at id page is not a number group",
    "AttributeError TypeError NameError KeyError ValueError ValidationError SyntaxError IndentationError",
    "apis.mail has no operation app API Did you mean or did there is",
    "apis.api_docs.show_api_descriptions app_name lists them",
    "name is not defined missing argument unexpected needs a string an integer signature object",
    "TimeoutError CallLimit ok None error line invalid syntax",
)


def vocabulary() -> list[str]:
    """Words in a fixed order, each once. API identifiers are whole words; function names are split into parts."""
    return list(dict.fromkeys(_words()))


def _words() -> Iterator[str]:
    yield from (*APP_NAMES, *apps.PEOPLE, *apps.GROUPS, *apps.THRESHOLDS)
    yield from (*apps.MEMBER_NAMES, *apps.MEMBER_FIELDS)
    for spec in APPS.values():
        yield from _app_words(spec)
    for template in TEMPLATES:
        yield from template.function.split("_")
        for phrasing in template.phrasings:
            yield from _WORD.findall(phrasing.replace("{value}", ""))
    yield from _site_words(Site.of(0))
    for text in (*SENTENCES, *ERRORS):
        yield from _WORD.findall(text)


def _app_words(spec: AppSpec) -> Iterator[str]:
    yield from (*spec.persons, *spec.labels, *spec.numbers, *spec.values)
    for names in candidates(spec).values():
        yield from names


def _site_words(site: Site) -> Iterator[str]:
    """The words of summaries and code: apart from names they are the same at every site."""
    for app in APP_NAMES:
        for methods in document(site, app, "")["paths"].values():
            for operation in methods.values():
                yield from (operation["operationId"], *_WORD.findall(operation["summary"]))
                yield from (parameter["name"] for parameter in operation["parameters"])
    functions = {template.function for template in TEMPLATES}
    for template in TEMPLATES:
        code = "\n".join([solution.function(template, site), solution.call(template, template.values[0])])
        yield from (word for word in _WORD.findall(code) if word not in functions)
    yield from ("0", "1", "print", "apis", "api_docs", "show_signatures", "complete_task", "answer", "python")
