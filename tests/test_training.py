"""The training loop on a linear regression whose answer is known."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from compressor.errors import InputError
from compressor.tasks import Batch, Example
from compressor.training import loop
from compressor.training.data import TrainingRows, hold_out
from compressor.training.loop import Problem, Schedule, train
from tests.helpers.errors import raises

WANTED = torch.tensor([2.0, -1.0, 0.5])


def example(row: int) -> Example:
    return Example(row, (row % 5, row % 3, row % 7), (0,))


def make_batches(examples, model, *, batch_tokens, batch_size):
    assert batch_tokens is None
    parts = [examples[i : i + batch_size] for i in range(0, len(examples), batch_size)]
    return [
        Batch({"x": torch.tensor([e.source for e in part]).float()}, [e.row for e in part])
        for part in parts
    ]


TASK = SimpleNamespace(batches=make_batches, loss_terms=lambda batch: len(batch["x"]))
EXAMPLES = [example(row) for row in range(40)]
MODEL = nn.Identity()
MODEL.config = SimpleNamespace(is_encoder_decoder=False)
DATA = TrainingRows(EXAMPLES, TASK, MODEL)


class Regression(Problem):
    """Noise makes a step depend on the random state, which resuming must get right."""

    def __init__(self, validations: list[float | None] | None = None, noise: float = 0.1) -> None:
        self.weight = nn.Parameter(torch.zeros(3))
        self.validations, self.noise = validations, noise
        self.seen: list[list[int]] = []
        self.progress: list[float] = []

    def groups(self):
        return [{"params": [self.weight], "lr": 0.1}]

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def loss(self, batch, progress, whole):
        self.seen.append(list(batch.rows))
        self.progress.append(progress)
        noise = self.noise * torch.randn(len(batch["x"]))
        return (batch["x"] @ (self.weight - WANTED) + noise).pow(2).sum() / len(whole["x"])

    def validate(self, progress):
        if self.validations is not None:
            return self.validations.pop(0)
        return float((self.weight.detach() - WANTED).norm())


def test_it_finds_the_answer():
    problem = Regression(noise=0)
    train(problem, DATA, Schedule(60, batch_size=8, weight_decay=0, patience=60))
    torch.testing.assert_close(problem.weight.detach(), WANTED, atol=0.02, rtol=0)


def test_every_epoch_is_told_and_recorded():
    lines: list[str] = []
    trained = train(Regression([2.0, 1.0]), DATA, Schedule(2, batch_size=8), report=lines.append)
    first, second = trained.history
    assert (first["epoch"], first["validation"], first["status"]) == (1, 2.0, "")
    assert lines == [
        f"  epoch 1 of 2: loss {first['loss']:.4f}, held-out 2.0000",
        f"  epoch 2 of 2: loss {second['loss']:.4f}, held-out 1.0000",
    ]


def test_the_loss_of_an_epoch_is_the_mean_over_its_steps():
    """Of weights that stay where they are: the mean square of all rows, in NumPy's way."""
    problem = Regression(noise=0)
    problem.groups = lambda: [{"params": [problem.weight], "lr": 0.0}]
    trained = train(problem, DATA, Schedule(1, batch_size=8, weight_decay=0))
    rows = torch.tensor([e.source for e in EXAMPLES]).float()
    assert trained.history[0]["loss"] == pytest.approx(float((rows @ WANTED).pow(2).mean()))


def test_steps_are_shown_and_their_share_is_told():
    """At most the steps of the epochs, however many are allowed."""
    problem, steps = Regression(noise=0), []
    schedule = Schedule(60, batch_size=8, patience=60, steps=999)
    trained = train(problem, DATA, schedule, progress=lambda *step: steps.append(step))
    assert (steps[0], steps[-1]) == ((1, 300), (trained.steps, 300))
    assert problem.progress[:8] == pytest.approx([step / 300 for step in range(8)])


