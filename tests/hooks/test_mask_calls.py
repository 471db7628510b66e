"""Which call a mask belongs to: none is used after its call, none is lost without a word."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from masked_models import SMALL, check, drawn, lengths, numbers, words
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import atomsep
from atomsep import AtomWarning


def bert() -> Any:
    import transformers

    return drawn(transformers.BertModel(transformers.BertConfig(**SMALL)))


MASK = lengths(7, 4, 2, length=7)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_called_by_its_forward(attention: str) -> None:
    """Past the hooks of the model itself: the mask is read from what its layers get."""
    model = bert()
    model.set_attn_implementation(attention)
    model(words(7), attention_mask=MASK.flip(0))
    check(model, "encoder.layer.0", lambda: model.forward(words(7), attention_mask=MASK), MASK)


def test_a_mask_that_is_lost_is_noticed_once_and_no_earlier_one_is_used() -> None:
    model = bert()
    attachment = atomsep.attach(model, "embeddings.word_embeddings")
    model(words(7), attention_mask=MASK)
    assert torch.equal(attachment.importance == 0, MASK == 0)
    with pytest.warns(AtomWarning, match=r"outside a call of BertModel.*Call model\(\.\.\.\)"):
        model.forward(words(7), attention_mask=MASK)
    assert (attachment.importance != 0).all()
    model.forward(words(7), attention_mask=MASK)  # warnings are errors
    model(words(7), attention_mask=MASK)
    assert torch.equal(attachment.importance == 0, MASK == 0)


def test_no_word_where_there_is_no_mask_to_lose() -> None:
    model = bert()
    atomsep.attach(model, "embeddings.word_embeddings", mask=False)
    model.forward(words(7))
    model = nn.Sequential(nn.Linear(3, 4))
    atomsep.attach(model, "0")
    model[0](torch.randn(2, 5, 3))


def test_a_call_that_fails_leaves_no_mask() -> None:
    model = bert()
    attachment = atomsep.attach(model, "encoder.layer.0.output.dense")
    broken = model.pooler.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(words(7), attention_mask=MASK)
    broken.remove()
    assert attachment._taps[0].reader.slot.calls is None
    with pytest.warns(AtomWarning, match="outside a call"):
        model.encoder.layer[0].output(numbers(7, 16), numbers(7, 8))
    assert (attachment.importance != 0).all()


def test_a_layer_that_runs_several_times_in_a_call() -> None:
    import transformers

    config = transformers.AlbertConfig(
        **SMALL | {"num_hidden_layers": 3}, embedding_size=8, num_hidden_groups=1
    )
    model = drawn(transformers.AlbertModel(config))
    layer = "encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm"
    attachment = atomsep.attach(model, layer)
    model(words(7), attention_mask=MASK)
    assert torch.equal(attachment.importance == 0, MASK == 0)


def test_sentence_transformers(tmp_path: Any) -> None:
    """It calls `forward` of the model inside, with a dictionary that holds the mask."""
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    bert().save_pretrained(tmp_path)
    modules = [Transformer(str(tmp_path)), Pooling(8)]
    model = drawn(SentenceTransformer(modules=modules, device="cpu"))
    run = lambda: model({"input_ids": words(7), "attention_mask": MASK})["sentence_embedding"]  # noqa: E731
    [inner] = [name for name, m in model.named_modules() if type(m).__name__ == "BertModel"]
    check(model, f"{inner}.encoder.layer.0", run, MASK)
    check(model, f"{inner}.embeddings.word_embeddings", run, MASK)


def test_low_rank_adapters_around_a_model() -> None:
    import peft

    model = peft.get_peft_model(bert(), peft.LoraConfig(target_modules=["query"]))
    model = drawn(model)
    layer = "base_model.model.encoder.layer.0"
    check(model, layer, lambda: model(words(7), attention_mask=MASK), MASK)
    check(model, layer, lambda: model(words(7), MASK), MASK)


class Remembering(nn.Module):
    """A model around one that keeps a cache, which only the latter names."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=2)
        self.words = drawn(transformers.GPT2Model(config))

    def forward(self, ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
        return self.words(ids, attention_mask=attention_mask, **options)


@torch.no_grad()
def test_a_mask_that_covers_the_tokens_of_a_cache() -> None:
    model, mask = Remembering().eval(), lengths(7, 4, 2, length=7).flip(1)
    attachment = atomsep.attach(model, "words.h.0", layout="channels_last")
    first = model(words(7)[:, :5], mask[:, :5], use_cache=True)
    assert torch.equal(attachment.importance == 0, mask[:, :5] == 0)
    mask[1, -1] = 0
    model(words(7)[:, 5:], mask, past_key_values=first.past_key_values)
    assert torch.equal(attachment.importance == 0, mask[:, 5:] == 0)


class Two(nn.Module):
    """Text and images, and a layer that could belong to either."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 8)

    def forward(
        self, input_ids: Tensor, pixel_values: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        return self.mix(input_ids).mean() + pixel_values.mean()


def test_a_mask_that_may_be_that_of_another_input() -> None:
    model, x, mask = Two(), torch.randn(2, 4, 3), lengths(4, 2, length=4)
    attachment = atomsep.attach(model, "mix")
    with pytest.warns(AtomWarning, match="may be that of another input.*mask='attention_mask'"):
        model(x, x, mask)
    assert (attachment.importance != 0).all()
    attachment.detach()
    with atomsep.attach(model, "mix", mask="attention_mask") as attachment:
        model(x, x, mask)
        assert torch.equal(attachment.importance == 0, mask == 0)
    with warnings.catch_warnings(), atomsep.attach(model, "mix", mask=False):
        model(x, x, mask)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, hidden: Tensor, attention_mask: Any = None) -> Tensor:
        return self.mix(hidden).tanh()


class Nest(nn.Module):
    """Hands its block no mask, the mask itself, or what its attention uses."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.block, self.kind = Block(), kind

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        if self.kind == "additive":
            return self.block(x, ((attention_mask - 1.0) * 1e9)[:, None, None])
        if self.kind == "several":
            return self.block(x, {"full": attention_mask, "sliding": attention_mask})
        return self.block(x, attention_mask if self.kind == "same" else None)


@pytest.mark.parametrize("kind", ["none", "same", "additive", "several"])
def test_a_compiled_model_in_one_graph(kind: str) -> None:
    model, x = drawn(Nest(kind)), numbers(7, 8)
    attachment = atomsep.attach(model, "block.mix", weight=1.0)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for mask in (MASK, MASK.flip(0), MASK):
        expected = atomsep.AtomLoss()(
            nn.functional.linear(x, *model.block.mix.parameters()), mask.bool()
        )
        compiled(x, mask)
        torch.testing.assert_close(attachment.loss(), expected)
        assert torch.equal(attachment.importance == 0, mask == 0)
    assert counter.frame_count == 1
    assert attachment._taps[0].reader.slot.calls is None


@pytest.mark.parametrize("part", ["block", "block.mix"])
def test_a_compiled_part_of_a_model(part: str) -> None:
    model, x = drawn(Nest("none")), numbers(7, 8)
    model.get_submodule(part).compile(backend="aot_eager")
    attachment = atomsep.attach(model, "block.mix", weight=1.0)
    for mask in (MASK, MASK.flip(0)):
        model(x, mask)
        assert torch.equal(attachment.importance == 0, mask == 0)
        attachment.loss()
