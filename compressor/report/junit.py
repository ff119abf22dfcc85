"""Gate outcomes as JUnit XML, which continuous integration shows as test results."""

from __future__ import annotations

from xml.etree import ElementTree

from compressor.report import numbers
from compressor.report.formats import ReportFormat
from compressor.report.schema import Report
from compressor.results import Outcome

SUITE = "compress gate"


def _is_own(text: str) -> bool:
    try:
        suite = ElementTree.fromstring(text).find("testsuite")
    except (LookupError, ElementTree.ParseError):
        return False
    return suite is not None and suite.get("name") == SUITE


def render_junit(report: Report) -> str:
    """One test case per gate outcome; a rule that is not met is a failure.

    An inconclusive one that counts as passed is skipped. A report without rules gives a suite
    without cases.
    """
    failures = sum(not outcome.met for outcome in report.gate)
    skipped = sum(_is_skipped(outcome) for outcome in report.gate)
    counts = {
        "tests": str(len(report.gate)),
        "failures": str(failures),
        "errors": "0",
        "skipped": str(skipped),
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **counts})
    suite.set("timestamp", numbers.printable(report.created))
    for outcome in report.gate:
        names = {
            "classname": numbers.printable(outcome.variant),
            "name": numbers.printable(outcome.rule),
        }
        case = ElementTree.SubElement(suite, "testcase", names)
        message = numbers.printable(outcome.message)
        if not outcome.met:
            failure = {"message": message, "type": outcome.verdict}
            ElementTree.SubElement(case, "failure", failure).text = message
        elif _is_skipped(outcome):
            ElementTree.SubElement(case, "skipped", {"message": f"inconclusive: {message}"})
        else:
            ElementTree.SubElement(case, "system-out").text = message
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _is_skipped(outcome: Outcome) -> bool:
    return outcome.met and outcome.verdict == "inconclusive"


JUNIT = ReportFormat("junit.xml", render_junit, _is_own, for_ci=True)