def test_every_epoch_sees_every_row_once_in_another_order():
    problem = Regression()
    train(problem, DATA, Schedule(3, batch_size=8, patience=9))
    epochs = [list(chain(*problem.seen[i : i + 5])) for i in (0, 5, 10)]
    assert all(sorted(rows) == list(range(40)) for rows in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_the_users_random_state_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    train(Regression(), DATA, Schedule(1))
    assert torch.equal(torch.rand(1), expected)


def test_the_best_weights_come_back_and_training_stops():
    """The second epoch is the best by the given numbers; two worse ones end the training."""
    problem, kept = Regression([3.0, 1.0, 2.0, 1.5, 0.0]), []

    def report(line: str) -> None:
        kept.append(problem.weight.detach().clone())

    trained = train(problem, DATA, Schedule(5, batch_size=8, patience=2), report=report)
    assert trained.stopped_early
    assert len(kept) == 4
    assert (trained.best, trained.best_epoch) == (1.0, 2)
    assert torch.equal(problem.weight.detach(), kept[1])


def test_no_step_follows_the_epoch_that_ends_the_patience():
    """The first of nine epochs is the best, and two worse ones are waited for."""
    problem, lines = Regression([1.0, 2.0, 2.0]), []
    trained = train(problem, DATA, Schedule(9, batch_size=8, patience=2), report=lines.append)
    assert (trained.stopped_early, trained.steps, len(problem.seen)) == (True, 15, 15)
    assert ["stopping early" in line for line in lines] == [False, False, True]


def test_patience_that_ends_with_the_last_epoch_stops_nothing():
    lines = []
    schedule = Schedule(3, batch_size=8, patience=2)
    trained = train(Regression([1.0, 2.0, 2.0]), DATA, schedule, report=lines.append)
    assert (trained.stopped_early, trained.waited, trained.steps) == (False, 2, 15)
    assert "stopping early" not in lines[-1]


def test_epochs_that_cannot_be_judged_yet_do_not_try_the_patience():
    """After the first judged epoch two are not; the fifth is better, and two worse ones follow."""
    problem = Regression([None, 2.0, None, None, 1.0, 1.5, None, 1.2, 0.0])
    trained = train(problem, DATA, Schedule(9, batch_size=8, patience=2))
    assert (trained.best, trained.best_epoch, trained.waited) == (1.0, 5, 2)
    assert trained.stopped_early
    assert len(trained.history) == 8


def test_batches_of_many_tokens_are_trained_on_in_parts(monkeypatch):
    """The same steps, but for rounding, with the memory of a part; three tokens in each row."""
    found = []
    for most in (2048, 7):
        monkeypatch.setattr(loop, "most_tokens", lambda *_, most=most: most)
        problem = Regression(noise=0)
        trained = train(problem, DATA, Schedule(3, batch_size=8, weight_decay=0, patience=9))
        sizes = {len(rows) for rows in problem.seen}
        losses = [epoch["loss"] for epoch in trained.history]
        found.append((sizes, trained.steps, losses, problem.weight.detach()))
    whole, parts = found
    assert (whole[0], parts[0]) == ({8}, {2})
    assert whole[1] == parts[1] == 15
    torch.testing.assert_close(parts[2:], whole[2:], rtol=1e-5, atol=1e-6)


class Stop(Exception):
    pass


def stop_at(step: int):
    """A training's progress, which interrupts it."""

    def interrupt(done: int, total: int) -> None:
        if done == step:
            raise Stop

    return interrupt


@pytest.mark.parametrize(("limit", "step"), [(None, 3), (None, 5), (7, 6)])
def test_a_stopped_training_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch, limit, step):
    """Saved after every step; stopped within the first epoch, at its end, and in the last."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1.0)
    schedule = Schedule(4, batch_size=8, patience=9, steps=limit)
    whole, state = Regression(), tmp_path / "state.safetensors"
    expected = train(whole, DATA, schedule, seed=3)
    assert expected.steps == (limit or 20)
    with pytest.raises(Stop):
        train(Regression(), DATA, schedule, seed=3, state=state, progress=stop_at(step))
    rest = Regression()
    result = train(rest, DATA, schedule, seed=3, state=state)
    for name in ("steps", "best", "best_epoch", "waited"):
        assert getattr(result, name) == getattr(expected, name)
    assert torch.equal(rest.weight, whole.weight)
    # Finished: going on again does nothing, and gives the same weights.
    again = Regression()
    train(again, DATA, schedule, seed=3, state=state)
    assert torch.equal(again.weight, whole.weight)
    assert not again.seen


def test_the_rate_rises_then_falls():
    """Warm-up over a quarter of 20 steps, then linearly to zero; one group stays constant."""
    problem = Regression()
    constant = {"params": [nn.Parameter(torch.zeros(1))], "lr": 0.4, "decay": False}
    groups = [*problem.groups(), constant]
    problem.groups = lambda: groups
    run = loop._Run(problem, DATA, Schedule(4, batch_size=8, warmup=0.25, patience=9), 0, None)
    rates: list[list[float]] = []
    for epoch in range(4):
        for batch in run.batches.of_epoch(epoch):
            run.step(batch)
            rates.append([group["lr"] for group in run.optimizer.param_groups])
    first, second = zip(*rates, strict=True)
    assert first[:5] == pytest.approx([0.1 * (i + 1) / 6 for i in range(5)])
    assert first[5:] == pytest.approx([0.1 * (20 - i) / 15 for i in range(5, 20)])
    assert second[5:] == pytest.approx([0.4] * 15)


class Other(Regression):
    def tensors(self):
        return {"other": self.weight}


@pytest.mark.parametrize("damage", ["cut off", "of another version", "of another training"])
def test_an_unusable_state_is_made_again_with_a_message(tmp_path: Path, damage: str):
    schedule, state, lines = Schedule(2, batch_size=8), tmp_path / "state.safetensors", []
    whole = Regression()
    expected = train(whole, DATA, schedule, state=state)
    if damage == "cut off":
        state.write_bytes(state.read_bytes()[:-20])
    elif damage == "of another version":
        save_file(load_file(state), state, {"trained": '{"steps": 5, "best_score": 1.0}'})
    else:
        state.unlink()
        train(Other(), DATA, Schedule(1), state=state)
    again = Regression()
    assert train(again, DATA, schedule, state=state, report=lines.append) == expected
    assert str(state) in lines[0]
    assert len(lines) == 3
    assert torch.equal(again.weight, whole.weight)
    train(Regression(), DATA, schedule, state=state, report=lines.append)
    assert len(lines) == 3  # the file is whole again


def test_losses_are_read_some_steps_later_on_a_gpu(tmp_path: Path, monkeypatch):
    """The same epoch, and what a loss that is not finite has spoiled is not saved."""

    class Spoiled(Regression):
        def loss(self, batch, progress, whole):
            return super().loss(batch, progress, whole) * (float("nan") if progress > 0.5 else 1)

    histories = []
    for most in (1, 3):
        monkeypatch.setitem(loop.UNREAD_STEPS, "cpu", most)
        histories.append(train(Regression(), DATA, Schedule(3, batch_size=8)).history)
    assert histories[0] == histories[1]
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_MOST_SAVING", 1e9)
    state = tmp_path / "state.safetensors"
    with raises(InputError, "loss-not-finite") as caught:
        train(Spoiled(), DATA, Schedule(2, batch_size=8, patience=9), state=state)
    assert "nan at step 6;" in str(caught.value)
    assert load_file(state)["now.weight"].isfinite().all()


def test_a_limit_of_time_ends_the_training_and_the_decay(monkeypatch):
    """A clock that each look at moves on by a second: two looks a step, two a validation."""
    seconds = iter(range(10_000))
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(seconds)))
    problem, shown, rates = Regression(noise=0), [], []
    step = torch.optim.AdamW.step

    def noting(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", noting)
    schedule = Schedule(60, batch_size=8, warmup=0.1, patience=60, seconds=50)
    trained = train(problem, DATA, schedule, progress=lambda *step: shown.append(step))
    assert 50 <= trained.seconds <= 53
    assert 20 < trained.steps < 50 < 300
    assert shown[-1] == (300, 300)
    assert rates.index(max(rates)) < 10
    assert rates[-1] < 0.1 * max(rates)
    assert sorted(rates[10:], reverse=True) == rates[10:]


def test_time_before_a_stop_counts(tmp_path: Path, monkeypatch):
    """A training that had its time does not go on."""
    seconds = iter(range(10_000))
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(seconds)))
    state, schedule = tmp_path / "state", Schedule(60, batch_size=8, patience=60, seconds=50)
    first = train(Regression(), DATA, schedule, state=state)
    again = train(Regression(), DATA, schedule, state=state)
    assert (again.steps, again.seconds) == (first.steps, first.seconds)


def test_a_tenth_of_the_rows_is_held_out_but_at_least_eight():
    for count, held in ((120, 12), (40, 8), (16, 8)):
        learn, out = hold_out((EXAMPLES * 3)[:count], seed=1)
        assert (len(learn), len(out)) == (count - held, held)


@pytest.mark.parametrize(("lines", "held"), [(40, 8), (41, 20), (3000, 20)])
def test_half_of_the_rows_is_held_out_beside_more_text(lines: int, held: int):
    text = SimpleNamespace(rows=lines)
    learn, out = hold_out(EXAMPLES, 1, text)
    assert (len(learn), len(out)) == (40 - held, held)
    _, without_text = hold_out(EXAMPLES, 1)
    assert {e.row for e in without_text} <= {e.row for e in out}
    assert len(hold_out(EXAMPLES * 30, 1, text)[1]) == (500 if lines > 1200 else 120)


def test_held_out_rows_are_drawn_by_the_seed():
    """The same rows as ever, whatever the order of the first epoch is; both parts in order."""
    learn, held = hold_out(EXAMPLES, 1)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1 << 20)).tolist()
    assert [e.row for e in held] == sorted(order[:8])
    assert [e.row for e in learn] == sorted(order[8:])
    assert hold_out(EXAMPLES, 2) != (learn, held)


def test_too_few_rows_to_hold_some_out_are_an_error():
    with raises(InputError, "too-few-rows-to-train") as caught:
        hold_out(EXAMPLES[:15], 1)
    assert "15 calibration rows are too few to train on; give at least 16" in str(caught.value)


def test_waiting_for_losses_counts(monkeypatch):
    """On a GPU, steps are only queued until their losses are read."""
    clock, read = [0.0], loop._Run.read_losses

    def waits(run):
        clock[0] += len(run._unread)
        read(run)

    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    monkeypatch.setitem(loop.UNREAD_STEPS, "cpu", 4)
    monkeypatch.setattr(loop._Run, "read_losses", waits)
    trained = train(Regression(), DATA, Schedule(60, batch_size=8, patience=60, seconds=20))
    assert 20 <= trained.steps <= 24
    assert trained.seconds == trained.steps
