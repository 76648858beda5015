"""Folders that somebody else made: nothing of theirs is run, nothing outside them is read, and what
is wrong in them is named."""

from __future__ import annotations

import ast
import builtins
import json
import logging
import re
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

import specwb
from specwb import LoadError
from specwb.core.files import weights_hash
from specwb.models import reading
from specwb.models.medusa import MedusaHeads, load_medusa

WORDS = [f"w{i}" for i in range(tiny.VOCABULARY)]
INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    tiny.build("llama", seed=1).save_pretrained(folder)
    tiny.tokenizer(WORDS).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A tiny model with its tokenizer, to be spoilt."""
    return Path(shutil.copytree(saved, tmp_path / "m"))


def refused(load, *given, **more) -> str:
    with pytest.raises(LoadError) as caught:
        load(*given, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def put(path: Path, content: object) -> None:
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def change(path: Path, **settings: object) -> None:
    put(path, {**json.loads(path.read_text()), **settings})


def weights(folder: Path, **more: torch.Tensor) -> None:
    """Put further weights into the file."""
    save_file({**load_file(folder / WEIGHTS), **more}, folder / WEIGHTS, {"format": "pt"})


# ------------------------------------------------------------------------------------------- code


CODE = {
    "model": ("config", {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}),
    "weights": ("config", {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}),
    "tokenizer": (
        "tokenizer_config",
        {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}},
    ),
}


@pytest.mark.parametrize("of", CODE)
def test_code_in_a_folder_is_never_run_and_nothing_is_asked(folder, monkeypatch, of):
    """The library asks on standard input, where the answer may be the first line of somebody's
    prompt."""
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(folder / "modules"))
    mark = folder / "ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Evil: pass\n")
    file, settings = CODE[of]
    change(folder / f"{file}.json", **settings)
    if of == "weights":  # the library has a class for this type; it needs none of the folder's
        assert specwb.load(folder).vocabulary == tiny.VOCABULARY
    else:
        with pytest.raises(LoadError, match=str(folder)):
            specwb.load(folder)
    assert not mark.exists()


def test_everything_that_is_loaded_says_that_no_code_is_run():
    """Of all places in the package, those that no test reaches too."""
    calls = 0
    for path in Path(specwb.__file__).parent.rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "from_pretrained" in text else ():
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called.startswith("Auto") and called.endswith("from_pretrained"):
                given = {k.arg: ast.unparse(k.value) for k in node.keywords}
                # ranks.py is given load.py's settings
                said = given.get("trust_remote_code", given.get(None))
                assert said in ("False", "settings"), f"{path}:{node.lineno}"
                calls += 1
    assert calls >= 6


# ---------------------------------------------------------------------------------------- indexes


@pytest.mark.parametrize("name", ["../out.safetensors", "sub/out.safetensors"])
@pytest.mark.parametrize("what", ["target", "head"])
def test_an_index_that_names_files_elsewhere(saved, tmp_path, name, what):
    outside = tmp_path / "out.safetensors"
    shutil.copy(saved / WEIGHTS, outside)
    place = tmp_path / "m"
    shutil.copytree(saved, place)
    (place / WEIGHTS).unlink()
    (place / "sub").mkdir()
    shutil.copy(outside, place / "sub")
    put(place / INDEX, {"metadata": {}, "weight_map": dict.fromkeys(load_file(outside), name)})
    with pytest.raises(LoadError, match="is not a file beside it"):
        specwb.load(place) if what == "target" else load_medusa(place, tiny.target())


@pytest.mark.parametrize("content", ['{"weight_map": {"a": 3}}', '{"a":', "[" * 100_000])
def test_a_damaged_index(folder, content):
    put(folder / INDEX, content)
    for load in (specwb.load, lambda place: load_medusa(place, tiny.target())):
        assert INDEX in refused(load, folder)


# ----------------------------------------------------------------------------- config and weights


def test_harmless_weights_too_many(folder):
    """Constants that older files repeat, and the heads of a whole Medusa-2 model, which are read as
    heads."""
    plain = specwb.decode(specwb.load(folder), [[1, 2]], max_new_tokens=6).tokens
    names = ("model.layers.0.self_attn.rotary_emb.inv_freq", "medusa_head.0.1.weight")
    weights(folder, **{name: torch.ones(4) for name in names})
    assert specwb.decode(specwb.load(folder), [[1, 2]], max_new_tokens=6).tokens == plain
    weights(folder, **{"model.layers.0.self_attn.other.weight": torch.ones(4)})
    assert "not describe: model.layers.0.self_attn.other.weight)" in refused(specwb.load, folder)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", ['{"eos_token_id": ', "[]"])
def test_settings_that_are_no_table(folder, file, content):
    """The library takes a damaged generation_config.json for none, and the end of texts is lost."""
    put(folder / file, content)
    assert file in refused(specwb.load, folder)


# ------------------------------------------------------------------------------------------ cards


def test_weights_that_are_not_those_of_the_card(folder):
    """A byte that flips inside a weight changes no size and no header."""
    put(folder / "card.json", {"sha256": weights_hash(folder)})
    assert specwb.load(folder).sha256 == weights_hash(folder)
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).write_bytes(content)
    assert "sha256" in refused(specwb.load, folder)


CARDS = [
    {"held_out": {"code": {"rank": [["0.5"]]}}},
    {"held_out": {"code": {"rank": [[2.0]]}}},
    {"target_sha256": 3},
]


@pytest.mark.parametrize("card", CARDS, ids=str)
def test_cards_of_another_form(tmp_path, card):
    tiny.head("medusa").save(tmp_path)
    put(tmp_path / "card.json", card)
    how = {"head": str(tmp_path)}
    line = refused(specwb.method, "medusa", tiny.target(), **how)
    assert f"card.json is damaged or another file: {next(iter(card))}" in line


# ----------------------------------------------------------------------------- places and the hub


def test_the_tokenizer_of_another_model(folder):
    """Its ids would be another text's: it is refused by its ids, wherever it comes from."""
    other = tiny.tokenizer([f"x{i}" for i in range(tiny.VOCABULARY + 9)])
    numbers = "ids up to 72 .*'x72'.* 64 rows"
    for given in (folder, tiny.build("llama", seed=1)):
        with pytest.raises(LoadError, match=numbers):
            specwb.load(given, tokenizer=other)
    other.save_pretrained(folder)
    message = refused(specwb.load, folder)
    assert re.search(rf"{re.escape(str(folder))}.*{numbers}.*tokenizer=", message)
    right = tiny.tokenizer(WORDS)
    assert specwb.load(folder, tokenizer=right).tokenizer is right
    for words in (WORDS, WORDS[:50]):  # rows without a word are usual
        tiny.tokenizer(words).save_pretrained(folder)
        assert specwb.decode(specwb.load(folder), "w3 w4", "ar", max_new_tokens=3).tokens


