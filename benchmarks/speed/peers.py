"""One model, opened by each of the programs that can serve it, here or in a process of its own.

Every peer takes the same padded batches of token ids. A classifier returns logits; a translator
returns, by greedy search, the given number of token ids per row (None: until the sentence ends).
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compressor.tasks import TASKS
from compressor.throughput.memory import device_mib, host_peak_mib
from compressor.throughput.workloads import Batch

ROOT = Path(__file__).parents[2]
# Rows of token ids (translators), or an array of logits; the number of tokens to generate.
Run = Callable[[Batch, int | None], Any]
VOCABULARY_MAP = "vmap.txt"  # CTranslate2's name for it in a converted model


@dataclass(frozen=True)
class Peer:
    """One way to serve the model.

    Args:
        name: as the tables show it.
        program: `compress`, `eager`, `compile`, `ctranslate2` (all threads on one batch) or
            `ctranslate2-workers` (a part of the batch for each thread).
        directory: what the program opens.
        precision: as the program calls it.
        bytes: size of the weights on disk.
    """

    name: str
    program: str
    directory: str
    task: str
    precision: str
    bytes: int


def open_peer(peer: Peer, device: str, threads: int) -> Run:
    """Load the model; returns a function that runs one batch."""
    return {
        "compress": _compress,
        "eager": _transformers,
        "compile": _transformers,
        "ctranslate2": _ctranslate2,
        "ctranslate2-workers": _ctranslate2,
    }[peer.program](peer, device, threads)


def _compress(peer: Peer, device: str, threads: int) -> Run:
    options: dict[str, Any] = {"precision": peer.precision, "device": device, "threads": threads}
    runtime = TASKS[peer.task].open(peer.directory, **options)
    if peer.task != "translation":
        return lambda batch, _: runtime.compute(batch)
    return lambda batch, length: runtime.compute(
        batch, forced_length=length, num_beams=None if length else 1
    )


def _transformers(peer: Peer, device: str, threads: int) -> Run:
    import torch
    import transformers

    torch.set_num_threads(threads)
    generates = peer.task == "translation"
    kind = getattr(transformers, TASKS[peer.task].auto_class)
    kinds = {"fp32": torch.float32, "fp16": torch.float16}
    model = kind.from_pretrained(peer.directory, dtype=kinds[peer.precision]).to(device).eval()
    # No warning that one limit overrides another.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if peer.program == "compile":
        model.forward = torch.compile(model.forward, dynamic=True)

    @torch.inference_mode()
    def run(batch: Batch, length: int | None) -> Any:
        inputs = {name: torch.from_numpy(value).to(device) for name, value in batch.items()}
        if not generates:
            return model(**inputs).logits.float().cpu().numpy()
        limits = {} if length is None else {"min_new_tokens": length, "max_new_tokens": length}
        found = model.generate(**inputs, num_beams=1, do_sample=False, **limits)
        return _cut(found[:, 1:].tolist(), model.generation_config.eos_token_id, length)

    return run


def _cut(rows: list[list[int]], end: int, length: int | None) -> list[list[int]]:
    """Without what follows the first end token, where sentences end by themselves."""
    if length is not None:
        return rows
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def _ctranslate2(peer: Peer, device: str, threads: int) -> Run:
    import ctranslate2

    workers = threads if peer.program == "ctranslate2-workers" else 1
    share = {"inter_threads": workers, "intra_threads": threads // workers}
    translator = ctranslate2.Translator(
        peer.directory, device=device, compute_type=peer.precision, **share
    )
    mapped = (Path(peer.directory) / VOCABULARY_MAP).exists()
    names = json.loads((Path(peer.directory) / "shared_vocabulary.json").read_text("utf-8"))
    ids = {name: i for i, name in enumerate(names)}

    def run(batch: Batch, length: int | None) -> list[list[int]]:
        rows = [
            [names[i] for i in row[:count]]
            for row, count in zip(
                batch["input_ids"].tolist(), batch["attention_mask"].sum(1).tolist(), strict=True
            )
        ]
        limits = {}
        if length is not None:
            limits = {"min_decoding_length": length, "max_decoding_length": length}
        part = -(-len(rows) // workers)
        found = translator.translate_batch(rows, beam_size=1, max_batch_size=part, use_vmap=mapped,
                                           **limits)  # fmt: skip
        return [[ids[name] for name in row.hypotheses[0]] for row in found]

    return run


def convert(checkpoint: Path, directory: Path, precision: str, parallel: str) -> None:
    """Convert the checkpoint with CTranslate2's own program, unless that was done before.

    Args:
        parallel: TSV of sentence pairs to make a vocabulary map from.
    """
    if not (directory / "model.bin").exists():
        from ctranslate2.converters import TransformersConverter

        given = directory.with_suffix(".vmap")
        given.write_text(vocabulary_map(checkpoint, Path(parallel)), encoding="utf-8")
        converter = TransformersConverter(str(checkpoint))
        converter.convert(str(directory), quantization=precision, vmap=str(given))


def vocabulary_map(checkpoint: Path, parallel: Path, most: int = 100) -> str:
    """CTranslate2's map from source pieces to the target pieces that are scored with them.

    As in Marian's lexical shortlists: the `most` commonest target pieces always, and for each
    source piece the `most` that occur with it most strongly, by the Dice coefficient
    2 · together / (source + target), counted in sentences.
    """
    from scipy.sparse import csr_array
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    lines = parallel.read_text(encoding="utf-8").splitlines()[1:]
    sources, targets = zip(*(line.split("\t")[:2] for line in lines), strict=True)

    def occurrences(rows: list[list[int]]) -> csr_array:
        """[sentences, pieces], 1 where the piece occurs."""
        ids = [sorted(set(row)) for row in rows]
        ends = np.cumsum([0, *map(len, ids)])
        columns = np.concatenate([np.array(row, np.int64) for row in ids])
        shape = (len(ids), len(tokenizer))
        return csr_array((np.ones(len(columns), np.float32), columns, ends), shape=shape)

    source = occurrences(tokenizer(list(sources)).input_ids)
    target = occurrences(tokenizer(text_target=list(targets)).input_ids)
    together = csr_array(source.T @ target)
    counts = source.sum(axis=0), target.sum(axis=0)
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    commonest = np.argsort(-counts[1])[:most]
    found = ["\t" + " ".join(names[i] for i in commonest)]
    for piece in np.flatnonzero(counts[0]):
        start, end = together.indptr[piece : piece + 2]
        others, shared = together.indices[start:end], together.data[start:end]
        dice = 2 * shared / (counts[0][piece] + counts[1][others])
        best = others[np.argsort(-dice)[:most]]
        found.append(f"{names[piece]}\t" + " ".join(names[i] for i in best))
    return "\n".join(found) + "\n"


def measure_fresh(
    peer: Peer, batch: Batch, length: int | None, device: str, threads: int
) -> dict[str, float | None]:
    """`load_seconds`, `first_seconds` (of the first batch) and `peak_mib` of a new process.

    Loading includes the import of the program's libraries. On CUDA `peak_mib` is GPU memory, None
    where the driver does not report it.
    """
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "batch.npz", **batch)  # type: ignore[arg-type]
        request = Path(folder) / "request.json"
        content = {"peer": asdict(peer), "length": length, "device": device, "threads": threads}
        content["batch"] = str(Path(folder) / "batch.npz")
        request.write_text(json.dumps(content), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.speed.peers", str(request)],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{peer.name} failed in a new process: {done.stderr[-2000:]}")
    found: dict[str, float | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(path: str) -> None:
    """Answer a request of `measure_fresh`, in its process."""
    request: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    begun = time.perf_counter()
    run = open_peer(Peer(**request["peer"]), request["device"], request["threads"])
    loaded = time.perf_counter()
    with np.load(request["batch"]) as arrays:
        batch = dict(arrays)
    start = time.perf_counter()
    run(batch, request["length"])
    answer = {
        "load_seconds": loaded - begun,
        "first_seconds": time.perf_counter() - start,
        "peak_mib": device_mib() if request["device"] == "cuda" else host_peak_mib(),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
