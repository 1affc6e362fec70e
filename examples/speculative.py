"""Speculative decoding: a draft proposes tokens, the decoder checks them in one call. Same tokens as greedy decoding.

    python examples/speculative.py --layers 4 --draft-layers 1 --ahead 4

The draft is the decoder's own first layers, so that with random weights, too, it is often right.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from decoder import Cache, Decoder, arguments, chosen_config, generate, positive, random_decoder
from torch import Tensor, nn


def draft_of(model: Decoder, layers: int) -> Decoder:
    """A decoder with a model's embedding, head and first layers; weights are shared."""
    with torch.device("meta"):
        draft = Decoder(replace(model.config, layers=layers))
    draft.embedding, draft.norm, draft.head = model.embedding, model.norm, model.head
    draft.layers = model.layers[:layers]
    draft.frequencies = model.frequencies
    return draft.eval()


@torch.inference_mode()
def speculate(
    model: nn.Module, cache: Cache, draft: nn.Module, draft_cache: Cache, prompt: Tensor, tokens: int, ahead: int
) -> tuple[Tensor, int]:
    """Greedy decoding of one sequence with a draft.

    A cache needs no repair after a wrong proposal: a position's keys and values are written again before anything may
    look at them.

    Args:
        model, cache: what decides; the cache is empty, with room for prompt, tokens and ``ahead`` more.
        draft, draft_cache: what proposes, likewise.
        prompt: (1, tokens).
        tokens: how many to add.
        ahead: how many the draft proposes at a time.

    Returns:
        The new tokens, (1, tokens), and the number of calls of the model.
    """

    def run(which: nn.Module, kept: Cache, ids: Sequence[int], start: int) -> list[int]:
        """The token that follows each of ``ids``, whose first is at position ``start``."""
        positions = torch.arange(start, start + len(ids), device=prompt.device)
        logits = which(torch.tensor([ids], device=prompt.device), positions, kept)
        return logits[0].argmax(-1).tolist()

    known = prompt[0].tolist()
    known.append(run(model, cache, known, 0)[-1])
    drafted, calls = 0, 1  # known[:drafted] is in the draft's cache, known[:-1] in the model's
    while len(known) < prompt.shape[1] + tokens:
        proposed: list[int] = []
        while len(proposed) < ahead:
            ids = [*known, *proposed][drafted:]
            proposed.append(run(draft, draft_cache, ids, drafted)[-1])
            drafted += len(ids)
        right = run(model, cache, [known[-1], *proposed], len(known) - 1)
        calls += 1
        accepted = 0
        while accepted < ahead and proposed[accepted] == right[accepted]:
            accepted += 1
        known += right[: accepted + 1]
        drafted = min(drafted, len(known) - 1)
    new = known[prompt.shape[1] :][:tokens]
    return torch.tensor([new]), calls


def main(argv: Sequence[str] | None = None) -> None:
    """Decodes with and without the draft, checks that the tokens are the same, and prints times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments(parser)
    parser.add_argument("--draft-layers", type=positive, default=1, help="layers of the draft (default: %(default)s)")
    parser.add_argument("--ahead", type=positive, default=4, help="tokens proposed at a time (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.batch != 1:
        parser.error("speculative decoding is for one sequence: leave out --batch")
    config = chosen_config(options)
    if options.draft_layers > config.layers:
        parser.error(f"--draft-layers {options.draft_layers}: the model has {config.layers} layers")
    model = random_decoder(config, options.device)
    draft = draft_of(model, options.draft_layers)
    step, propose = (torch.compile(model), torch.compile(draft)) if options.compile else (model, draft)
    prompt = torch.randint(config.vocabulary, (1, options.prompt)).to(options.device)
    room = options.prompt + options.tokens + options.ahead
    started = time.perf_counter()
    greedy = generate(step, model.empty_cache(1, room), prompt, options.tokens).cpu()
    middle = time.perf_counter()
    tokens, calls = speculate(
        step, model.empty_cache(1, room), propose, draft.empty_cache(1, room), prompt, options.tokens, options.ahead
    )
    print(f"greedy:      {options.tokens} calls in {middle - started:.2f} s")
    print(f"speculative: {calls} calls in {time.perf_counter() - middle:.2f} s")
    if not torch.equal(tokens, greedy):
        raise SystemExit("the tokens are not those of greedy decoding")
    print(tokens.tolist())


if __name__ == "__main__":
    main()
