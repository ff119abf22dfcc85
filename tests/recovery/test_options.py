"""What the options of distillation leave open, and who decides it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from compressor.recovery import Distill, distillation
from compressor.tasks import TASKS
from compressor.training.loop import Schedule
from tests.helpers.stages import job, repair
from tests.helpers.texts import classified, some_lines, translated, write


@pytest.mark.parametrize(
    ("options", "device", "batch", "precision"),
    [
        ({}, "cpu", 32, "fp32"),
        ({}, "cuda", 32, "bf16"),
        ({"text": "a.txt"}, "cpu", None, "fp32"),  # the task decides on the rows
        ({"text": "a.txt"}, "cuda", 512, "bf16"),
        ({"text": "a.txt", "batch": 7, "precision": "fp32"}, "cuda", 7, "fp32"),
        ({"precision": "bf16"}, "cpu", 32, "bf16"),
    ],
)
def test_the_device_decides_what_is_left_open(options, device, batch, precision):
    decided = Distill(**options).on_device(device)
    assert (decided.batch, decided.precision) == (batch, precision)


@pytest.mark.parametrize(
    ("avx512", "bf16", "amx", "precision"),
    [
        (True, True, False, "bf16"),
        (True, False, True, "bf16"),
        (True, False, False, "fp32"),  # which oneDNN takes for enough
        (False, False, False, "fp32"),
    ],
)
def test_processors_with_instructions_for_it_train_in_bfloat16(
    monkeypatch, avx512, bf16, amx, precision
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: avx512)
    assert Distill().on_device("cpu").precision == precision


@pytest.mark.parametrize(
    ("task", "options", "batch"),
    [
        ("translation", {"text": "a.txt"}, 64),
        ("translation", {}, 32),
        ("classification", {"text": "a.txt"}, 32),
        ("translation", {"text": "a.txt", "batch": 7}, 7),
    ],
)
def test_the_task_decides_on_the_rows_of_a_step(task, options, batch):
    assert Distill(**options).for_task(TASKS[task]).batch == batch


class Asked(Exception):
    """What distillation is about to do."""


@pytest.mark.parametrize(
    ("name", "options", "schedule", "rate"),
    [
        ("bert", {}, Schedule(5), 1.0),
        (
            "bert",
            {"epochs": 3, "batch": 8, "patience": 1, "steps": 7, "minutes": 1.5},
            Schedule(3, 8, patience=1, steps=7, seconds=90.0),
            0.5,  # the root of a quarter of the usual 32 rows
        ),
    ],
)
def test_options_become_the_schedule_and_the_rate(name, options, schedule, rate, monkeypatch):
    setup = job(name)

    def asked(job, schedule, rate, hidden, precision):
        raise Asked(schedule, rate, hidden, precision)

    monkeypatch.setattr(distillation, "_fine_tuned", asked)
    with pytest.raises(Asked) as caught:
        repair(setup, distill=options)
    expected = rate * setup.task.learning_rate
    assert caught.value.args == (schedule, pytest.approx(expected), 1.0, "fp32")


@pytest.mark.parametrize(("name", "rows"), [("marian", 64), ("bert", 32)])
def test_with_a_text_steps_are_larger_where_muon_trains(name, rows, tmp_path, monkeypatch):
    def asked(job, schedule, rate, hidden, precision):
        raise Asked(schedule.batch_size, rate)

    setup = job(name)
    text = translated(tmp_path, 40)
    if name == "bert":
        text = classified(write(tmp_path / "text.txt", some_lines(40)))
    monkeypatch.setattr(distillation, "_fine_tuned", asked)
    usual = setup.task.text_learning_rate or setup.task.learning_rate
    with pytest.raises(Asked) as caught:
        repair(dataclasses.replace(setup, text=text), distill={"text": "text.txt"})
    assert caught.value.args == (rows, usual)
    with pytest.raises(Asked) as caught:
        repair(dataclasses.replace(setup, text=text), distill={"text": "t", "batch": 4 * rows})
    assert caught.value.args == (4 * rows, pytest.approx(2 * usual))
