"""`--precision`: which precisions are exported."""

from __future__ import annotations

import pytest

from compressor.errors import UsageError
from compressor.export.precision_names import precisions_to_export, split_precisions
from tests.helpers.errors import raises


@pytest.mark.parametrize(
    ("names", "device", "expected"),
    [
        ("fp32", "cpu", ("fp32",)),
        (["int8,fp32"], "cpu", ("fp32", "int8")),
        (["fp32", "fp16", "int8"], "cpu", ("fp32", "fp16", "int8")),
        ("auto", "cpu", ("fp32", "int8")),
        ("auto", "cuda", ("fp32", "fp16")),
    ],
)
def test_names_to_precisions(names, device, expected):
    assert precisions_to_export(split_precisions(names), device) == expected


@pytest.mark.parametrize(
    ("names", "device", "problem"),
    [
        ("fp32,fp8", "cpu", "precision-unknown"),
        ("", "cpu", "precision-unknown"),
        ("fp32,fp32", "cpu", "precision-given-twice"),
        ("auto,int8", "cpu", "precision-auto-with-others"),
        ("int8", "cpu", "precision-without-fp32"),
        ("fp32,int8", "cuda", "precision-not-on-device"),
    ],
)
def test_precisions_that_make_no_sense_are_usage_errors(names, device, problem):
    with raises(UsageError, problem):
        precisions_to_export(split_precisions(names), device)