def test_added_tokens_may_have_no_row(folder):
    """As the last of Gemma 3's tokenizer where the model sees no images: a text reaches it by its
    name alone."""
    words = tiny.tokenizer(WORDS)
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    words.save_pretrained(folder)
    target = specwb.load(folder)
    assert len(specwb.decode(target, "w3 w4", "ar", max_new_tokens=3).tokens[0]) == 3
    with pytest.raises(specwb.PromptError, match=r"outside 0\.\.63, such as 64 \('<image>' of"):
        specwb.decode(target, "w3 <image> w4", "ar", max_new_tokens=3)


def test_the_users_own_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert specwb.load("~/m").folder == folder
    assert specwb.load(Path("~/m")).folder == folder
    assert "~/nothing does not exist" in refused(specwb.load, "~/nothing")


class Hub:
    """A hub of one repository, whose files are a folder's; ``fetched`` are those that were asked
    for."""

    def __init__(self, files: Path, cache: Path) -> None:
        self.files, self.cache, self.fetched, self.asked = files, cache, set[str](), list[tuple]()
        self.down: Exception | None = None

    def model_info(self, api, repository, *, revision=None, timeout=None):
        self.asked.append((repository, revision, timeout))
        if self.down is not None:
            raise self.down
        return huggingface_hub.hf_api.ModelInfo(id=repository, sha="c0ffee")

    def snapshot_download(
        self, repository, *, revision=None, allow_patterns=None, local_files_only=False, **more
    ):
        if local_files_only:
            if not self.cache.exists():
                raise FileNotFoundError("not fetched before")
            return str(self.cache)
        assert revision == "c0ffee"
        self.cache.mkdir(exist_ok=True)
        for path in self.files.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                self.fetched.add(path.name)
                shutil.copy(path, self.cache)
        return str(self.cache)


