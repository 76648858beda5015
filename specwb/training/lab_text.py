"""The lab family's training text: three domains, held-out documents, every file hashed.

The domains are ``code`` (standard library and permissively licensed packages found on this
machine), ``math`` (GSM8K's training split as chat turns) and ``prose`` (public-domain novels, plays
and speeches). Whole packages, books or problems are held out, so that no near-copy of held-out text
is trained on.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import json
import re
import sysconfig
import zipfile
from pathlib import Path

from specwb.core import files
from specwb.core import texts as public
from specwb.core.extras import how
from specwb.training.corpus import Document

USER, ASSISTANT = "<|user|>", "<|assistant|>"

# Folders of the standard library that are not ordinary source.
_STDLIB_SKIP = re.compile(
    r"^(site-packages|test|tests|idlelib|lib2to3|__pycache__|config-.*|turtledemo"
    r"|pydoc_data/topics|encodings/cp|ensurepip|.*/tests?/)"
)
# What is kept out of training for evaluation.
_STDLIB_HELD_OUT = ("json", "http", "wsgiref", "zoneinfo", "fractions", "textwrap", "shelve")
_BOOKS = (
    "pride_and_prejudice",
    "great_expectations",
    "middlemarch",
    "emma",
    "war_and_peace",
    "moby_dick",
    "sherlock_holmes",
)
_BOOKS_HELD_OUT = ("sherlock_holmes",)
_GSM8K_HELD_OUT = 373  # problems, the last ones


def documents(packages: dict[str, str]) -> list[Document]:
    """All documents, in a fixed order; ``packages``: import names, and the licence that each was
    checked to be under."""
    code, prose = _code(packages), _prose()
    everything = [*code, *_math(), *prose, *_chats(code, prose)]
    # verbatim copies (vendored modules) would leak between the splits
    digests: set[str] = set()
    unique = []
    for document in sorted(everything, key=lambda d: not d.held_out):
        digest = hashlib.sha256(document.text.encode()).hexdigest()
        if digest not in digests:
            digests.add(digest)
            unique.append(document)
    return unique


def _source_files(
    root: Path, source: str, licence: str, held_out: tuple[str, ...], skip: re.Pattern[str]
) -> list[Document]:
    """Returns the Python files below ``root``, those of the ``held_out`` modules held out."""
    texts = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if skip.match(name) or "/tests/" in f"/{name}":
            continue
        try:
            text = path.read_text("utf-8").expandtabs(4)
        except UnicodeDecodeError:
            continue
        if 200 < len(text) < 400_000:
            module = name.split("/")[0].removesuffix(".py")
            texts.append(Document("code", source, licence, text, module in held_out))
    return texts


def _code(packages: dict[str, str]) -> list[Document]:
    stdlib = Path(sysconfig.get_path("stdlib"))
    texts = _source_files(stdlib, "Python standard library", "PSF", _STDLIB_HELD_OUT, _STDLIB_SKIP)
    skip_nothing = re.compile(r"$^")
    for name, licence in packages.items():
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            missing = f"package {name!r} of the training recipe is not installed"
            brought = f"the extra 'train' brings it: {how('train')}"
            raise files.DataError(f"{missing}; {brought}, or take it out of recipe.toml")
        folder = Path(spec.submodule_search_locations[0])
        texts += _source_files(folder, name, licence, (), skip_nothing)
    return texts


def _math() -> list[Document]:
    problems = [json.loads(line) for line in public.read("gsm8k_train").decode().splitlines()]
    first_held_out = len(problems) - _GSM8K_HELD_OUT
    texts = []
    for index, problem in enumerate(problems):
        answer = re.sub(r"<<[^>]*>>", "", problem["answer"])
        text = f"{USER}{problem['question'].strip()}{ASSISTANT}{answer.strip()}"
        texts.append(Document("math", "GSM8K train", "MIT", text, index >= first_held_out))
    return texts


def _chats(code: list[Document], prose: list[Document]) -> list[Document]:
    """Returns turns of a user and an assistant, made of training documents, so that answers end.

    They are functions that a user asks for by name and docstring, and every eighth paragraph of
    prose, which a user begins and the assistant goes on with. None is held out.
    """
    texts = []
    for document in code:
        if not document.held_out:
            texts += [
                Document("code", "functions as chats", document.licence, chat, False)
                for chat in _functions(document.text)
            ]
    for document in prose:
        paragraphs = document.text.split("\n\n")
        pairs = zip(paragraphs[::8], paragraphs[1::8], strict=False)
        if not document.held_out:
            texts += [
                Document("prose", "paragraphs as chats", document.licence, chat, False)
                for question, answer in pairs
                if 80 < len(question) < 800 and 80 < len(answer) < 800
                for chat in [f"{USER}Go on: {question}{ASSISTANT}{answer}"]
            ]
    return texts


def _functions(source: str) -> list[str]:
    """Returns the documented functions of a module of up to 30 lines, each as one chat."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    lines, chats = source.splitlines(), []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (purpose := ast.get_docstring(node)):
            body = lines[node.lineno - 1 : node.end_lineno]
            if len(body) <= 30:
                wanted = " ".join(purpose.split("\n\n")[0].split())
                chats.append(
                    f"{USER}Write {node.name}. {wanted}{ASSISTANT}" + "\n".join(body) + "\n"
                )
    return chats


def unwrap(text: str) -> str:
    """The text with one line for each paragraph."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(" ".join(p.split()) for p in paragraphs if p.strip())


def _prose() -> list[Document]:
    texts = []
    for name in _BOOKS:
        book = public.read(name).decode("utf-8", "replace").replace("\r\n", "\n")
        body = re.search(r"\*\*\* ?START OF.*?\*\*\*(.*)\*\*\* ?END OF", book, re.DOTALL)
        if body is None:
            raise files.DataError(f"{name}: no START OF / END OF lines of Project Gutenberg found")
        text, held_out = unwrap(body.group(1)), name in _BOOKS_HELD_OUT
        texts.append(Document("prose", name, "public domain (USA)", text, held_out))
    plays = public.read("tinyshakespeare").decode()
    texts.append(Document("prose", "tinyshakespeare", "public domain", plays, False))
    for name in ("inaugural", "state_union"):
        with zipfile.ZipFile(io.BytesIO(public.read(name))) as archive:
            members = sorted(m for m in archive.namelist() if m.endswith(".txt"))
            for member in members:
                text, held_out = (
                    unwrap(archive.read(member).decode("latin-1")),
                    member in members[-4:],
                )
                texts.append(Document("prose", name, "public domain", text, held_out))
    return texts
