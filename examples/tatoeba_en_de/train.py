"""Train the bundled English-German translator from tab-separated sentence pairs.

Three stages in one resumable command: a joint SentencePiece vocabulary, a Marian model trained
with label smoothing, and the export of its weight average as an OPUS-MT style directory.

    python examples/tatoeba_en_de/train.py --data DIR_WITH_TRAIN_VALID_TEST --output OUT

Running the same command again continues from the last checkpoint in OUT/state.pt.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

import sentencepiece as spm
import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

EOS, UNK = 0, 1  # OPUS-MT's convention; <pad> is the last entry and starts decoding


@dataclass(frozen=True)
class Recipe:
    vocab_pieces: int = 6000
    layers: int = 6
    heads: int = 8
    d_model: int = 256
    ffn_dim: int = 1024
    dropout: float = 0.15
    label_smoothing: float = 0.1
    batch_tokens: int = 4000  # padded tokens of the longer side; about 380 sentence pairs
    peak_lr: float = 2.5e-3
    warmup_steps: int = 200
    decay_share: float = 0.5  # of all steps, at the end
    ema_decay: float = 0.998
    seed: int = 20


def read_pairs(path: Path) -> list[tuple[str, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [tuple(line.split("\t")[:2]) for line in lines]  # type: ignore[misc]


def build_vocabulary(data: Path, out: Path, recipe: Recipe) -> None:
    """Train one SentencePiece model on both languages and write the Marian tokenizer files."""
    if (out / "vocab.json").exists():
        return
    sentences = [text for pair in read_pairs(data / "train.tsv") for text in pair]
    written = io.BytesIO()  # a file's model would name the directory that it was made in
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=written,
        vocab_size=recipe.vocab_pieces,
        model_type="unigram",
        character_coverage=0.9998,
        minloglevel=2,
    )
    for name in ("source.spm", "target.spm"):
        (out / name).write_bytes(written.getvalue())
    pieces = spm.SentencePieceProcessor(model_file=str(out / "source.spm"))
    vocab = {"</s>": EOS, "<unk>": UNK}
    for index in range(pieces.get_piece_size()):
        if not pieces.is_control(index) and not pieces.is_unknown(index):
            vocab[pieces.id_to_piece(index)] = len(vocab)
    vocab["<pad>"] = len(vocab)
    (out / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    MarianTokenizer(
        str(out / "source.spm"),
        str(out / "target.spm"),
        str(out / "vocab.json"),
        source_lang="en",
        target_lang="de",
        model_max_length=128,
    ).save_pretrained(out)


def build_model(out: Path, recipe: Recipe) -> MarianMTModel:
    vocab_size = len(json.loads((out / "vocab.json").read_text(encoding="utf-8")))
    pad = vocab_size - 1
    config = MarianConfig(
        vocab_size=vocab_size,
        decoder_vocab_size=vocab_size,
        d_model=recipe.d_model,
        encoder_layers=recipe.layers,
        decoder_layers=recipe.layers,
        encoder_attention_heads=recipe.heads,
        decoder_attention_heads=recipe.heads,
        encoder_ffn_dim=recipe.ffn_dim,
        decoder_ffn_dim=recipe.ffn_dim,
        dropout=recipe.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="swish",
        max_position_embeddings=128,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=pad,
        eos_token_id=EOS,
        decoder_start_token_id=pad,
        bos_token_id=EOS,
        forced_eos_token_id=None,
        init_std=recipe.d_model**-0.5,
    )
    model = MarianMTModel(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "embed" not in name and "shared" not in name:
            nn.init.xavier_uniform_(parameter)
    model.generation_config = GenerationConfig(
        pad_token_id=pad,
        eos_token_id=EOS,
        decoder_start_token_id=pad,
        bos_token_id=EOS,
        bad_words_ids=[[pad]],
        max_length=96,
        num_beams=1,
    )
    return model


def encode(data: Path, out: Path, split: str) -> list[tuple[list[int], list[int]]]:
    """Token ids of every pair, each sequence ended by EOS."""
    pieces = spm.SentencePieceProcessor(model_file=str(out / "source.spm"))
    vocab = json.loads((out / "vocab.json").read_text(encoding="utf-8"))
    source, target = zip(*read_pairs(data / f"{split}.tsv"), strict=True)

    def ids(texts: tuple[str, ...]) -> list[list[int]]:
        encoded = pieces.encode(list(texts), out_type=str)
        return [[vocab.get(piece, UNK) for piece in row] + [EOS] for row in encoded]

    return list(zip(ids(source), ids(target), strict=True))


def make_batches(rows: list, batch_tokens: int, rng: random.Random) -> list[list[int]]:
    """Index batches of similar length (noisy sort, so epochs differ), in random order."""
    key = [max(len(s), len(t)) + rng.random() * 0.9 for s, t in rows]
    order = sorted(range(len(rows)), key=key.__getitem__)
    batches, current, longest = [], [], 0
    for index in order:
        longest = max(longest, len(rows[index][0]), len(rows[index][1]))
        if current and longest * (len(current) + 1) > batch_tokens:
            batches.append(current)
            current, longest = [], max(map(len, rows[index]))
        current.append(index)
    batches.append(current)
    rng.shuffle(batches)
    return batches


def collate(rows: list, batch: list[int], pad: int) -> tuple[Tensor, Tensor]:
    def stack(column: int) -> Tensor:
        tensors = [torch.tensor(rows[i][column]) for i in batch]
        return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=pad)

    return stack(0), stack(1)


def attention_in_float32(module, query, key, value, mask, **options):
    """PyTorch's fused attention; on CPUs its backward pass is ten times as slow in bfloat16."""
    with torch.autocast("cpu", enabled=False):
        query, key, value = query.float(), key.float(), value.float()
        return sdpa_attention_forward(module, query, key, value, mask, **options)


