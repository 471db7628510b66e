"""Witnesses of a layout: what each says, when they agree, and what is refused."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import timm
import torch
from small_models import hooks_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import atomsep
from atomsep import Attachment
from atomsep.hooks.axes import batch_first


class Net(nn.Module):
    """One layer between two of others' making."""

    def __init__(self, before: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.before, self.layer = before, layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.before(x))  # type: ignore[no-any-return]


def decided(attachment: Attachment) -> str:
    return repr(attachment).split("layer: ")[1]


def conv_tanh() -> Net:
    torch.manual_seed(0)
    return Net(nn.Conv2d(3, 6, 1), nn.Tanh())


IMAGES = torch.randn(2, 3, 4, 5)


def test_what_was_decided_is_printed_with_its_reasons() -> None:
    model = conv_tanh()
    attachment = atomsep.attach(model, "layer")
    assert decided(attachment) == "decided in the first forward"
    model(IMAGES)
    assert decided(attachment) == (
        "channels_first (M, C, H, W), by its graph (a convolution), the number of samples"
    )
    other = atomsep.attach(model, "before")
    model(IMAGES)
    reasons = "its type, its graph (a convolution), its weights, the number of samples"
    assert repr(other).endswith(f"before: channels_first (M, C, H, W), by {reasons}")


# Without a graph


def test_an_evaluation_before_training_waits_for_the_graph() -> None:
    model = conv_tanh().eval()
    attachment = atomsep.attach(model, "layer")
    with torch.no_grad():
        model(IMAGES)
    with pytest.raises(RuntimeError, match=r"has no layout yet: .*without a graph, only the types"):
        _ = attachment.importance
    model.train()(IMAGES)
    attachment.loss()
    expected = attachment.importance
    with torch.no_grad():
        model.eval()(IMAGES)
    assert torch.equal(attachment.importance, expected)
    with torch.no_grad():
        model(torch.randn(3, 3, 8, 8))  # another shape is read in the same way
    assert attachment.importance.shape == (3, 8, 8)
    assert "channels_first" in decided(attachment)


def test_an_evaluation_with_gradients_has_a_graph() -> None:
    model = conv_tanh().eval()
    attachment = atomsep.attach(model, "layer")
    model(IMAGES)
    assert attachment.importance.shape == (2, 4, 5)


def test_a_weight_with_one_axis_tells_without_a_graph() -> None:
    class RMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * x * x.square().mean(-1, keepdim=True).rsqrt()

    model = nn.Sequential(RMSNorm())
    attachment = atomsep.attach(model, "0")
    with torch.no_grad():
        model(torch.randn(2, 5, 6))
    assert repr(attachment).endswith("(M, L, C), by its weights, the number of samples")
    other = atomsep.attach(nn.Sequential(RMSNorm()), "0")
    with torch.no_grad():
        other.model(torch.randn(6, 5, 6))  # the weight fits two axes
    with pytest.raises(RuntimeError, match="has no layout yet"):
        _ = other.importance


def test_a_frozen_trunk_is_refused_in_training() -> None:
    model = conv_tanh().requires_grad_(False)
    atomsep.attach(model, "layer")
    with pytest.raises(ValueError, match="not certain .*if gradients reach the layer"):
        model(IMAGES)


def test_reentrant_checkpointing_has_no_graph() -> None:
    class Saving(Net):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)  # type: ignore[no-any-return]

    model = Saving(nn.Conv2d(3, 6, 1), nn.Tanh())
    attachment = atomsep.attach(model, "layer")
    model(IMAGES.clone())
    with pytest.raises(RuntimeError, match="has no layout yet"):
        attachment.loss()


# Contradictions


def test_type_and_graph_that_disagree_are_both_quoted() -> None:
    model = Net(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 6)))
    model.layer.forward = lambda x: nn.Linear.forward(model.layer[0], x).mT  # type: ignore[method-assign, index]
    atomsep.attach(model, "layer")
    with pytest.raises(ValueError, match="not certain") as error:
        model(torch.randn(2, 6, 4))  # (2, 6, 6): the width fits both axes
    message = str(error.value)
    assert "its type says that axis 2 holds the features" in message
    assert "its graph (a matrix product) says that axis 1 holds the features" in message
    assert 'pass layout="channels_first"' in message


def test_weights_that_fit_another_axis_say_so() -> None:
    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight[:, None, None]

    model = nn.Sequential(nn.Linear(4, 6), Scaling())
    atomsep.attach(model, "1")
    with pytest.raises(ValueError, match="; its weights say that axis 0 holds the features"):
        model(torch.randn(5, 7, 4))


