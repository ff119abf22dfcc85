"""Gate outcomes as JUnit XML, which continuous integration shows as test results."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from compressor.report import numbers
from compressor.report.schema import Report

SUITE = "compress gate"


def is_junit(path: Path) -> bool:
    """Whether `render_junit` wrote this file."""
    try:
        suite = ElementTree.parse(path).find("testsuite")
    except (OSError, ValueError, LookupError, ElementTree.ParseError):
        return False
    return suite is not None and suite.get("name") == SUITE


def render_junit(report: Report) -> str:
    """One test case per gate outcome; a rule that is not met is a failure.

    A report without rules gives a suite without cases.
    """
    failures = sum(not outcome.met for outcome in report.gate)
    counts = {"tests": str(len(report.gate)), "failures": str(failures), "errors": "0"}
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
        if outcome.met:
            ElementTree.SubElement(case, "system-out").text = message
        else:
            failure = {"message": message, "type": "gate"}
            ElementTree.SubElement(case, "failure", failure).text = message
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'
