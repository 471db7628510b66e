"""Read token importance: maps over images, and the words of a sentence.

The documentation shows the lines between the markers. Models and data are random, so the output
shows shapes and ranges, not meaning.
"""

import rich
import torch
import torchvision

import atomsep
from atomsep.experiments.text.tiny import tiny_encoder
from atomsep.importance import image_figure, merge_words, to_terminal, tokens_of

torch.manual_seed(0)
images = torch.rand(2, 3, 64, 64)
normalise = torchvision.transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
model = torchvision.models.resnet18(num_classes=10)
attachment = atomsep.attach(model, "layer1.1.bn2")

# [start:maps]
model.eval()
with torch.no_grad():
    model(normalise(images))
maps = attachment.importance  # (M, 16, 16) in [-1, 1] for 64 x 64 images
figure = image_figure(images, maps)  # then figure.savefig("maps.png"), or "maps.pdf"
# [end:maps]
print(f"maps {tuple(maps.shape)}, figure {figure.get_figwidth()} inches wide")

sentence = "the cat sat"
tokenizer, bert = tiny_encoder([sentence], classes=2)
of_words = atomsep.attach(bert, "bert.encoder.layer.0")

# [start:words]
bert.eval()
with torch.no_grad():
    bert(**tokenizer(sentence, return_tensors="pt"))
words = merge_words(sentence, tokens_of(tokenizer, sentence), of_words.importance[0])
rich.print(to_terminal(sentence, words, numbers=True))  # or to_html(sentence, words)
# [end:words]
