"""resnet_bottleneck, resnet_basic: small residual networks of random weights; with _expected, what they make of images,
in evaluation and in training. The network is written here, after the paper, with torchvision's names."""
import torch
from torch import nn

from reference_files import print_sizes, shake, write


class Block(nn.Module):
    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = 4 * width if bottleneck else width
        shapes = ([(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)] if bottleneck else
                  [(inputs, width, 3, stride), (width, outputs, 3, 1)])
        self.count = len(shapes)
        for i, (a, b, kernel, step) in enumerate(shapes, 1):
            self.add_module(f"conv{i}", nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False))
            self.add_module(f"bn{i}", nn.BatchNorm2d(b))
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.count:
                y = torch.relu(y)
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, depths, bottleneck, width=64, channels=3, classes=1000, small_images=False):
        super().__init__()
        self.conv1 = (nn.Conv2d(channels, width, 3, 1, 1, bias=False) if small_images else
                      nn.Conv2d(channels, width, 7, 2, 3, bias=False))
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.Identity() if small_images else nn.MaxPool2d(3, 2, 1)
        inputs = width
        for stage, depth in enumerate(depths):
            blocks = []
            for i in range(depth):
                blocks.append(Block(inputs, width << stage, 2 if stage > 0 and i == 0 else 1, bottleneck))
                inputs = (width << stage) * (4 if bottleneck else 1)
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


SIZES = {"ResNet-18": ([2, 2, 2, 2], False), "ResNet-34": ([3, 4, 6, 3], False), "ResNet-50": ([3, 4, 6, 3], True),
         "ResNet-101": ([3, 4, 23, 3], True), "ResNet-152": ([3, 8, 36, 3], True)}


def main():
    torch.manual_seed(4)
    kinds = {"resnet_bottleneck": (ResNet([3, 4, 6, 3], True, width=2, classes=5), torch.randn(4, 3, 40, 48)),
             "resnet_basic": (ResNet([2, 2, 2, 2], False, width=3, channels=1, classes=5, small_images=True),
                              torch.randn(4, 1, 16, 16))}
    targets = torch.tensor([4, 0, 2, 2])
    for name, (model, images) in kinds.items():
        shake(model)
        write(name, model.state_dict())
        expected = {"images": images, "targets": targets}
        # In fp64: batch norm over few values multiplies what is rounded.
        model = model.double()
        expected["logits"] = model.eval()(images.double()).float()
        logits = model.train()(images.double())
        loss = nn.functional.cross_entropy(logits, targets)
        loss.backward()
        expected |= {"logits.training": logits.float(), "loss": loss.float()}
        expected |= {f"gradient.{n}": p.grad.float() for n, p in model.named_parameters()}
        expected |= {f"after.{n}": b.float() for n, b in model.named_buffers() if "running" in n}
        write(f"{name}_expected", expected)
    print_sizes({name: lambda s=size: ResNet(*s) for name, size in SIZES.items()})
