"""A translator of NLLB's shape, with random weights, cut to one pair of languages.

    python -m benchmarks.one_pair --work DIR [--tokens 21346 --width 256 --layers 4]

NLLB-600M has 256,206 tokens, width 1,024 and 12 layers in each stack. A quarter of the width, a
third of the layers and a twelfth of the tokens keep the share that tokens have of the weights,
43 %. The tokenizer is NLLB's kind: byte pairs of the
bundled rows, and of made-up words of 200 more languages in scripts of their own. As in trained
models the decoder prefers tokens of the target language. `compress export` writes int8 graphs of
the whole model, and of the one with the tokens of the rows; translations of these rows are
compared, greedy and with four beams.

Results: benchmarks/results/one-pair.json and .md; earlier shapes stay.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import pages
from compressor import example
from compressor.export.task_graphs import graph_bytes
from compressor.model.modes import quiet_transformers
from compressor.runtime import Translator
from compressor.throughput.hardware import describe

PAIR = ("eng_Latn", "deu_Latn")
SHARE = 10  # of how many tokens one is trained on the two languages
BEAMS, MOST = 4, 24  # and tokens to generate
# Bonus of the target language's tokens in logits; those of others have a standard deviation of 1.
PREFERENCE = 12.0
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
# Scripts with many letters, of which each made-up language takes some.
_LETTERS = [chr(i) for first, last in ((0x400, 0x460), (0x531, 0x557), (0x904, 0x93A),
                                        (0xE01, 0xE2F), (0x10D0, 0x10F1), (0x1200, 0x1249),
                                        (0x3041, 0x3097), (0xAC00, 0xB000))
            for i in range(first, last)]  # fmt: skip


def rows() -> tuple[list[str], list[str]]:
    """Sentences of the bundled rows in both languages."""
    lines = [
        line.split("\t")
        for path in (example.calibration(), example.test())
        for line in Path(path).read_text(encoding="utf-8").splitlines()[1:]
    ]
    return [x[0] for x in lines], [x[1] for x in lines]


def byte_pairs(texts: Sequence[str], size: int) -> dict[str, Any]:
    """Tokens and merges of texts, and of made-up languages up to a number of tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=size // SHARE, special_tokens=[*_SPECIAL], show_progress=False, min_frequency=1
    )
    backend.train_from_iterator(texts, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens, merges = model["vocab"], [tuple(x) for x in model["merges"]]
    rng = random.Random(0)
    for letter in _LETTERS:
        tokens.setdefault(letter, len(tokens))
    alphabets = [rng.sample(_LETTERS, 24) for _ in range(200)]
    beginnings = [["▁"] for _ in alphabets]
    while len(tokens) < size:  # each word is one that was made before, and a letter
        language = rng.randrange(len(alphabets))
        start, letter = rng.choice(beginnings[language]), rng.choice(alphabets[language])
        if start + letter not in tokens:
            tokens[start + letter] = len(tokens)
            merges.append((start, letter))
            beginnings[language].append(start + letter)
    return {"vocab": tokens, "merges": merges}


@torch.no_grad()
def make(directory: Path, tokens: int, width: int, layers: int) -> Path:
    """A checkpoint, unless the directory has it already."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

    if (directory / "tokenizer_config.json").exists():  # written last
        return directory
    sources, targets = rows()
    special = 203  # languages, and <mask>
    made = byte_pairs([*sources, *targets], tokens - special)
    tokenizer = NllbTokenizer(**made, src_lang=PAIR[0], tgt_lang=PAIR[1], model_max_length=512)
    torch.manual_seed(0)
    config = M2M100Config(
        vocab_size=len(tokenizer), d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=width // 64, decoder_attention_heads=width // 64,
        encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, max_position_embeddings=512,
        scale_embedding=True, init_std=width**-0.5,
    )  # fmt: skip
    model = M2M100ForConditionalGeneration(config).eval()
    rng = torch.Generator().manual_seed(1)
    preferred = torch.nn.functional.normalize(torch.randn(width, generator=rng), dim=0)
    written = {i for ids in tokenizer(text_target=targets)["input_ids"] for i in ids}
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and "shared" not in name:  # attentions that are not uniform
            weight.normal_(0, 1.5 * weight.shape[1] ** -0.5)
    # Little of it in the embeddings, which layers read, and much in the last states.
    table = model.model.shared.weight
    table -= torch.outer(table @ preferred, preferred)
    table[sorted(written)] += 0.1 * preferred
    model.model.decoder.layer_norm.bias += 10 * PREFERENCE * preferred
    model.generation_config.update(
        max_length=512,
        no_repeat_ngram_size=2,
        forced_bos_token_id=tokenizer.convert_tokens_to_ids(PAIR[1]),
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def export(model: Path, output: Path, *options: object) -> Path:
    """Export graphs in float32 and int8, unless they are there already."""
    if not (output / "onnx").exists():
        command = [sys.executable, "-m", "compressor", "export", "-m", model, "-o", output]
        command += ["--precision", "fp32,int8", *options]
        subprocess.run([str(x) for x in command], check=True)
    return output


def by_transformers(directory: Path, texts: Sequence[str], beams: int) -> list[str]:
    """Translations of a checkpoint, all tokens allowed, without code of this package."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    with quiet_transformers(), torch.no_grad():
        tokenizer = AutoTokenizer.from_pretrained(directory)
        model = AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
        found: list[str] = []
        for first in range(0, len(texts), 16):
            batch = tokenizer(list(texts[first : first + 16]), padding=True, return_tensors="pt")
            ids = model.generate(**batch, num_beams=beams, do_sample=False, max_new_tokens=MOST)
            found += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return found


def by_graphs(directory: Path, precision: str, texts: Sequence[str], beams: int) -> list[str]:
    translator = Translator(directory, precision=precision)
    return translator.translate(list(texts), num_beams=beams, max_new_tokens=MOST)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Sizes of both models, and how many translations are the same."""
    shape = {"tokens": args.tokens, "width": args.width, "layers": args.layers}
    work = args.work / "-".join(map(str, shape.values()))
    model, (sources, targets) = make(work / "whole", **shape), rows()
    for name, texts in (("source.txt", sources), ("target.txt", targets)):
        (work / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    options = ("--source-text", work / "source.txt", "--target-text", work / "target.txt")
    whole, cut = export(model, work / "all-tokens"), export(model, work / "pair", *options)
    checkpoints = (model, cut)
    facts: dict[str, Any] = {
        **shape,
        "kept": [_setting(x, "vocab_size") for x in checkpoints],
        "checkpoint_bytes": [(x / "model.safetensors").stat().st_size for x in checkpoints],
        "int8_bytes": [graph_bytes(x, "int8") for x in (whole, cut)],
        "tokenizer_bytes": [(x / "tokenizer.json").stat().st_size for x in checkpoints],
        "lines": args.lines,
        "same": {},
    }
    some = sources[: args.lines]
    for beams in (1, BEAMS):
        wanted = by_transformers(model, some, beams)
        of_int8 = by_graphs(whole, "int8", some, beams)
        compared = {
            "transformers": (wanted, by_transformers(cut, some, beams)),
            "graphs, fp32": (wanted, by_graphs(cut, "fp32", some, beams)),
            "graphs, int8": (of_int8, by_graphs(cut, "int8", some, beams)),
        }
        for name, pair in compared.items():
            same = sum(a == b for a, b in zip(*pair, strict=True))
            facts["same"].setdefault(name, []).append(same)
        facts.setdefault("different_translations", []).append(len(set(wanted)))
    return facts


def _setting(directory: Path, name: str) -> int:
    return int(json.loads((directory / "config.json").read_text(encoding="utf-8"))[name])


def table(results: Sequence[Mapping[str, Any]]) -> str:
    titles = ["tokens, width, layers", "tokens kept", "checkpoint, MB", "int8 graphs, MB"]
    titles += ["lines translated", "the same in transformers", "fp32 graphs", "int8 graphs"]
    lines = []
    for x in sorted(results, key=lambda x: (x["tokens"], x["width"])):
        shape = f"{x['tokens']:,}, {x['width']}, {x['layers']} + {x['layers']}"
        same = [" and ".join(map(str, counts)) for counts in x["same"].values()]
        sizes = [_change(x[name], 1e6) for name in ("checkpoint_bytes", "int8_bytes")]
        lines.append([shape, _change(x["kept"], 1), *sizes, str(x["lines"]), *same])
    return pages.markdown_table(titles, "lr", lines) + "\n"


def _change(values: Sequence[int], unit: float) -> str:
    before, after = (x / unit for x in values)
    return f"{before:,.0f} → {after:,.0f} ({after / before:.0%})"


def main() -> None:
    parser = pages.arguments(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="models, reused by later calls")
    parser.add_argument("--tokens", type=int, default=21_346)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4, help="of each stack")
    parser.add_argument("--lines", type=int, default=64, help="to translate")
    args = parser.parse_args()
    found = measure(args) | {"hardware": describe()}
    path = pages.RESULTS / "one-pair.json"
    results = pages.merge_rows(path, [found], lambda x: (x["tokens"], x["width"], x["layers"]))
    pages.publish("one-pair", table(results))


if __name__ == "__main__":
    main()