def test_features_in_the_middle_are_refused() -> None:
    class Video(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.unflatten(0, (2, -1))

    model = Net(nn.Conv2d(3, 6, 1), Video())
    atomsep.attach(model, "layer")
    with pytest.raises(ValueError, match=r"its graph \(a convolution\) says that axis 2 holds"):
        model(torch.randn(4, 3, 5, 7))


# Samples


def transposing() -> Net:
    class Transpose(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.transpose(0, 1)

    torch.manual_seed(0)
    return Net(nn.Sequential(nn.Linear(4, 6), Transpose()), nn.LayerNorm(6))


def test_a_batch_as_long_as_its_sequences_follows_earlier_forwards() -> None:
    model = transposing()
    attachment = atomsep.attach(model, "layer")
    with pytest.warns(
        atomsep.AtomWarning, match=r"'layer' gives shape \(5, 5, 6\).* as many samples"
    ):
        model(torch.randn(5, 5, 4))  # nobody can tell
    assert "channels_last" in decided(attachment)
    assert decided(attachment).endswith(", axis 0 assumed to hold the samples")
    model(torch.randn(2, 5, 4))
    assert "length_first (L, M, C)" in decided(attachment)
    model(torch.randn(5, 5, 4))  # warnings are errors
    assert "length_first" in decided(attachment)


def test_an_evaluation_corrects_a_guess() -> None:
    model = transposing().eval()
    attachment = atomsep.attach(model, "layer")
    with torch.no_grad(), pytest.warns(atomsep.AtomWarning, match="as many samples as tokens"):
        model(torch.randn(5, 5, 4))
    with torch.no_grad():
        for samples in (2, 5):
            model(torch.randn(samples, 5, 4))
            assert "length_first (L, M, C)" in decided(attachment)


@pytest.mark.parametrize("kind", ["bert", "llama", "xlnet"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_tells_samples_from_as_many_tokens(kind: str, attention: str) -> None:
    """With the same batch inside a larger one, the importance is the same."""
    import transformers

    sizes = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 16}  # fmt: skip
    if kind == "xlnet":
        sizes = {"vocab_size": 30, "d_model": 8, "n_layer": 2, "n_head": 2, "d_inner": 16}
    name = {"bert": "Bert", "llama": "Llama", "xlnet": "XLNet"}[kind]
    config = getattr(transformers, f"{name}Config")(**sizes)
    if kind != "xlnet":
        config._attn_implementation = attention
    model = getattr(transformers, f"{name}Model")(config)
    layer = {"bert": "encoder.layer.0", "llama": "layers.0", "xlnet": "layer.0"}[kind]
    for dropout in (m for m in model.modules() if isinstance(m, nn.Dropout)):
        dropout.p = 0.0
    words = torch.randint(1, 30, (9, 7))
    attachment = atomsep.attach(model, layer)
    model.train()(words[:7])  # warnings are errors
    few = attachment.importance
    assert repr(attachment).endswith("attention in its graph")
    attachment.detach()
    attachment = atomsep.attach(model, layer)
    model(words)
    torch.testing.assert_close(few, attachment.importance[:7], rtol=1e-4, atol=1e-5)


def test_who_is_not_asked_for_the_samples() -> None:
    """Images, and models with `batch_first=True`, as long as no layer has `batch_first=False`."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.layer = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.conv(x).flatten(2).mT)  # type: ignore[no-any-return]

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.layer = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.rnn(x)[0])  # type: ignore[no-any-return]

    for model, x in (Patches(), torch.randn(16, 3, 8, 8)), (Recurrent(), torch.randn(5, 5, 4)):
        attachment = atomsep.attach(model, "layer")
        model(x)  # warnings are errors
        assert "axis 0 assumed to hold the samples" in decided(attachment)


def test_a_part_that_is_called_by_itself_has_no_number_of_samples() -> None:
    model = transposing()
    attachment = atomsep.attach(model, "layer")
    model.layer(torch.randn(7, 5, 6))
    assert "number of samples" not in decided(attachment)
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 5, 3))  # fails inside the model
    model.layer(torch.randn(9, 5, 6))  # and leaves nothing behind
    assert attachment.importance.shape == (9, 5)


def test_packed_rows_are_not_samples() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(0, 1).unsqueeze(0))  # type: ignore[no-any-return]

    model = Packed()
    atomsep.attach(model, "layer")
    with pytest.raises(ValueError, match="no other axis fits the model's input with 3 samples"):
        model(torch.randn(3, 5, 4))


def timm_swin() -> nn.Module:
    return timm.create_model(  # type: ignore[no-any-return]
        "swinv2_tiny_window8_256", img_size=32, embed_dim=12, depths=(1,), num_heads=(2,),
        num_classes=3, window_size=4,
    )  # fmt: skip


def hugging_face_swin() -> nn.Module:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1], num_heads=[2], window_size=4
    )
    return SwinModel(config).train()


@pytest.mark.parametrize(
    ("make", "layer"),
    [
        (timm_swin, "layers.0.blocks.0.attn"),
        (timm_swin, "layers.0.blocks.0.attn.proj"),
        (hugging_face_swin, "encoder.layers.0.blocks.0.attention"),
    ],
)
def test_windows_are_not_taken_for_samples_where_both_are_as_many(make: Any, layer: str) -> None:
    """Four windows of 16 tokens of each of 16 images: (64, 16, C)."""
    model = make()
    atomsep.attach(model, layer)
    with pytest.raises(ValueError, match=r"\(64, 16, \d+\).* surely fits .*16 samples: .*windows"):
        model(torch.randn(16, 3, 32, 32))


def test_what_earlier_forwards_decided_is_not_taken_for_windows() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.layer = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.conv(x).flatten(2).permute(2, 0, 1))  # type: ignore[no-any-return]

    model = Patches()
    attachment = atomsep.attach(model, "layer")
    for samples in (3, 4):  # 3 are no divisor of 16 tokens
        model(torch.randn(samples, 3, 8, 8))
        assert attachment.importance.shape == (samples, 16)


def test_length_first_models_are_not_guessed_at() -> None:
    """What comes in may be (L, M, C), too: nobody knows which axis holds the samples."""
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    atomsep.attach(model, "layers.0.norm2")
    with pytest.raises(ValueError, match="batch_first=False, so that axis 0 may be") as error:
        model(torch.randn(5, 2, 8))
    assert 'layout="length_first"' in str(error.value)
    assert "channels_first" not in str(error.value), "axis 2 holds the features"


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("target", ["", "encoder", "encoder.layers.0", "decoder.layers.0"])
def test_transformer_layers_say_which_axis_holds_the_samples(target: str, first: bool) -> None:
    class Translation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "dim_feedforward": 16}
            self.inner = nn.Transformer(8, 2, **sizes, batch_first=first)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x)  # type: ignore[no-any-return]

    model = Translation()
    attachment = atomsep.attach(model, f"inner.{target}".rstrip("."))
    model(torch.randn((3, 5, 8) if first else (5, 3, 8)))
    assert attachment.importance.shape == (3, 5)
    assert ("channels_last" if first else "length_first") in repr(attachment)


def test_a_transformer_layer_of_ones_own_may_permute() -> None:
    class Turned(nn.TransformerEncoderLayer):
        def forward(self, *args: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(*args).transpose(0, 1)

    assert batch_first(nn.TransformerEncoderLayer(8, 2, 16)) is False
    assert batch_first(Turned(8, 2, 16)) is None


def test_an_image_tells_the_samples_of_a_length_first_model() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.layer = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8)
            self.attention = nn.MultiheadAttention(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(self.conv(x).flatten(2).mT)
            return self.attention(x.transpose(0, 1), *[x.transpose(0, 1)] * 2)[0]  # type: ignore[no-any-return]

    model = Patches()
    attachment = atomsep.attach(model, "layer")
    model(IMAGES)
    assert attachment.importance.shape == (2, 4)


# Copies and threads


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_their_own_input(way: object) -> None:
    model = conv_tanh()
    atomsep.attach(model, "layer")
    twin = way(model)  # type: ignore[operator]
    [attachment] = atomsep.attachments(twin)
    assert attachment._taps[0].reader.layout.input is attachment._taps[0].reader.input
    twin(IMAGES)
    assert "number of samples" in decided(attachment)
    attachment.detach()
    assert hooks_of(twin) == 0


def test_each_thread_has_its_own_input() -> None:
    """A model that waits inside its forward for another thread with another batch."""
    inside, finished = threading.Barrier(2), threading.Barrier(2)
    failures: list[BaseException] = []

    class Waiting(Net):
        def forward(self, x: Tensor) -> Tensor:
            inside.wait(60)
            out = super().forward(x)
            finished.wait(60)
            return out

    model = Waiting(nn.Linear(4, 6), nn.LayerNorm(6))
    atomsep.attach(model, "layer")

    def run(samples: int) -> None:
        try:
            model(torch.randn(samples, 5, 4))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(samples,)) for samples in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