@pytest.fixture
def hub(folder, tmp_path, monkeypatch) -> Hub:
    made = Hub(folder, tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    info = lambda api, *given, **more: made.model_info(api, *given, **more)  # noqa: E731
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    return made


def test_a_target_from_the_hub_is_looked_at_as_a_folder_is(hub, folder):
    extras = ("pytorch_model.bin", "consolidated.safetensors", "model.gguf", "evil.py")
    for extra in extras:
        (folder / extra).write_bytes(b"large")
    target = specwb.load("some/model@v1")
    assert hub.asked == [("some/model", "v1", 5.0)]
    assert not hub.fetched & set(extras)
    models = (target, specwb.load(folder))
    one, other = (specwb.decode(m, [[1, 2]], max_new_tokens=6).tokens for m in models)
    assert one == other
    assert (target.name, target.folder, target.heads) == ("some/model@v1", hub.cache, None)
    specwb.load("some/model", revision="main")
    assert hub.asked[1][:2] == ("some/model", "main")
    assert "given twice" in refused(specwb.load, "some/model@v1", revision="main")
    assert "of a hub id" in refused(specwb.load, folder, revision="v1")
    change(folder / "config.json", num_hidden_layers=2)
    assert "not describe" in refused(specwb.load, "some/model")


def test_a_target_from_the_hub_has_a_commit_and_a_checksum(hub, folder, tmp_path):
    """By which a head of another target is refused, though neither is a folder of the user's."""
    hub.cache = tmp_path / ("c0ffee" * 6 + "abcd")
    target = specwb.load("some/model")
    assert target.revision == hub.cache.name
    assert target.sha256 == weights_hash(folder)
    assert specwb.load(folder).revision is None
    heads = MedusaHeads(target.backbone.config.hidden_size, target.vocabulary, heads=1)
    heads.save(tmp_path / "own", card={"target_sha256": target.sha256})
    heads.save(tmp_path / "other", card={"target_sha256": "0" * 64})
    assert load_medusa(tmp_path / "own", target).heads == 1
    assert "sha256 0000" in refused(load_medusa, tmp_path / "other", target)


def test_where_the_hub_cannot_be_reached_what_was_fetched_before_is_used(hub):
    hub.down = OSError("no route to host\nand more")
    assert refused(specwb.load, "some/model").endswith("no route to host")
    hub.down = None
    specwb.load("some/model")
    hub.down = OSError("no route to host")
    assert specwb.load("some/model").folder == hub.cache


@pytest.mark.parametrize("name", ["lab2", "./some/model", "some/../model@x", Path("some/model")])
def test_what_is_no_hub_id_is_not_asked_for(hub, name):
    assert "does not exist" in refused(specwb.load, name)
    assert hub.asked == []


def test_of_a_whole_model_only_the_parts_with_heads_are_fetched(hub, folder):
    heads = {f"medusa_head.{key}": w for key, w in tiny.head("medusa").state_dict().items()}
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    part = {**dict.fromkeys(load_file(folder / WEIGHTS), one), **dict.fromkeys(heads, two)}
    shutil.move(folder / WEIGHTS, folder / one)
    save_file(heads, folder / two)
    put(folder / INDEX, {"weight_map": part})
    made = load_medusa("some/model", tiny.target())
    assert {name for name in hub.fetched if name.endswith("safetensors")} == {two}
    assert all(torch.equal(w, heads[f"medusa_head.{k}"]) for k, w in made.state_dict().items())


# -------------------------------------------------------------------------------- generation_config


ASKED = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "suppress_tokens": [3]}
NEUTRAL = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "eos_token_id": [5, 6]}
NEUTRAL |= {"repetition_penalty": 1.0, "min_p": 0.0, "typical_p": 1.0, "max_new_tokens": 7}


