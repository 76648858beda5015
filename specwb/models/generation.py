"""Settings of the library's ``generate`` that decoding here goes without."""

from __future__ import annotations

from typing import Any

NEUTRAL: dict[str, Any] = {
    "bad_words_ids": [],
    "begin_suppress_tokens": [],
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
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
    "token_healing": False,
    "top_h": None,
    "typical_p": 1.0,
    "watermarking_config": None,
}
"""Each with the value that, like None, asks for nothing. Temperature, top-k, top-p and the ends of
a text are not among them, since decoding has its own."""


def unused(config: Any) -> dict[str, Any]:
    """Returns the settings of a checkpoint's ``generation_config`` that would change its texts and
    that decoding here goes without."""
    values = {name: getattr(config, name, None) for name in NEUTRAL}
    return {name: v for name, v in values.items() if v is not None and v != NEUTRAL[name]}
