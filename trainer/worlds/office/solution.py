"""The canonical function for a template at a site, as a careful reader of its documents would write it."""

from trainer.lessons.experts import indent
from trainer.worlds.office.apps import AppSite, Field, Role, Site
from trainer.worlds.office.scenarios import Selector, Template

_PARAMETERS: dict[Selector, str] = {
    "person": "name: str",
    "label": "label: str",
    "group": "group: str",
    "over": "limit: int",
}
_RESULTS = {"count": "count", "total": "total", "top": "best"}


def signature(template: Template) -> str:
    return f"{template.function}({_PARAMETERS[template.selector]}) -> int"


def function(template: Template, site: Site) -> str:
    """The source of the function."""
    lines = [f"def {signature(template)}:", *indent(_body(template, site)), f"    return {_result(template)}"]
    return "\n".join(lines)


def call(template: Template, value: str) -> str:
    """The call for one task's value, with its result kept and printed."""
    return f"result = {template.function}({_literal(template, value)})\nprint(result)"


def inline(template: Template, site: Site, value: str) -> str:
    """The same code without a function: it solves one task and leaves no skill."""
    parameter = _PARAMETERS[template.selector].split(":", 1)[0]
    result = _result(template)
    lines = [
        f"{parameter} = {_literal(template, value)}",
        *_body(template, site),
        f"result = {result}",
        "print(result)",
    ]
    return "\n".join(lines)


def note(template: Template, site: Site, value: str) -> str:
    """Which fields and operations the words of a task mean, as said before the code is written."""
    here, fields = site.apps[template.app], site.apps[template.app].fields
    if template.selector == "group":
        facts = [
            f"{value} is a group in contacts: {site.members} gives {site.member}, here it is {fields['person']}"
        ]
    elif template.selector == "over":
        facts = [f"the {template.spec.measure} is {fields['number']}"]
    else:
        facts = [f"{value} is {fields[template.field]}"]
    if template.verb in ("total", "top") and template.selector != "over":
        facts.append(f"the {template.spec.measure} is {fields['number']}")
    if here.hidden in needed_fields(template):
        facts.append(f"only {here.names['show']} has {fields[here.hidden]}")
    if roles := _change_roles(template, here):
        facts.append(f"I call {' and '.join(here.names[role] for role in roles)}")
    return f"{'; '.join(facts)}."  # names as they are written: a capital here was copied into the code


def needed_fields(template: Template) -> set[Field]:
    """The fields that a solution reads; never all of them."""
    needed: set[Field] = {template.field}
    return needed | {"number"} if template.verb in {"total", "top"} else needed


def _literal(template: Template, value: str) -> str:
    return value if template.selector == "over" else f'"{value}"'


def _result(template: Template) -> str:
    return _RESULTS.get(template.verb, "done")


def _body(template: Template, site: Site) -> list[str]:
    here = site.apps[template.app]
    lines = _members(site) if template.selector == "group" else []
    lines += [*_log_in(template.app, here.names["login"]), f"{_result(template)} = 0"]
    if template.verb != "top":
        return [*lines, *_loop(template, here)]
    return [*lines, "most = 0", *_loop(template, here), *_change(template, here, "best")]


def _members(site: Site) -> list[str]:
    rows = f"apis.contacts.{site.members}(access_token=token, group=group)"
    return [*_log_in("contacts", site.contacts_login), f'members = [row["{site.member}"] for row in {rows}]']


def _log_in(app: str, name: str) -> list[str]:
    password = f'apis.supervisor.show_passwords()["{app}"]'
    return [f'token = apis.{app}.{name}(password={password})["access_token"]']


def _loop(template: Template, here: AppSite) -> list[str]:
    app, names = template.app, here.names
    rows = f"apis.{app}.{names['list']}(access_token=token, page=page)"
    inner = [f"if {_condition(template, here)}:", *indent(_hit(template, here))]
    if here.hidden in needed_fields(template):
        inner = [f'row = apis.{app}.{names["show"]}(access_token=token, id=row["id"])', *inner]
    return [
        f"page = {here.first_page}",
        f"while rows := {rows}:",
        "    for row in rows:",
        *indent(inner, 2),
        "    page += 1",
    ]


def _condition(template: Template, here: AppSite) -> str:
    field = f'row["{here.fields[template.field]}"]'
    tests = {"person": "== name", "label": "== label", "group": "in members", "over": "> limit"}
    return f"{field} {tests[template.selector]}"


def _hit(template: Template, here: AppSite) -> list[str]:
    """The statements for an item that matches."""
    number = f'row["{here.fields["number"]}"]'
    if template.verb == "count":
        return ["count += 1"]
    if template.verb == "total":
        return [f"total += {number}"]
    if template.verb == "top":
        return [f"if {number} > most:", f"    most = {number}", '    best = row["id"]']
    return [*_change(template, here, 'row["id"]'), "done += 1"]


def _change(template: Template, here: AppSite, item: str) -> list[str]:
    roles = _change_roles(template, here)
    return [f"apis.{template.app}.{here.names[role]}(access_token=token, id={item})" for role in roles]


def _change_roles(template: Template, here: AppSite) -> list[Role]:
    if template.role is None:
        return []
    return ["prepare", template.role] if template.role == here.guarded else [template.role]
