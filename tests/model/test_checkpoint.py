"""Saving and loading: what comes back is what was saved, or there is an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import ModelCard, ModelCardData
from safetensors.torch import load_file, save_file

import compressor
from compressor.errors import InputError, UsageError
from compressor.model import checkpoint, memory
from compressor.model.checkpoint import open_checkpoint, round_to, save_checkpoint
from compressor.model.layers import find_sublayers
from compressor.model.memory import all_bytes, free_bytes, release, trim_memory
from compressor.model.surgery import prune, remove_units
from compressor.model.weights import computed_weights
from compressor.options.inputs import load
from compressor.options.sections import ModelSection
from compressor.report.card_facts import CardFacts, read_card
from tests.helpers import toy
from tests.helpers.damaged_checkpoints import configure, rename
from tests.helpers.errors import raises
from tests.helpers.heads import HEADS, save_head, tiny_head
from tests.helpers.tiny import facts, ragged_batch, tiny_model, uneven_mask, word_tokenizer


def save_dense(name: str, directory, dtype=torch.float32, **options):
    model = tiny_model(name).to(dtype)
    model.save_pretrained(directory, **options)
    word_tokenizer().save_pretrained(directory)
    return model


@torch.no_grad()
def logits(directory) -> torch.Tensor:
    model = open_checkpoint(str(directory)).model
    return model(**ragged_batch(model)).logits


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    root = tmp_path_factory.mktemp("pruned")
    return toy.pruned(toy.translator(root / "dense"), root / "pruned")


def test_pickles_are_loaded_only_when_asked_for_and_keep_their_precision(tmp_path):
    model = save_dense("bert", tmp_path, torch.bfloat16)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with raises(InputError, "weights-pickled"):
        open_checkpoint(str(tmp_path))
    loaded = open_checkpoint(str(tmp_path), allow_pickle=True)
    assert loaded.dtype == torch.bfloat16
    batch = ragged_batch(model)
    torch.testing.assert_close(loaded.model(**batch).logits, model.float()(**batch).logits)


NAMES = {str(number): name for number, name in enumerate("abcde")}
SCALED = {"full_attention": {"rope_type": "linear", "factor": 2.0}}
MALFORMED, VARIANT = "config-malformed", "architecture-variant-unsupported"


@pytest.mark.parametrize(
    ("name", "change", "id"),
    [
        ("bert", {"id2label": NAMES | {"3": " a"}, "label2id": {}}, MALFORMED),
        ("bert", {"id2label": NAMES, "label2id": {"a": 1, "b": 0}}, MALFORMED),
        ("bert", {"id2label": NAMES, "label2id": {}, "num_labels": 3}, MALFORMED),
        # transformers would name these classes LABEL_0 and so on.
        ("bert", {"id2label": None, "label2id": {"a": 0, "b": 1}}, MALFORMED),
        ("mpnet", {"pad_token_id": 0}, VARIANT),
        ("deberta-v2", {"type_vocab_size": 2}, VARIANT),
        ("modernbert", {"rope_parameters": SCALED}, VARIANT),
    ],
)
def test_what_would_be_silently_wrong_is_refused(name, change, id, tmp_path):
    save_dense(name, tmp_path)
    configure(id2label=NAMES)(tmp_path)  # and label2id has LABEL_0 and so on
    config = open_checkpoint(str(tmp_path)).model.config
    assert list(config.id2label.values()) == list("abcde")
    configure(**change)(tmp_path)
    with raises(InputError, id):
        open_checkpoint(str(tmp_path))


def test_what_cannot_be_opened_as_asked(pruned):
    for path in (pruned / "nothing" / "here", pruned / "config.json"):
        with raises(InputError, "checkpoint-missing"):
            open_checkpoint(str(path))
    with raises(InputError, "revision-of-directory"):
        open_checkpoint(str(pruned), revision="main")
    with raises(InputError, "checkpoint-already-pruned"):
        open_checkpoint(str(pruned), dense=True)


@pytest.mark.parametrize(("name", "dtype"), [("bert", torch.float32), ("marian", torch.float16)])
def test_weights_in_several_files(name: str, dtype, tmp_path, monkeypatch):
    """Read from several, and written to several; transformers reads those too."""
    model = save_dense(name, tmp_path / "dense", dtype, max_shard_size="20KB").float()
    assert len(list((tmp_path / "dense").glob("*.safetensors"))) > 1
    dense = open_checkpoint(str(tmp_path / "dense"))
    assert dense.dtype == dtype
    computed = computed_weights(dense.model)
    for key, value in model.state_dict().items():
        assert key in computed or torch.equal(dense.model.state_dict()[key], value)
    mask = uneven_mask(dense.layers)
    pruned = prune(dense.model, dense.layers, mask)
    round_to(pruned, dense.dtype)
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 20_000)
    files = save_checkpoint(dense, pruned, facts(dense.layers, mask), tmp_path / "several")
    stored = [load_file(path) for path in files if path.suffix == ".safetensors"]
    assert len(stored) > 1
    assert {value.dtype for part in stored for value in part.values()} == {dtype}
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text("utf-8"))
    size = sum(value.nbytes for part in stored for value in part.values())
    assert index["metadata"]["total_size"] == size
    theirs = getattr(transformers, dense.entry.auto_class).from_pretrained(
        tmp_path / "several", trust_remote_code=True, dtype=torch.float32
    )
    batch = ragged_batch(pruned)
    with torch.no_grad():
        expected = pruned(**batch).logits
        for loaded in (compressor.load(tmp_path / "several"), theirs.eval()):
            torch.testing.assert_close(loaded(**batch).logits, expected, rtol=0, atol=1e-6)


def test_weights_without_the_encoders_name_are_read(tmp_path):
    save_dense("bert", tmp_path)
    before = logits(tmp_path)
    rename(lambda x: x.removeprefix("bert."))(tmp_path)
    assert torch.equal(logits(tmp_path), before)


# Each changes nothing, so that those of a model are tried together.
WITHOUT_EFFECT = [
    ("bert", {
        "is_decoder": False, "add_cross_attention": False, "use_cache": False,
        "pruned_heads": {"0": []}, "torchscript": True, "gradient_checkpointing": True,
        "attn_implementation": "flash_attention_2", "position_embedding_type": "absolute",
        "problem_type": "single_label_classification", "dtype": "bfloat16",
        "auto_map": {"AutoTokenizer": "x.Y"}, "tie_word_embeddings": False,
    }),
    ("bert", {
        "_attn_implementation": "flex_attention", "chunk_size_feed_forward": 2,
        "output_hidden_states": True, "return_dict": False,
    }),
    ("marian", {
        "is_decoder": True, "add_cross_attention": True, "use_cache": False,
        "output_attentions": True, "output_hidden_states": True, "return_dict": False,
        "encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5, "torch_dtype": "float16",
        "normalize_embedding": False, "static_position_embeddings": True,
    }),
    ("bart", {"normalize_before": False, "add_final_layer_norm": False, "pruned_heads": {}}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), WITHOUT_EFFECT)
def test_settings_that_change_nothing(name, changes, tmp_path):
    save_dense(name, tmp_path)
    before = logits(tmp_path)
    configure(**changes)(tmp_path)
    assert torch.equal(logits(tmp_path), before)
    opened = open_checkpoint(str(tmp_path))
    opened.model.config.save_pretrained(tmp_path / "saved")  # what transformers can save, too


def without_class(directory: Path) -> Path:
    """The checkpoint, whose configuration no longer says which class it is of."""
    configure(architectures=None)(directory)
    return directory


def test_the_task_says_what_the_configuration_does_not(tmp_path):
    model = without_class(save_head(tmp_path / "m", "bert", "token-classification"))
    for task in HEADS:
        other = without_class(save_head(tmp_path / task, "electra", task))
        assert open_checkpoint(str(other), task=task).task == task
    with raises(InputError, "weights-do-not-fit") as caught:  # taken for a classifier of texts
        open_checkpoint(str(model))
    assert "--task" in str(caught.value)
    reader = save_head(tmp_path / "reader", "distilbert", "question-answering")
    for task in ("classification", "translation"):
        with raises(UsageError, "task-of-another-model") as caught:
            load(ModelSection(path=str(reader), task=task))
        assert "a model for question-answering" in str(caught.value)


def test_the_pooler_of_pretraining_is_left_out(tmp_path):
    """Taggers on the hub have it, although their class has none."""
    model, pretrained = tiny_head("bert", "token-classification"), tiny_model("bert")
    state = model.state_dict()
    state |= {name: x for name, x in pretrained.state_dict().items() if ".pooler." in name}
    model.save_pretrained(tmp_path, state_dict=state)
    word_tokenizer().save_pretrained(tmp_path)
    opened = open_checkpoint(str(tmp_path))
    batch = ragged_batch(model)
    assert torch.equal(opened.model(**batch).logits, model(**batch).logits)


def test_a_card_that_the_hubs_library_writes_is_read(tmp_path: Path):
    data = ModelCardData(
        license="other", license_name="mine", license_link="https://a.b/LICENSE",
        language=["en", "no"], base_model=["acme/one", "acme/two"], tags=["x"],
    )  # fmt: skip
    ModelCard(f"---\n{data.to_yaml()}\n---\n# Title\n").save(tmp_path / "README.md")
    assert read_card(tmp_path) == CardFacts(
        "other", "mine", "https://a.b/LICENSE", ("en", "no"), ("acme/one", "acme/two")
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nlicense: [\n---\n", CardFacts()),
        ("---\n- license\n---\n", CardFacts()),
        ("---\nlicense: 3\nlanguage: {en: de}\nbase_model: [1, '']\n---\n", CardFacts()),
        ("---\r\nlicense: mit\r\nlanguage: no\r\n---\r\n", CardFacts("mit", language=("no",))),
    ],
)
def test_a_card_that_says_nothing_is_no_error(text: str, expected, tmp_path: Path):
    assert read_card(tmp_path) == CardFacts()  # there is none
    (tmp_path / "README.md").write_bytes(text.encode())
    assert read_card(tmp_path) == expected


def resident_kib(path: Path) -> int:
    """Of the mappings of a file, by the kernel."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        if not line.partition(" ")[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("changed", [False, True])
