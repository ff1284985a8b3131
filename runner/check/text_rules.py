"""Everything that the text of a tool file tells, before anything of it runs. Pure."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from runner.check.contract import ContractRules
from runner.check.disk import DiskCalls
from runner.check.home import HomeRules
from runner.check.import_rules import waits_at_import
from runner.check.needs import PolicyNeed, needs
from runner.check.offers import Offer, Offers
from runner.check.output import prints
from runner.check.progress import ProgressRules
from runner.check.reach import Reach
from runner.check.rules import Finding, by_place
from runner.check.signature import signatures
from runner.check.source import Function, SourceFile
from runner.check.state import stores_in_memory
from runner.check.unreturned import unreturned
from runner.check.widgets import WidgetRules
from runner.check.written import Written

__all__ = ["TextReport", "check_text", "waived"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReport:
    """What was found in the text.

    Attributes:
        offers: The tools, resources and prompts it defines.
        findings: What would surprise its author, in the order of the text.
        needs: What its policy must allow.
        source: The text, parsed.
    """

    offers: tuple[Offer, ...]
    findings: tuple[Finding, ...]
    needs: tuple[PolicyNeed, ...]
    source: SourceFile


def check_text(text: str, folder: Path, *, identity: str) -> TextReport:
    """Look at the text of a tool file.

    Args:
        text: Its text.
        folder: Where it lies.
        identity: The parameter of tools that is filled in with who calls.

    Raises:
        SyntaxError: It is not Python.
        ValueError: It holds a NUL character.
    """
    source = SourceFile(text, identity=identity)
    offers, reach, disk = Offers(source).found(), Reach(source), DiskCalls(source)
    reached = [(offer, reach.of(offer.function)) for offer in offers]
    imported = reach.at_import()
    running: list[Function] = [
        *imported,
        *dict.fromkeys(chain.from_iterable(functions for _, functions in reached)),
    ]
    home = HomeRules(source, disk, reached)
    findings = chain(
        home.homeless_writes(),
        home.strayed_writes(),
        home.writes_at_import(imported),
        home.inputs_without_home(),
        home.fixed_paths(folder),
        ContractRules(source, disk.bindings).keys(offers),
        signatures(source, offers),
        ProgressRules(source, disk, disk.bindings).silent_loops(reached),
        prints(source, running),
        waits_at_import(source),
        stores_in_memory(source, reached),
        unreturned(source, disk, reached),
        WidgetRules(source, Written(source, disk.bindings, folder)).all(),
    )
    return TextReport(
        offers=tuple(offers),
        findings=waived(dict.fromkeys(findings), source.ignored),
        needs=tuple(needs(source, running)),
        source=source,
    )


def waived(findings: "dict[Finding, None]", ignored: dict[int, set[str]]) -> tuple[Finding, ...]:
    """Return the findings that no comment waives, in the order of the text."""
    kept = (finding for finding in findings if finding.rule not in ignored.get(finding.line, ()))
    return tuple(sorted(kept, key=by_place))
