"""Gate outcomes as JUnit XML, which continuous integration shows as test results."""

from __future__ import annotations

from xml.etree import ElementTree

from compressor.report import numbers
from compressor.report.formats import ReportFormat
from compressor.report.schema import Report
from compressor.results import Outcome

SUITE = "compress gate"


def render_junit(report: Report) -> str:
    """One test case per gate outcome; a rule that is not met is a failure.

    An inconclusive one that counts as passed is skipped. A report without rules gives a suite
    without cases.
    """
    results = list(map(_result, report.gate))
    counts = {
        "tests": str(len(results)),
        "failures": str(results.count("failure")),
        "errors": "0",
        "skipped": str(results.count("skipped")),
    }
    root = ElementTree.Element("testsuites", {"name": SUITE, **counts})
    created = numbers.printable(report.created)
    suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **counts})
    suite.set("timestamp", created)
    for outcome, result in zip(report.gate, results, strict=True):
        names = {"classname": outcome.variant, "name": outcome.rule}
        names = {key: numbers.printable(text) for key, text in names.items()}
        message = numbers.printable(outcome.message)
        case = ElementTree.SubElement(suite, "testcase", names)
        said = ElementTree.SubElement(case, result)
        said.text = message
        if result == "failure":
            said.attrib |= {"message": message, "type": outcome.verdict}
        elif result == "skipped":
            said.set("message", f"inconclusive: {message}")
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _result(outcome: Outcome) -> str:
    """The element that says what became of a test case."""
    if not outcome.met:
        return "failure"
    return "skipped" if outcome.verdict == "inconclusive" else "system-out"


JUNIT = ReportFormat(
    "junit.xml", render_junit, rf"<\?xml[^>]*>\s*<testsuites[^>]*name=\"{SUITE}\"", for_ci=True
)
