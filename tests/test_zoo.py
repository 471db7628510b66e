"""Models of other libraries with known difficulties: attached without arguments, exact."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from benchmarks.zoo import page, table
from benchmarks.zoo.cases import Case, rows_of
from benchmarks.zoo.compare import ByHand
from benchmarks.zoo.truth import Subject, Truth, find_truths

DIFFICULT = {
    "transformers xlnet:XLNetModel": "(L, M, C) inside",
    "transformers llama:LlamaModel": "norms of its own",
    "transformers mamba:MambaModel": "convolutions within blocks",
    "transformers t5:T5Model": "two lengths, two masks, tuples",
    "transformers wav2vec2:Wav2Vec2Model": "a mask of another length",
    "transformers vit:ViTModel": "a class token",
    "transformers swin:SwinModel": "windows",
    "timm test_convnext": "both conventions in one block",
    "timm test_vit": "a class token",
    "timm test_efficientnet": "norms with activations",
    "torchvision squeezenet1_1": "no norms, in-place activations",
    "diffusers UNet2DModel": "tuples of maps",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DIFFICULT)
def test_attaching_without_arguments_is_exact(name: str) -> None:
    library, _, model = name.partition(" ")
    rows = list(rows_of(Case(library, model, model)))
    assert {row.get("place") for row in rows} == {"recommended", "middle", "last"}
    assert [row for row in rows if row["outcome"] != "exact"] == []


def test_the_truth_about_a_model_whose_axes_are_known() -> None:
    class Known(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = torch.nn.Conv2d(3, 8, 4, 4)
            self.flat, self.turned, self.folded = (torch.nn.Identity() for _ in range(3))
            self.scores = torch.nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            maps = self.patches(x)
            tokens = maps.flatten(2).transpose(1, 2)
            tokens = self.flat(torch.cat([tokens[:, :2], tokens], 1))
            self.turned(tokens.transpose(0, 1))
            self.folded(tokens[:, 2:].reshape(-1, 4, 8))
            self.scores(tokens[:, None] @ tokens[:, None].mT)
            return tokens

    model = Known().double()

    def inputs(samples: int, size: int) -> tuple[torch.Tensor]:
        return (torch.randn(samples, 3, *((16, 16), (32, 48))[size]).double(),)

    truths = find_truths(Subject(lambda size: model, inputs, 6.0))
    assert str(truths["patches"]) == "batch feature token token"
    assert str(truths["flat"]) == "batch token feature, 2 in front"
    assert str(truths["turned"]) == "token batch feature, 2 in front"
    assert truths["folded"].problem == "samples folded with something else"
    assert truths["scores"].problem


def test_a_mask_that_a_module_returns_is_that_of_its_layers() -> None:
    """As in Moonshine, whose own mask keeps more tokens than a short sample has alone."""

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(3)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            mask = torch.arange(6).expand(len(x), 6) < 4
            return {"last_hidden_state": self.norm(x), "attention_mask": mask.int()}

    model = torch.nn.Sequential(Encoder(), torch.nn.Module())
    model.forward = lambda x: model[0](x)["last_hidden_state"]  # type: ignore[method-assign]
    truths = {"0.norm": Truth((5, 6, 3), 0, 2, 0, 2)}
    charge = ByHand(model, (torch.randn(5, 6, 3),), truths, padded=True).expect("0.norm")[0]
    assert (charge != 0).sum(1).tolist() == [4] * 5
    charge = ByHand(model, (torch.randn(5, 6, 3),), truths, padded=False).expect("0.norm")[0]
    assert (charge != 0).all()


def test_a_text_in_front_of_an_image_counts() -> None:
    class Joint(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.joined = torch.nn.Identity()

        def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
            patches = torch.nn.functional.unfold(image, 4, stride=4).mT[..., :8]
            return self.joined(torch.cat([text, patches], 1))  # type: ignore[no-any-return]

    def inputs(samples: int, size: int) -> dict[str, torch.Tensor]:
        shape = ((16, 16), (32, 32))[size]
        return {"image": torch.randn(samples, 3, *shape), "text": torch.randn(samples, 7, 8)}

    truths = find_truths(Subject(lambda size: Joint(), inputs, 4.0))
    assert str(truths["joined"]) == "batch token feature"


def test_the_page_agrees_with_the_table() -> None:
    assert page.PATH.read_text() == page.render(table.read())


def test_nothing_in_the_table_fails_in_silence_and_almost_everything_attaches() -> None:
    rows = table.read()
    counts = Counter(row["outcome"] for row in rows)
    tried = sum(counts[outcome] for outcome in page.COUNTED)
    assert counts["wrong"] == counts["crashed"] == 0
    assert counts["exact"] >= 0.95 * tried
