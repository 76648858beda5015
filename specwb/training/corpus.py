"""The lab family's training text: three domains, held-out documents chosen whole, every file hashed.

Domains: ``code`` (standard library and permissively licensed packages found on this machine), ``math`` (GSM8K's training
split as chat turns), ``prose`` (public-domain novels, plays and speeches). A document is held out as a whole package, book
or problem, so that no near-copy of held-out text is trained on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import re
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specwb import files
from specwb.extras import how

USER, ASSISTANT, EOS = "<|user|>", "<|assistant|>", "<|endoftext|>"
SPECIALS = [EOS, "<|pad|>", "<|mask|>", USER, ASSISTANT, "<|spare0|>", "<|spare1|>", "<|spare2|>"]
DOMAINS = ("code", "math", "prose")

# Standard-library folders that are not ordinary source, and packages kept out of training for evaluation.
_STDLIB_SKIP = re.compile(
    r"^(site-packages|test|tests|idlelib|lib2to3|__pycache__|config-.*|turtledemo|pydoc_data/topics|encodings/cp|ensurepip|.*/tests?/)"
)
_STDLIB_HELD_OUT = ("json", "http", "wsgiref", "zoneinfo", "fractions", "textwrap", "shelve")
_BOOKS = ("pride_and_prejudice", "great_expectations", "middlemarch", "emma", "war_and_peace", "moby_dick", "sherlock_holmes")
_BOOKS_HELD_OUT = ("sherlock_holmes",)
_GSM8K_HELD_OUT = 373


@dataclass(frozen=True)
class Document:
    domain: str
    source: str  # package, book or data set, as the model card lists it
    licence: str
    text: str
    held_out: bool


def documents(packages: dict[str, str]) -> list[Document]:
    """All documents, in a fixed order. ``packages`` maps import names to the licence each was checked to be under."""
    found = [*_code(packages), *_math(), *_prose()]
    seen: set[str] = set()  # verbatim copies (vendored modules) would leak between the splits
    unique = []
    for document in sorted(found, key=lambda d: not d.held_out):
        digest = hashlib.sha256(document.text.encode()).hexdigest()
        if digest not in seen:
            seen.add(digest)
            unique.append(document)
    return unique


def _source_files(root: Path, source: str, licence: str, held_out: tuple[str, ...], skip: re.Pattern[str]) -> list[Document]:
    out = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if skip.match(name) or "/tests/" in f"/{name}":
            continue
        try:
            text = path.read_text("utf-8").expandtabs(4)
        except UnicodeDecodeError:
            continue
        if 200 < len(text) < 400_000:
            part = name.split("/")[0].removesuffix(".py")
            out.append(Document("code", source, licence, text, part in held_out))
    return out


def _code(packages: dict[str, str]) -> list[Document]:
    out = _source_files(Path(sysconfig.get_path("stdlib")), "Python standard library", "PSF", _STDLIB_HELD_OUT, _STDLIB_SKIP)
    never = re.compile(r"$^")
    for name, licence in packages.items():
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            missing = f"package {name!r} of the training recipe is not installed"
            brought = f"the extra 'train' brings it: {how('train')}"
            raise files.DataError(f"{missing}; {brought}, or take it out of recipe.toml")
        out += _source_files(Path(spec.submodule_search_locations[0]), name, licence, (), never)
    return out


def _math() -> list[Document]:
    rows = [json.loads(line) for line in files.read("gsm8k_train").decode().splitlines()]
    out = []
    for index, row in enumerate(rows):
        answer = re.sub(r"<<[^>]*>>", "", row["answer"])
        text = f"{USER}{row['question'].strip()}{ASSISTANT}{answer.strip()}"
        out.append(Document("math", "GSM8K train", "MIT", text, index >= len(rows) - _GSM8K_HELD_OUT))
    return out


def unwrap(text: str) -> str:
    """Hard-wrapped paragraphs as one line each."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip())


def _prose() -> list[Document]:
    out = []
    for name in _BOOKS:
        text = files.read(name).decode("utf-8", "replace").replace("\r\n", "\n")
        body = re.search(r"\*\*\* ?START OF.*?\*\*\*(.*)\*\*\* ?END OF", text, re.DOTALL)
        if body is None:
            raise files.DataError(f"{name}: no START OF / END OF lines of Project Gutenberg found")
        out.append(Document("prose", name, "public domain (USA)", unwrap(body.group(1)), name in _BOOKS_HELD_OUT))
    out.append(Document("prose", "tinyshakespeare", "public domain", files.read("tinyshakespeare").decode(), False))
    for name in ("inaugural", "state_union"):
        with zipfile.ZipFile(io.BytesIO(files.read(name))) as archive:
            members = sorted(m for m in archive.namelist() if m.endswith(".txt"))
            for member in members:
                text = unwrap(archive.read(member).decode("latin-1"))
                out.append(Document("prose", name, "public domain", text, member in members[-4:]))
    return out


