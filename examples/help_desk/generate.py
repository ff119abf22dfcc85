"""Generate what people write to a help desk, with its intent: rows to train, calibrate and test on.

    python examples/help_desk/generate.py --output DIR

Rows are sentences of `patterns.txt` with names filled in, often behind a greeting or a detour, and
with spelling mistakes. The test rows come from sentences and detours that no other row comes from.
The same seed gives the same files, on every machine.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass
from pathlib import Path

PATTERNS = Path(__file__).with_name("patterns.txt")
SEED = 7
ROWS = {"train": 12_000, "valid": 600, "calibration": 1_000, "test": 2_000}
MISSPELLED = 0.06  # of all words

NAMES = {
    "app": "outlook|teams|excel|word|sap|the intranet|the travel tool|photoshop|zoom|the crm|jira|"
    "the time sheet|autocad|the browser|sharepoint",
    "device": "laptop|computer|phone|tablet|notebook|workstation|mobile|macbook",
    "person": "mr miller|ms lopez|anna|jonas|my colleague|my boss|tom|priya|dr okafor|mrs weber|"
    "sofia|mr tanaka",
    "place": "sales|the third floor|building 4|marketing|finance|the warehouse|the lab|room 112|"
    "the reception|human resources|the canteen",
    "time": "yesterday|on monday|this morning|last week|tomorrow|today|in march|on the first|"
    "two days ago|next week|on friday|at noon",
    "number": "4711|20331|118|90210|5550|73002|264",
    "thing": "wifi|vpn|printer|mailbox|license|account|camera|telephone|screen|keyboard|antivirus|"
    "backup|folder|monitor|battery|ticket|charger",
    "day": "monday|friday|saturday|sunday|christmas eve|public holidays|wednesday",
}
GREETINGS = ["hi", "hello", "good morning", "hey there", "dear help desk", "hello team", "hi all"]
ENDINGS = ["thanks", "thank you", "please help", "it is urgent", "best regards", "many thanks", "?"]
# Much of what is said is beside the point, and names the words of other intents.
DETOURS = [
    "i already restarted my {device}",
    "i was on holiday until today",
    "{person} told me to write to you",
    "i work in {place}",
    "i have tried everything",
    "sorry to bother you again",
    "i have a meeting {time} and need this before",
    "i called you {time} but nobody answered",
    "the {thing} is fine by the way",
    "my (password|{thing}) is not the problem",
    "no, it is not about the {thing}",
    "my {thing} works",
    "this time it is not the {thing}",
    "last time it was the {thing}",
    "i know how the {thing} works",
    "{person} looked at the {thing} {time}",
    "i asked about (a|the) {thing} {time}, now something else",
    "yes, i have a {thing}",
    "i have read the page on (the {thing}|{app})",
    "it has nothing to do with {app}",
    "{person} has the same problem",
    "everything else works, even the printer",
    "i wrote an email about this {time}",
    "i am not very good with computers",
    "it worked {time}",
]
TEST_DETOURS = [
    "i read the pages on {app} first",
    "i am asking for {person}",
    "before you ask, the {thing} is on",
    "we talked about this {time} at lunch",
    "a new {device} did not change that",
    "i do not know whether you are the right people",
    "as for the {thing}, it is all right",
    "the {device} of {person} is all right",
]


@dataclass(frozen=True)
class Patterns:
    """The sentences of one intent."""

    train: list[str]
    test: list[str]


def read_patterns(path: Path = PATTERNS) -> dict[str, Patterns]:
    """Intent -> its sentences."""
    found = {}
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for intent, block in re.findall(r"^\[(\w+)\]\n(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL):
        train, test = block.split("---\n")
        found[intent] = Patterns(train.strip().split("\n"), test.strip().split("\n"))
    return found


def fill(pattern: str, draw: random.Random) -> str:
    """A sentence: choices made, names filled in."""
    text = re.sub(r"\(([^()]*)\)", lambda found: draw.choice(found[1].split("|")), pattern)
    text = re.sub(r"\{(\w+)\}", lambda found: draw.choice(NAMES[found[1]].split("|")), text)
    return re.sub(r" +([,:])", r"\1", " ".join(text.split()))


def misspell(word: str, draw: random.Random) -> str:
    """One letter left out, doubled, or exchanged with the next."""
    at = draw.randrange(len(word) - 1)
    ends = [word[at + 1 :], word[at] + word[at:], word[at + 1] + word[at] + word[at + 2 :]]
    return word[:at] + draw.choice(ends)


def sentence(pattern: str, detours: list[str], draw: random.Random) -> str:
    """What somebody writes: a pattern filled in, with what surrounds it and its mistakes."""
    parts = [fill(pattern, draw)]
    if draw.random() < 0.4:
        parts.insert(draw.randrange(2), fill(draw.choice(detours), draw))
    if draw.random() < 0.3:
        parts.insert(0, draw.choice(GREETINGS))
    if draw.random() < 0.3:
        parts.append(draw.choice(ENDINGS))
    text = draw.choice([", ", ". ", " - "]).join(parts).replace(" - ?", "?").replace(", ?", "?")
    words = [
        misspell(word, draw) if word.isalpha() and draw.random() < MISSPELLED and word[1:] else word
        for word in text.replace(". ?", "?").split(" ")
    ]
    return " ".join(words)


def generate(seed: int = SEED) -> dict[str, list[tuple[str, str]]]:
    """Part -> rows of (text, intent); no text twice, neither in a part nor in two."""
    draw, patterns = random.Random(seed), read_patterns()
    seen: set[str] = set()
    parts = {}
    for part, count in ROWS.items():
        rows: list[tuple[str, str]] = []
        while len(rows) < count:
            intent = draw.choice(list(patterns))
            sentences = patterns[intent].test if part == "test" else patterns[intent].train
            detours = TEST_DETOURS if part == "test" else DETOURS
            text = sentence(draw.choice(sentences), detours, draw)
            if text not in seen:
                seen.add(text)
                rows.append((text, intent))
        parts[part] = rows
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="directory of the files")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    for part, rows in generate().items():
        lines = "".join(f"{text}\t{intent}\n" for text, intent in rows)
        (output / f"{part}.tsv").write_text(f"text\tlabel\n{lines}", encoding="utf-8")


if __name__ == "__main__":
    main()
