"""The family's tokenizer and its chat template."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specwb.training.corpus import Document
from specwb.training.lab_text import ASSISTANT, USER

EOS = "<|endoftext|>"
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|assistant|>{{ m['content'] }}<|endoftext|>"
    "{% else %}{{ m['content'] }}{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""The family's chat template. It was trained without system messages: one is a line of plain text,
neither the user's nor the assistant's."""
SPECIALS = [EOS, "<|pad|>", "<|mask|>", USER, ASSISTANT, "<|spare0|>", "<|spare1|>", "<|spare2|>"]


def train_tokenizer(docs: list[Document], vocabulary: int, folder: Path) -> None:
    """Trains a byte-level BPE on what is not held out, and saves it with a chat template; digits
    are single tokens, and ids 0-7 are reserved."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in docs if not d.held_out), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token="<|pad|>",
        mask_token="<|mask|>",
        extra_special_tokens=SPECIALS[3:],
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
