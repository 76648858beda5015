"""Text that the target writes itself.

It is what a draft model meets when it drafts, and so what it should be distilled on.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from specwb.core.progress import progress
from specwb.engine.decoding import decode
from specwb.engine.methods import method
from specwb.engine.work import check_work
from specwb.models.target import Target
from specwb.training.corpus import Corpus, token_dtype
from specwb.training.fit import first_process, save_rows

ROWS = 64  # rows of a block, which are decoded together
PROMPT = 24  # training tokens that each row starts with
TEMPERATURES = (1.0, 0.7, 0.0)  # of the blocks in turn; 0 is greedy


def check_writing(target: Target, tokens: int, lower: str) -> str:
    """Estimate how long the target writes, see :func:`specwb.engine.work.check_work`; text that is
    kept already costs nothing."""
    what = f"{target.name!r} writes {tokens:,} tokens, {ROWS} rows at a time"
    return check_work(target, what, tokens / ROWS, ROWS, lower=lower)


def generated_text(
    target: Target,
    data: Corpus,
    root: Path,
    *,
    tokens: int,
    length: int,
    mixture: dict[str, float],
    seed: int,
) -> np.ndarray:
    """Rows ``[rows, length + 1]``, about ``tokens`` in all, of a few tokens of training text each,
    continued by the target.

    A block of rows is a pure function of (target, text, seed, its number) and is written under
    ``root`` when it is complete. So an interrupted run resumes where it stopped, and several
    trainings on the same target share the blocks. End of text does not stop a row: training streams
    continue behind it too."""
    contents = json.dumps(
        [target.fingerprint, data.sha256, length, seed, mixture, ROWS, PROMPT, TEMPERATURES]
    )
    folder = root / hashlib.sha256(contents.encode()).hexdigest()[:12]
    paths = [folder / f"{block:04}.npy" for block in range(-(-tokens // (ROWS * length)))]
    plain = method("ar", target)  # one for all blocks: it keeps its graphs

    def write(block: int) -> None:
        prompts, _ = data.batch(seed + 1_000_000, block, ROWS, PROMPT - 1, mixture)
        output = decode(
            target,
            prompts.tolist(),
            plain,
            max_new_tokens=length + 1 - PROMPT,
            temperature=TEMPERATURES[block % len(TEMPERATURES)],
            seed=seed + block,
            eos=(),
        )
        rows = np.concatenate([prompts, np.array(output.tokens)], 1)
        save_rows(rows.astype(token_dtype(target.vocabulary)), paths[block])

    with first_process() as is_first, progress("target's own text", lasting=True) as move:
        for block, path in enumerate(paths):
            move(block / len(paths), f"target's own text, {block} of {len(paths)} blocks")
            if is_first and not path.exists():
                write(block)
    return np.concatenate([np.load(path) for path in paths]).astype(np.int64)
