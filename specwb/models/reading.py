"""The library's model and tokenizer, read from a folder or from a GGUF file in it."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import torch

from specwb.core.files import first_line, foreign
from specwb.models.architectures import UnsupportedModel
from specwb.models.folder import LoadError, first_three, quiet
from specwb.models.ranks import Ranks, load_parted

logger = logging.getLogger("specwb")
HARMLESS = re.compile(r"rotary_emb\.inv_freq$|^medusa_head\.")
"""Weights that a target may have too many: constants that older files repeat, and heads that are
read as heads."""


def weights(
    folder: Path,
    config: Any,
    dtype: torch.dtype | str,
    name: str,
    ranks: Ranks | None,
    library: dict[str, Any],
) -> Any:
    """The library's model with a folder's weights, all of which it must have and describe;
    ``library`` holds further arguments of its ``from_pretrained``."""
    from transformers import AutoModelForCausalLM

    settings: dict[str, Any] = {
        **library,
        "dtype": dtype,
        "output_loading_info": True,
        "trust_remote_code": False,
        "ignore_mismatched_sizes": True,  # the report names them; its own error does not
    }
    if dtype is torch.float64:  # the library's other ways to run experts do not compute in it
        settings["experts_implementation"] = "eager"
    loaded: Any
    try:
        with quiet():
            if ranks is not None:
                loaded = load_parted(folder, config, ranks, **settings)
            else:
                loaded = AutoModelForCausalLM.from_pretrained(folder, **settings)
    except Exception as error:
        if isinstance(error, UnsupportedModel) or (ranks is not None and ranks.gone(error)):
            raise
        why = first_line(error)
        if isinstance(error, KeyError):  # the library looks a setting's value up in a table
            says = [f"{key}={error.args[0]!r}" for key in _keys_of(config.to_dict(), error.args[0])]
            if says:
                why = f"config.json says {' and '.join(says)}, which the library does not know"
        raise LoadError(f"{name}: the library cannot load {folder}: {why}") from error
    model, report = loaded
    surplus = [key for key in map(str, report["unexpected_keys"]) if not HARMLESS.search(key)]
    shapes = [
        f"{key} is {list(stored)} in the file, the config asks for {list(wanted)}"
        for key, stored, wanted in report["mismatched_keys"]
    ]
    problems = []
    if report["missing_keys"]:
        problems.append(f"missing keys: {first_three(report['missing_keys'])}")
    if shapes:
        problems.append(first_three(shapes))
    if getattr(config, "quantization_config", None) and not getattr(model, "hf_quantizer", None):
        # the library warns, and takes the numbers as they are
        problems.append("weights quantised in a way that the library does not know")
    if surplus:
        problems.append(f"weights that it does not describe: {first_three(surplus)}")
    if problems:
        raise LoadError(
            f"{name}: checkpoint does not fit its config ({'; '.join(problems)}); "
            "fetch both again, or put config.json right"
        )
    return model


def _keys_of(settings: dict[str, Any], value: Any) -> list[str]:
    """The names under which a value stands in a table, or in a table of it."""
    inner = [key for x in settings.values() if isinstance(x, dict) for key in _keys_of(x, value)]
    return [key for key, x in settings.items() if x == value] + inner


def tokenizer(folder: Path, name: str, gguf_file: str | None = None) -> Any:
    """The library's tokenizer of a folder, or of a GGUF file in it.

    Raises:
        LoadError: there is none, or one without words.
    """
    from transformers import AutoTokenizer

    of_file = {} if gguf_file is None else {"gguf_file": gguf_file}
    place = folder / (gguf_file or "")
    with foreign(f"{name}: no tokenizer could be loaded from {place}", LoadError), quiet():
        read = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **of_file)
    # of some architectures the library makes one where no file of a tokenizer lies there
    if len(read) <= len(read.all_special_ids):
        raise LoadError(f"{name}: no tokenizer could be loaded from {place}: no words lie there")
    return read


def check_words(tokenizer: Any, rows: int, name: str) -> None:
    """Checks that a model of ``rows`` tokens has one for every word of its tokenizer; rows without
    a word are usual.

    Added tokens alone may have none: Gemma 3's tokenizer is shared with models that see images, and
    its last token is one that the others lack. A prompt that has such a token is refused.
    """
    if tokenizer is None:
        return
    beyond = {word: i for word, i in tokenizer.get_vocab().items() if i >= rows}
    if beyond and (words := beyond.keys() - tokenizer.get_added_vocab().keys()):
        last = max(words, key=beyond.__getitem__)
        raise LoadError(
            f"{name}: its tokenizer has ids up to {beyond[last]} (for {last!r}), its embedding has "
            f"{rows} rows: the tokenizer is another model's; put the right one there, or give it "
            "with tokenizer="
        )


UNUSED: dict[str, Any] = {
    "bad_words_ids": [],
    "begin_suppress_tokens": [],
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "min_p": 0.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "penalty_alpha": 0.0,
    "repetition_penalty": 1.0,
    "sequence_bias": {},
    "stop_strings": [],
    "suppress_tokens": [],
    "typical_p": 1.0,
}
"""Settings of the library's ``generate`` that decoding here goes without, each with the value that,
like None, asks for nothing."""


def tell_unused(config: Any, name: str) -> None:
    """Names in one line the settings of a checkpoint's ``generation_config`` that would change its
    texts and that decoding here goes without, since the library's ``generate`` obeys them."""
    values = {key: getattr(config, key, None) for key in UNUSED}
    asked = [f"{key}={x}" for key, x in values.items() if x is not None and x != UNUSED[key]]
    if asked:
        settings = ", ".join(asked)
        logger.warning(
            "%s: its generation_config asks for %s; decoding here goes without", name, settings
        )
