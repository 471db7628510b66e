"""Witnesses of the samples' axis: what each says, when they agree, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from small_models import Net, decided
from torch import Tensor, nn

import atomsep
from atomsep.hooks.axes import batch_first

IMAGES = torch.randn(2, 3, 4, 5)


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


class Permuted(nn.Module):
    """Moves the axes of a map, or of a map flattened to a sequence."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(2) if len(self.order) == 3 else x).permute(self.order)


@pytest.mark.parametrize(
    ("order", "samples"),
    [((3, 0, 2, 1), 1), ((3, 1, 2, 0), 3), ((2, 1, 0), 2)],
    ids=["(W, M, H, C)", "(W, C, H, M)", "(L, C, M)"],
)
def test_samples_where_no_layout_has_them_are_refused(order: Any, samples: int) -> None:
    """Also if axis 0 happens to be as long."""
    model, x = Net(nn.Conv2d(3, 6, 1), Permuted(*order)), torch.randn(4, 3, 1, 4)
    message = (
        f"convolution in its graph says that axis {samples} holds the samples, where no layout"
    )
    atomsep.attach(model, "layer")
    with pytest.raises(ValueError, match=f"{message}.*; axis 0 has as many .* pass layout="):
        model(x)
    with pytest.raises(ValueError, match=rf"{message} has them\)"):
        model.layer(model.before(x))  # by itself: nobody knows how many samples there are
    with pytest.raises(ValueError, match="no other axis fits .* 3 samples"):
        model(x[1:])


def test_frames_that_pass_a_convolution_as_samples_are_none() -> None:
    class Video(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.layer = nn.Conv2d(3, 6, 1), nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            maps = self.conv(x.flatten(0, 1)).unflatten(0, x.shape[:2])
            return self.layer(maps.movedim(2, -1))  # type: ignore[no-any-return]

    model = Video()
    for samples in (1, 2):
        attachment = atomsep.attach(model, "layer")
        model(torch.randn(samples, 5, 3, 4, 4))
        assert attachment.importance.shape == (samples, 5, 4, 4)
        assert "channels_last" in decided(attachment)
        attachment.detach()


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
