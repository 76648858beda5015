"""A head that drafts all words: a low-rank head proposes candidates, whose rows are scored exactly.

    python benchmarks/rank.py [PROMPTS]

The candidates are the best of all words by the states' principal directions, which are fitted on
the first half of the places in smol's greedy answers to ``chat``; accuracy is that of the second
half. The EAGLE head is the shipped one, which was trained on 8,192 words.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch

import specwb
from specwb.engine.decoding import decode
from specwb.models.load import data_dir
from specwb.models.products import product
from specwb.training.heads import target_outputs
from specwb.training.why import load_measured


def milliseconds(call):
    times = []
    for _ in range(60):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def answers(target, count):
    lines = (data_dir() / "prompts/chat.jsonl").read_text().splitlines()[:count]
    for line in lines:
        said = [{"role": "user", "content": json.loads(line)["turns"][0]}]
        ids = target.tokenizer.apply_chat_template(
            said, add_generation_prompt=True, return_dict=False
        )
        yield ids, decode(target, [ids], "ar", eos=target.ends, max_new_tokens=64).tokens[0]


@torch.inference_mode()
def main(count: int) -> None:
    target = specwb.load("smol", dtype="float32")
    measured = load_measured("eagle", target)
    states, wanted = [], []
    for prompt, answer in answers(target, count):
        ids, first = torch.tensor([[*prompt, *answer, *[answer[-1]] * 16]]), len(prompt) - 1
        outputs = target_outputs(target, ids, measured.head.features, False)
        best = outputs.head(outputs.normed[0, first : first + len(answer)]).float().argmax(-1)
        _, level = next(measured.levels(outputs))
        at = level.select(torch.arange(ids.shape[1])[None] - first)[0]
        inside = (at >= 0) & (at < len(answer))
        states.append(level.states[0, inside].float())
        wanted.append(best[at[inside]])
    x, best, half = torch.cat(states), torch.cat(wanted), len(torch.cat(states)) // 2
    rows, words = target.backbone.lm_head.weight.float(), measured.words
    directions = torch.linalg.svd(x[:half], full_matrices=False)[2]
    x, best = x[half:], best[half:]
    known = torch.isin(best, words)

    def report(name, guess):
        right = (guess == best).float()
        parts = f"{right[known].mean():.3f} of known words, {right[~known].mean():.3f} of others"
        print(f"{name}: {right.mean():.3f} right ({parts}; known {known.float().mean():.3f})")

    report("8192 words", words[(x @ rows[words].T).argmax(-1)])
    report("all words", (x @ rows.T).argmax(-1))
    for rank, kept in ((32, 128), (64, 32), (64, 128), (96, 128)):
        short = rows @ directions[:rank].T
        ids = (x @ directions[:rank].T @ short.T).topk(kept, -1).indices
        exact = torch.einsum("nh,nch->nc", x, rows[ids])
        report(f"rank {rank}, {kept} rows", ids.gather(1, exact.argmax(-1, keepdim=True))[:, 0])

    for dtype in (torch.float32, torch.bfloat16):
        every, some = rows.to(dtype), rows[words].to(dtype)
        for rank in (64, 96):
            down = directions[:rank].to(dtype).contiguous()
            short = (rows @ directions[:rank].T).to(dtype).contiguous()
            for tokens in (1, 4):
                y = x[:tokens].to(dtype)

                def candidates(y=y, down=down, short=short, every=every):
                    ids = product(product(y, down), short).topk(128, -1).indices
                    return torch.bmm(every[ids], y[:, :, None])[..., 0].topk(4)

                fixed = milliseconds(lambda y=y, some=some: product(y, some).topk(4))
                print(
                    f"{dtype}, {tokens} tokens: 8192 words {fixed:.2f} ms, "
                    f"rank {rank} {milliseconds(candidates):.2f} ms"
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 48)