def test_pages_of_mapped_weights_are_given_back_unless_one_was_changed(changed: bool, tmp_path):
    path = tmp_path / "model.safetensors"
    values = torch.arange(1 << 20, dtype=torch.float32)
    save_file({"x": values}, path)
    mapped = torch.from_file(str(path), shared=False, size=path.stat().st_size // 4)
    tail = mapped[-(1 << 20) :]  # behind the header
    assert tail.sum() == values.sum()
    if changed:
        tail[5] = -1.0
        values[5] = -1.0
    before = resident_kib(path)
    assert before >= 4096
    trim_memory()
    assert (resident_kib(path) < 64) != changed
    assert torch.equal(tail, values)


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_a_pruned_model_shares_the_weights_that_lose_nothing(name: str):
    model = tiny_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    batch = ragged_batch(model)
    layers = find_sublayers(model)
    mask = uneven_mask(layers)
    pruned = prune(model, layers, mask)
    own = dict(pruned.named_parameters())
    shared = [key for key, value in model.named_parameters() if own.get(key) is value]
    assert any("embed" in key or "shared" in key for key in shared)
    cut = [key for key, value in own.items() if value.shape != before[key].shape]
    assert cut
    assert not {*cut} & {*shared}
    alone = tiny_model(name)
    remove_units(alone, layers, mask)
    assert torch.equal(pruned(**batch).logits, alone(**batch).logits)
    release(pruned, keep=model)
    assert all(own[key].numel() == 0 for key in cut)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("limit", "used", "free", "whole"),
    [
        (None, None, 8 << 30, 16 << 30),  # no container
        ("max", "5000000000", 8 << 30, 16 << 30),
        (str(4 << 30), str(3 << 30), (1 << 30) + (1 << 29), 4 << 30),  # files count as free
        (str(4 << 30), str(5 << 30), 0, 4 << 30),
    ],
)
def test_memory_is_what_the_container_leaves(limit, used, free, whole, tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text(
        "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n", encoding="utf-8"
    )
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n", encoding="utf-8")
        (tmp_path / "memory.current").write_text(f"{used}\n", encoding="utf-8")
        stat = f"active_file 7\ninactive_file {1 << 29}\n"
        (tmp_path / "memory.stat").write_text(stat, encoding="utf-8")
    monkeypatch.setattr(memory, "_SYSTEM", tmp_path)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert (free_bytes(), all_bytes()) == (free, whole)