AttentionInterface.register("attention_in_float32", attention_in_float32)
AttentionMaskInterface.register("attention_in_float32", sdpa_mask)


def loss_of(model: MarianMTModel, source: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Mean cross-entropy per target token, [batch, tokens] ids in, scalar out."""
    pad = model.config.pad_token_id
    start = torch.full_like(target[:, :1], pad)
    hidden = model.model(
        input_ids=source,
        attention_mask=(source != pad).long(),
        decoder_input_ids=torch.cat([start, target[:, :-1]], dim=1),
        use_cache=False,
    ).last_hidden_state
    real = target != pad
    logits = model.lm_head(hidden[real])  # [real tokens, vocabulary]
    return nn.functional.cross_entropy(logits, target[real], label_smoothing=smoothing)


def learning_rate(step: int, total: int, recipe: Recipe) -> float:
    """Linear warm-up, a constant stretch, linear decay to zero.

    The constant stretch lets `--steps` be changed on resuming, until the decay has begun.
    """
    warm = (step + 1) / recipe.warmup_steps
    decay = (total - step) / (total * recipe.decay_share)
    return recipe.peak_lr * max(0.0, min(1.0, warm, decay))


class Average:
    """Exponential moving average of the weights, bias-corrected; this is what is shipped."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.values = [torch.zeros_like(p) for p in model.parameters()]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.steps += 1
        torch._foreach_lerp_(self.values, list(model.parameters()), 1 - self.decay)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        correction = 1 - self.decay**self.steps
        for parameter, value in zip(model.parameters(), self.values, strict=True):
            parameter.copy_(value / correction)


class Muon(torch.optim.Optimizer):
    """Momentum whose update of each matrix is orthogonalized by Newton-Schulz (Jordan et al. 2024).

    torch.optim.Muon runs that iteration in bfloat16, which most CPUs emulate; this one takes the
    precision as an argument and all matrices of one shape in one batched product.
    """

    def __init__(self, matrices: list[nn.Parameter], lr: float, dtype: torch.dtype) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": 0.95, "weight_decay": 0.01})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                # Wide form, so that the small side is the one that is squared.
                wide = tuple(sorted(parameter.shape))
                shapes.setdefault(wide, []).append(parameter)
            for (short, long), parameters in shapes.items():
                update = torch.stack([self._momentum(p, group["momentum"]) for p in parameters])
                scale = 0.2 * math.sqrt(long)  # the update's size then matches Adam's
                for p, u in zip(parameters, orthogonalize(update.to(self.dtype)), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(u if p.shape[0] == short else u.T, alpha=-group["lr"] * scale)

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "buffer" not in state:
            state["buffer"] = torch.zeros_like(parameter)
        state["buffer"].lerp_(parameter.grad, 1 - momentum)
        nesterov = parameter.grad.lerp(state["buffer"], momentum)
        return nesterov if nesterov.shape[0] <= nesterov.shape[1] else nesterov.T


def orthogonalize(x: Tensor) -> Tensor:
    """Five quintic Newton-Schulz steps towards U V^T for x = U S V^T, [batch, short, long]."""
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315) @ x
    return x


def optimizers_for(
    model: nn.Module, recipe: Recipe, dtype: torch.dtype
) -> list[torch.optim.Optimizer]:
    """Muon for the weight matrices, AdamW for embeddings, biases and normalization."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    matrices = [p for n, p in named if p.dim() == 2 and "embed" not in n and "shared" not in n]
    rest = [p for _, p in named if not any(p is m for m in matrices)]
    adam = torch.optim.AdamW(
        rest, lr=recipe.peak_lr, betas=(0.9, 0.98), weight_decay=0.0, eps=1e-9, fused=True
    )
    return [Muon(matrices, recipe.peak_lr, dtype), adam]


def train(args: argparse.Namespace, recipe: Recipe) -> None:
    out: Path = args.output
    torch.manual_seed(recipe.seed)
    model = build_model(out, recipe)
    rows, valid = (encode(args.data, out, split) for split in ("train", "valid"))
    model.set_attn_implementation("attention_in_float32")
    dtype = torch.bfloat16 if args.bfloat16 else torch.float32
    optimizers, average = optimizers_for(model, recipe, dtype), Average(model, recipe.ema_decay)
    step, epoch, position, spent = 0, 0, 0, 0.0
    state_file = out / "state.pt"
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        average.values, average.steps = state["average"], state["step"]
        step, epoch, position, spent = (state[k] for k in ("step", "epoch", "position", "spent"))
        print(f"resumed at step {step}", flush=True)
    began = last_save = time.monotonic()
    running = 0.0
    while step < args.steps:
        batches = make_batches(rows, recipe.batch_tokens, random.Random(recipe.seed + epoch))
        for batch in batches[position:]:
            torch.manual_seed(recipe.seed * 1_000_003 + step)  # dropout, also after a resume
            for group in [g for o in optimizers for g in o.param_groups]:
                group["lr"] = learning_rate(step, args.steps, recipe)
            source, target = collate(rows, batch, model.config.pad_token_id)
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bfloat16):
                loss = loss_of(model.train(), source, target, recipe.label_smoothing)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad()
            average.update(model)
            step, position = step + 1, position + 1
            running = loss.item() if running == 0 else 0.98 * running + 0.02 * loss.item()
            seconds = spent + time.monotonic() - began
            if step % 50 == 0:
                print(
                    f"step {step}/{args.steps} epoch {epoch} loss {running:.3f} {seconds:.0f}s",
                    flush=True,
                )
            if time.monotonic() - last_save > args.save_seconds or step >= args.steps:
                save(state_file, model, optimizers, average, step, epoch, position, seconds)
                last_save = time.monotonic()
                print(f"valid loss {validate(model, average, valid, recipe):.4f}", flush=True)
            if step >= args.steps:
                break
        else:
            epoch, position = epoch + 1, 0
    average.copy_to(model)
    model.eval().half().save_pretrained(out)


def save(path: Path, model, optimizers, average, step, epoch, position, seconds) -> None:
    state = {
        "model": model.state_dict(),
        "optimizers": [o.state_dict() for o in optimizers],
        "average": average.values,
        "step": step,
        "epoch": epoch,
        "position": position,
        "spent": seconds,
    }
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


@torch.no_grad()
def validate(model: MarianMTModel, average: Average, valid: list, recipe: Recipe) -> float:
    """Mean validation cross-entropy per token of the averaged weights."""
    kept = [p.clone() for p in model.parameters()]
    average.copy_to(model)
    model.eval()
    total, tokens = 0.0, 0
    for batch in make_batches(valid, recipe.batch_tokens, random.Random(0)):
        source, target = collate(valid, batch, model.config.pad_token_id)
        count = int((target != model.config.pad_token_id).sum())
        total += loss_of(model, source, target, 0.0).item() * count
        tokens += count
    for parameter, value in zip(model.parameters(), kept, strict=True):
        parameter.copy_(value)
    return total / tokens if math.isfinite(total) else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="train.tsv, valid.tsv, test.tsv")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--layers", type=int, default=Recipe.layers, help="of each stack")
    parser.add_argument("--bfloat16", action="store_true", help="for processors with AMX")
    parser.add_argument("--save-seconds", type=float, default=300)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(layers=args.layers)
    build_vocabulary(args.data, args.output, recipe)
    train(args, recipe)


if __name__ == "__main__":
    main()