@dataclass
class Corpus:
    """Token streams by domain; documents end with the end-of-text id."""

    train: dict[str, np.ndarray]
    held_out: dict[str, np.ndarray]
    manifest: list[dict[str, object]]
    sha256: str

    def batch(self, seed: int, step: int, rows: int, length: int, mixture: dict[str, float]) -> np.ndarray:
        """``[rows, length + 1]`` token ids, a pure function of (seed, step): resuming needs no reader state."""
        rng = np.random.Generator(np.random.Philox(key=[seed, step]))
        names = list(mixture)
        picks = rng.choice(len(names), size=rows, p=np.array([mixture[n] for n in names]))
        out = np.empty((rows, length + 1), dtype=np.int64)
        for row, pick in enumerate(picks):
            stream = self.train[names[pick]]
            start = int(rng.integers(0, len(stream) - length - 1))
            out[row] = stream[start : start + length + 1]
        return out

    def windows(self, domain: str, rows: int, length: int) -> np.ndarray:
        """``[rows, length + 1]`` evenly spaced held-out windows of one domain."""
        stream = self.held_out[domain]
        starts = np.linspace(0, len(stream) - length - 2, rows).astype(int)
        return np.stack([stream[s : s + length + 1] for s in starts]).astype(np.int64)


def train_tokenizer(docs: list[Document], vocabulary: int, folder: Path) -> None:
    """Byte-level BPE with single digits, ids 0-7 reserved, saved for ``from_pretrained`` with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator((d.text for d in docs if not d.held_out), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token="<|pad|>", mask_token="<|mask|>", extra_special_tokens=SPECIALS[3:],
        model_max_length=1024, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = (
        "{% for m in messages %}{{ '<|user|>' if m['role'] == 'user' else '<|assistant|>' }}{{ m['content'] }}"
        "{% if m['role'] == 'assistant' %}<|endoftext|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    fast.save_pretrained(folder)


def small(vocabulary: int) -> type[np.generic]:
    """The smallest type that holds every id."""
    return np.uint16 if vocabulary <= 2**16 else np.uint32


def encode(docs: list[Document], tokenizer) -> Corpus:
    """Token streams of all documents, with a manifest (source, licence, documents, characters, sha256) for the model card."""
    domains = list(dict.fromkeys(d.domain for d in docs))
    streams: dict[tuple[str, bool], list[np.ndarray]] = {(d, h): [] for d in domains for h in (False, True)}
    sources: dict[tuple[str, bool], dict] = {}
    total = hashlib.sha256()
    eos = tokenizer.eos_token_id
    encodings = tokenizer.backend_tokenizer.encode_batch([d.text for d in docs], add_special_tokens=False)
    for document, encoding in zip(docs, encodings, strict=True):
        streams[document.domain, document.held_out].append(np.array([*encoding.ids, *([] if eos is None else [eos])], dtype=small(len(tokenizer))))
        key = (document.source, document.held_out)
        entry = sources.setdefault(
            key,
            {"source": document.source, "domain": document.domain, "licence": document.licence, "held_out": document.held_out,
             "documents": 0, "characters": 0, "tokens": 0, "hash": hashlib.sha256()},
        )  # fmt: skip
        entry["documents"] += 1
        entry["characters"] += len(document.text)
        entry["tokens"] += len(streams[document.domain, document.held_out][-1])
        entry["hash"].update(document.text.encode())
        total.update(document.text.encode())
    manifest = [{**{k: v for k, v in e.items() if k != "hash"}, "sha256": e["hash"].hexdigest()} for e in sources.values()]
    joined = {key: np.concatenate(parts) for key, parts in streams.items()}
    return Corpus({d: joined[d, False] for d in domains}, {d: joined[d, True] for d in domains}, manifest, total.hexdigest())


def from_file(path: Path, tokenizer) -> Corpus:
    """One domain, "text", of a plain text file, or of a JSON lines file's ``text`` fields; the last twentieth of its parts is held out.

    Raises:
        DataError: no such file, a line without a text, or too little of it.
    """
    path = path.expanduser()
    if not path.is_file():
        raise files.DataError(f"corpus {path} is no file")
    content = path.read_text("utf-8", "replace")
    if path.suffix == ".jsonl":
        try:
            parts = [str(json.loads(line)["text"]) for line in content.splitlines() if line.strip()]
        except (ValueError, KeyError, TypeError) as error:
            raise files.DataError(f"corpus {path}: every line must be JSON with a text field ({error})") from error
    else:
        size = -(-len(content) // max(2, len(content) // 4000)) or 1  # all alike, so that what is held out is no scrap
        parts = [content[i : i + size] for i in range(0, len(content), size)]
    held = max(1, len(parts) // 20)
    if len(parts) < 2:
        raise files.DataError(f"corpus {path} has too little text: at least two parts are needed, one of them held out")
    return encode([Document("text", path.name, "the user's", part, i >= len(parts) - held) for i, part in enumerate(parts)], tokenizer)
