"""Writes scikit-learn's digits for examples/digits.cpp: make_digits.py OUT.safetensors"""
import sys

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits

digits = load_digits()
images = torch.from_numpy(digits.images).float().div_(16).sub_(0.3)[:, None].contiguous()
save_file({"images": images, "labels": torch.from_numpy(digits.target).long()}, sys.argv[1])
