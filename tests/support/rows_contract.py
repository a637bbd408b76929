"""A contract for import-linter: rows of modules, each of which imports only its own row and the rows under it.

Unlike `layers`, it names a row by patterns, so that the modules of one thing are one row wherever they stand:
`name.*` is a package with all that is in it, `name_*` are the modules whose names begin so. Of several patterns
a module's counts before a package's, and then the longest. A module in no row breaks the contract, and so does
a pattern that fits none.
"""

from fnmatch import fnmatchcase

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class RowsContract(Contract):
    """`package`: whose modules they are. `rows`: "name: pattern pattern ...", from the top."""

    type_name = "rows"

    package = fields.StringField()
    rows = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002
        rows = [row.partition(":") for row in self.rows]  # type: ignore[attr-defined]
        order = {name: place for place, (name, _, _) in enumerate(rows)}
        patterns = {pattern: name for name, _, listed in rows for pattern in listed.split()}
        inside = f"{self.package}."
        places, used, wrong = dict[str, str](), set[str](), list[str]()
        for module in sorted(each for each in graph.modules if each.startswith(inside)):
            name = module.removeprefix(inside)
            fitting = [each for each in patterns if _fits(name, each)]
            used.update(fitting)
            if fitting:
                places[module] = patterns[max(fitting, key=lambda each: (not each.endswith(".*"), len(each)))]
            else:
                wrong.append(f"{name} is in no row")
        wrong += [f"no module is {each}" for each in patterns.keys() - used]
        for importer, row in places.items():
            for imported in sorted(graph.find_modules_directly_imported_by(importer) & places.keys()):
                if order[places[imported]] < order[row]:
                    wrong.append(f"{importer} ({row}) imports {imported} ({places[imported]})")
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["wrong"]:
            output.print_error(line)


def _fits(name: str, pattern: str) -> bool:
    if pattern.endswith(".*"):
        return f"{name}.".startswith(pattern.removesuffix("*"))
    return fnmatchcase(name, pattern) and name.count(".") == pattern.count(".")
