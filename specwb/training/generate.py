"""Text the target writes itself: what a draft model meets when it drafts, and so what it should be distilled on."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specwb.engine import decode
from specwb.methods import method
from specwb.models.target import Target
from specwb.training.corpus import Corpus, small
from specwb.training.fit import console, everyone, save_atomically

ROWS, PROMPT = 64, 24  # rows decoded together; training tokens each row starts with
TEMPERATURES = (1.0, 0.7, 0.0)  # of the blocks in turn; 0 is greedy


def generated_text(target: Target, data: Corpus, root: Path, *, tokens: int, length: int, mixture: dict[str, float], seed: int) -> np.ndarray:
    """``[rows, length + 1]`` token ids, about ``tokens`` in all, each row a few tokens of training text continued by the target.

    A block of rows is a pure function of (target, text, seed, its number) and is written under ``root`` when it is complete, so an interrupted
    run goes on where it stopped, and several trainings on the same target share it. End of text does not stop a row: training streams go on
    behind it too.

    Raises:
        TrainingError: a block cannot be written.
    """
    what = json.dumps([target.fingerprint, data.sha256, length, seed, mixture, ROWS, PROMPT, TEMPERATURES])
    folder = root / hashlib.sha256(what.encode()).hexdigest()[:12]
    with everyone() as main:
        if main:
            _write_blocks(target, data, folder, tokens=tokens, length=length, mixture=mixture, seed=seed)
    blocks = -(-tokens // (ROWS * length))
    return np.concatenate([np.load(folder / f"{block:04}.npy") for block in range(blocks)]).astype(np.int64)


def _write_blocks(target: Target, data: Corpus, folder: Path, *, tokens: int, length: int, mixture: dict[str, float], seed: int) -> None:
    plain = method("ar", target)  # one for all blocks: it keeps its graphs
    blocks = -(-tokens // (ROWS * length))
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        for block in bar.track(range(blocks), description="target's own text"):
            path = folder / f"{block:04}.npy"
            if not path.exists():
                prompts = data.batch(seed + 1_000_000, block, ROWS, PROMPT - 1, mixture)
                temperature = TEMPERATURES[block % len(TEMPERATURES)]
                new = length + 1 - PROMPT
                out_block = decode(target, prompts.tolist(), plain, max_new_tokens=new, temperature=temperature, seed=seed + block, eos=())
                rows = np.concatenate([prompts, np.array(out_block.tokens)], 1).astype(small(target.vocabulary))
                save_atomically(partial(_write, rows), path)


def _write(rows: np.ndarray, path: Path) -> None:
    with open(path, "wb") as handle:  # np.save(path) would add a suffix
        np.save(handle, rows)
