"""The example decoder: prefill and decode with a resident cache, eager and compiled, give the CPU's logits."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name):
    """A script of ``examples`` as a module; they import each other by name."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


decoder = example("decoder")
speculative = example("speculative")

SMALL = decoder.Config(vocabulary=97, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=160)
LENGTH = 24


@pytest.fixture(scope="module")
def models():
    return decoder.random_decoder(SMALL, "cpu"), decoder.random_decoder(SMALL, "spyre")


def prompt(tokens, batch=2):
    return torch.randint(SMALL.vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(tokens))


def assert_same_steps(host, device, step, tokens, more=3):
    """Prefill and some steps: same logits, and a cache with the same content that stays where it is."""
    caches = host.empty_cache(2, LENGTH), device.empty_cache(2, LENGTH)
    where = [(keys.data_ptr(), values.data_ptr()) for keys, values in caches[1]]
    ids, position = prompt(tokens), torch.arange(tokens)
    with torch.inference_mode():
        for _ in range(1 + more):
            expected = host(ids, position, caches[0])
            actual = step(ids.to("spyre"), position.to("spyre"), caches[1])
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
            ids, position = expected[:, -1:].argmax(-1), position[-1:] + 1
    for one, other in zip(caches[1], caches[0], strict=True):
        torch.testing.assert_close([t.cpu() for t in one], list(other), rtol=1e-4, atol=1e-5)
    assert where == [(keys.data_ptr(), values.data_ptr()) for keys, values in caches[1]]


def test_eager_prefill_and_decode_give_the_cpus_logits(models):
    assert_same_steps(*models, models[1], tokens=7)


def test_compiled_prefill_and_decode_are_one_launch_a_call(models, artifact_cache):
    torch._dynamo.reset()
    host, device = models
    step = torch.compile(device, dynamic=True)
    before = torch.spyre.compile_stats()
    for tokens in (7, 9, 12):
        assert_same_steps(host, device, step, tokens)
    after = torch.spyre.compile_stats()
    # A prompt of any length, and one token; nothing stays outside of their programs.
    assert (after.graphs - before.graphs, after.programs - before.programs) == (2, 2)
    assert after.outside == before.outside
    ids, position, cache = prompt(1).to("spyre"), torch.tensor([3]).to("spyre"), device.empty_cache(2, LENGTH)
    with torch.inference_mode(), torch.spyre.record_timeline() as timeline:
        step(ids, position, cache)
        torch.spyre.synchronize()
    assert [one.pipeline for one in timeline.intervals].count("compute") == 1


def test_speculative_decoding_gives_the_tokens_of_greedy_decoding(models):
    config = decoder.Config(**{**vars(SMALL), "layers": 3})
    model = decoder.random_decoder(config, "spyre")
    draft = speculative.draft_of(model, 1)
    start, tokens, ahead = prompt(5, batch=1).to("spyre"), 16, 3
    greedy = decoder.generate(model, model.empty_cache(1, 32), start, tokens)
    found, calls = speculative.speculate(
        model, model.empty_cache(1, 32), draft, draft.empty_cache(1, 32), start, tokens, ahead
    )
    assert found.tolist() == greedy.tolist()
    assert len(set(found[0].tolist())) > 4
    assert calls < tokens


def test_granite_has_the_layers_of_granite_3_3_8b():
    with torch.device("meta"):
        model = decoder.Decoder(decoder.GRANITE)
    layer = {name: tuple(weight.shape) for name, weight in model.layers[0].named_parameters()}
    assert layer == {
        "attention_norm.weight": (4096,),
        "attention.query.weight": (4096, 4096),
        "attention.key.weight": (1024, 4096),
        "attention.value.weight": (1024, 4096),
        "attention.output.weight": (4096, 4096),
        "mlp_norm.weight": (4096,),
        "mlp.gate.weight": (12800, 4096),
        "mlp.up.weight": (12800, 4096),
        "mlp.down.weight": (4096, 12800),
    }
    assert len(model.layers) == 40


@pytest.mark.parametrize(
    ("script", "arguments", "text"),
    [
        (decoder, ["--tokens", "0"], "argument --tokens: 0 is less than 1"),
        (decoder, ["--layers", "x"], "argument --layers: invalid positive value: 'x'"),
        (speculative, ["--draft-layers", "99"], "--draft-layers 99: the model has"),
    ],
    ids=["tokens", "layers", "draft"],
)
def test_examples_refuse_numbers_that_make_no_sense(script, arguments, text, capsys):
    with pytest.raises(SystemExit) as caught:
        script.main(arguments)
    assert (caught.value.code, text in capsys.readouterr().err) == (2, True)
