"""A decoder shaped like Granite-3.3-8B in plain PyTorch: prefill, then token by token with a resident KV cache.

    python examples/decoder.py                       # a small one, on the accelerator that PyTorch finds
    python examples/decoder.py --compile --tokens 64
    python examples/decoder.py --granite --layers 2  # the real layer shapes; weights are random

Nothing here knows the device: ``--device cpu`` gives the same tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes of a decoder; the defaults are a small one with Granite's proportions.

    The four multipliers are Granite's: of the embeddings, of what a block adds, of the attention's scores, and what the
    logits are divided by.
    """

    vocabulary: int = 1000
    hidden: int = 256
    layers: int = 2
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    mlp: int = 800
    rope_theta: float = 1e7
    epsilon: float = 1e-5
    embedding_multiplier: float = 12.0
    residual_multiplier: float = 0.22
    attention_multiplier: float = 1 / 32
    logits_scaling: float = 16.0


GRANITE = Config(
    vocabulary=49159,
    hidden=4096,
    layers=40,
    heads=32,
    kv_heads=8,
    head_dim=128,
    mlp=12800,
    attention_multiplier=1 / 128,
)

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values per layer: (batch, KV heads, positions, head dimension)."""


class Attention(nn.Module):
    """Grouped-query attention with rotary positions, over everything in the cache up to each query's position."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        size = config.head_dim
        self.query = nn.Linear(config.hidden, config.heads * size, bias=False)
        self.key = nn.Linear(config.hidden, config.kv_heads * size, bias=False)
        self.value = nn.Linear(config.hidden, config.kv_heads * size, bias=False)
        self.output = nn.Linear(config.heads * size, config.hidden, bias=False)

    def forward(self, x: Tensor, positions: Tensor, angles: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        """Writes this call's keys and values into the cache, then attends.

        Args:
            x: (batch, tokens, hidden).
            positions: (tokens,), places in the cache.
            angles: (tokens, head dimension / 2), of the rotation.
            cache: keys and values; changed in place.
        """
        batch, tokens, _ = x.shape
        size = self.config.head_dim
        query = rotate(self.query(x).view(batch, tokens, -1, size).transpose(1, 2), angles)
        key = rotate(self.key(x).view(batch, tokens, -1, size).transpose(1, 2), angles)
        value = self.value(x).view(batch, tokens, -1, size).transpose(1, 2)
        keys, values = cache
        keys.index_copy_(2, positions, key)
        values.index_copy_(2, positions, value)
        visible = torch.arange(keys.shape[2], device=x.device) <= positions[:, None]
        attended = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=visible, scale=self.config.attention_multiplier, enable_gqa=True
        )
        return self.output(attended.transpose(1, 2).reshape(batch, tokens, -1))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden, config.mlp, bias=False)
        self.up = nn.Linear(config.hidden, config.mlp, bias=False)
        self.down = nn.Linear(config.mlp, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, hidden) to the same."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and added with Granite's residual multiplier."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.residual = config.residual_multiplier
        self.attention_norm = nn.RMSNorm(config.hidden, config.epsilon)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.hidden, config.epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, positions: Tensor, angles: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        """As :meth:`Attention.forward`."""
        x = x + self.residual * self.attention(self.attention_norm(x), positions, angles, cache)
        return x + self.residual * self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Tokens and their positions in, logits out.

    The head has weights of its own: Granite's are tied to the embeddings, but with random weights a tied head repeats
    the token it was given.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, config.epsilon)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
        self.register_buffer("frequencies", config.rope_theta**-exponents, persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """Logits for the token after each token.

        Args:
            tokens: (batch, tokens).
            positions: (tokens,), their places in the cache.
            cache: from :meth:`empty_cache`; changed in place.

        Returns:
            (batch, tokens, vocabulary).
        """
        x = self.embedding(tokens) * self.config.embedding_multiplier
        angles = positions[:, None] * self.frequencies
        for layer, kept in zip(self.layers, cache, strict=True):
            x = layer(x, positions, angles, kept)
        return self.head(self.norm(x)) / self.config.logits_scaling

    def empty_cache(self, batch: int, length: int) -> Cache:
        """A cache for so many sequences of at most so many tokens, on the model's device."""
        like = self.head.weight
        shape = (batch, self.config.kv_heads, length, self.config.head_dim)
        return [(like.new_zeros(shape), like.new_zeros(shape)) for _ in self.layers]


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of (batch, heads, tokens, head dimension): pairs are the two halves of a head."""
    first, second = x.chunk(2, -1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def random_decoder(config: Config, device: torch.device | str, seed: int = 0) -> Decoder:
    """A decoder with random weights, the same on every device."""
    torch.manual_seed(seed)
    model = Decoder(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model.to(device).eval()


@torch.inference_mode()
def generate(model: nn.Module, cache: Cache, prompt: Tensor, tokens: int) -> Tensor:
    """Greedy decoding: the prompt in one call, then one token a call.

    Args:
        model: a :class:`Decoder`, compiled or not.
        cache: empty, with room for prompt and tokens.
        prompt: (batch, tokens).
        tokens: how many to add.

    Returns:
        The new tokens, (batch, tokens).
    """
    position = prompt.shape[1]
    logits = model(prompt, torch.arange(position, device=prompt.device), cache)
    chosen = [logits[:, -1:].argmax(-1)]
    while len(chosen) < tokens:
        logits = model(chosen[-1], torch.tensor([position], device=prompt.device), cache)
        chosen.append(logits.argmax(-1))
        position += 1
    return torch.cat(chosen, 1)


def positive(text: str) -> int:
    """A whole number from 1, for options."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options that both examples have."""
    found = torch.accelerator.current_accelerator(check_available=True)
    parser.add_argument("--device", default=str(found or "cpu"), help="default: the accelerator, here %(default)s")
    parser.add_argument("--granite", action="store_true", help="layer shapes of Granite-3.3-8B (8 B weights with 40)")
    parser.add_argument("--layers", type=positive, help="number of layers")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--batch", type=positive, default=1, help="sequences (default: %(default)s)")
    parser.add_argument("--prompt", type=positive, default=32, help="tokens of the prompt (default: %(default)s)")
    parser.add_argument("--tokens", type=positive, default=32, help="tokens to generate (default: %(default)s)")


def chosen_config(options: argparse.Namespace) -> Config:
    """The sizes that the options name."""
    config = GRANITE if options.granite else Config()
    return Config(**{**vars(config), "layers": options.layers or config.layers})


def main(argv: Sequence[str] | None = None) -> None:
    """Generates twice (the first time compiles) and prints tokens and times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments(parser)
    options = parser.parse_args(argv)
    config = chosen_config(options)
    model = random_decoder(config, options.device)
    step = torch.compile(model) if options.compile else model
    prompt = torch.randint(config.vocabulary, (options.batch, options.prompt)).to(options.device)
    for run in ("first run", "second run"):
        cache = model.empty_cache(options.batch, options.prompt + options.tokens)
        started = time.perf_counter()
        tokens = generate(step, cache, prompt, options.tokens).cpu()
        print(f"{run}: {options.tokens} tokens in {time.perf_counter() - started:.2f} s on {options.device}")
    print(tokens.tolist())


if __name__ == "__main__":
    main()