def test_settings_that_decoding_goes_without_are_one_line(folder, caplog):
    """The library's generate writes another text by them."""
    put(folder / "generation_config.json", {**NEUTRAL, **ASKED})
    with caplog.at_level(logging.WARNING, "specwb"):
        specwb.load(folder)
    (line,) = caplog.messages
    assert all(f"{name}={value}" in line for name, value in ASKED.items())
    assert not any(f"{name}=" in line for name in NEUTRAL.keys() - ASKED.keys())


def test_settings_that_decoding_has_itself_or_that_ask_for_nothing_are_not_told(folder, caplog):
    put(folder / "generation_config.json", NEUTRAL)
    assert specwb.load(folder).eos == [5, 6]
    specwb.load("lab")
    assert not caplog.messages
    assert all(hasattr(GenerationConfig(), name) for name in reading.UNUSED)


# ------------------------------------------------------------------------- missing, wrong, damaged


def settings(**changes: object) -> Callable[[Path], None]:
    return lambda folder: change(folder / "config.json", **changes)


def content(made: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / WEIGHTS).write_bytes(made((folder / WEIGHTS).read_bytes()))


def without(name: str) -> Callable[[Path], None]:
    """The library would fill a missing weight with random numbers and warn."""

    def spoil(folder: Path) -> None:
        path = folder / WEIGHTS
        known = load_file(path)
        del known[name]
        save_file(known, path, metadata={"format": "pt"})

    return spoil


def sharded(folder: Path) -> None:
    places = {"model.norm.weight": "model.safetensors", "lm_head.weight": "2.safetensors"}
    index = {"metadata": {}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index))


DAMAGED = r"model\.safetensors is damaged, cut off or no file of weights; fetch it again: .*"
ROPE = {"rope_type": "linear", "rope_theta": 10000.0}
FOLDERS = {
    "no config": (lambda folder: (folder / "config.json").unlink(), r"has no config\.json"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "weights"),
    "no tokenizer": (
        lambda folder: [path.unlink() for path in folder.glob("*token*")],
        "no tokenizer could be loaded from",
    ),
    "missing shard": (sharded, r"weight file 2\.safetensors is missing"),
    "missing weight": (without("model.norm.weight"), r"missing keys: model\.norm\.weight"),
    **{f"cut at {n}": (content(lambda raw, n=n: raw[:n]), DAMAGED) for n in (5, -1)},
    "vocabulary": (
        settings(vocab_size=4000),
        r"lm_head\.weight is \[64, 32\] in the file, the config asks for \[4000, 32\]",
    ),
    "activation": (
        settings(hidden_act="nope"),
        "config.json says hidden_act='nope', which the lib",
    ),
    "rope type": (
        settings(rope_parameters={**ROPE, "rope_type": "nope"}),
        "rope_type='nope', which the library does not know",
    ),
    "eos": (settings(eos_token_id=[]), r"config.json says eos_token_id=\[\]; for no such token"),
    "eos beyond": (settings(eos_token_id=99999), "eos_token_id=99999; it must be token ids below"),
    "layers": (
        settings(num_hidden_layers=10**6),
        r"num_hidden_layers=1000000, but the weights are only \d+ tensors",
    ),
    "config folder": (
        lambda folder: [(folder / "config.json").unlink(), (folder / "config.json").mkdir()],
        "config.json is no file but a folder",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder_of_which_something_is_missing_or_wrong(spoil, words, folder):
    spoil(folder)
    error = refused(specwb.load, folder)
    assert re.search(words, error)
    assert str(folder) in error
