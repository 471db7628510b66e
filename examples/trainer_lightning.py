"""Lightning: a callback for a LightningModule that stays as it is."""

import lightning
import torch
import torchvision
from torch.nn import functional as F

import atomsep
from atomsep.integrations.lightning import AtomModeling


class Classifier(lightning.LightningModule):
    """A ResNet-18; nothing here is about atom modeling."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torchvision.models.resnet18(num_classes=10)

    def training_step(self, batch: tuple, batch_idx: int) -> torch.Tensor:
        """The task's loss."""
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any optimiser."""
        return torch.optim.SGD(self.parameters(), lr=0.05)


torch.manual_seed(0)
data = [(torch.randn(3, 32, 32), number % 10) for number in range(16)]
loader = torch.utils.data.DataLoader(data, batch_size=4)
options = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)

# [start:lightning]
module = Classifier()
attachment = atomsep.attach(module, "net.layer1.1.bn2", weight=0.2)
trainer = lightning.Trainer(max_epochs=1, callbacks=[AtomModeling(attachment)], **options)
trainer.fit(module, loader)
# [end:lightning]
print({name: round(value, 3) for name, value in attachment.stats.items()})
