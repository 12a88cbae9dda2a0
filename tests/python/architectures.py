"""Small models of the architectures that people train, each with a batch: what the tests prove plans on."""

import torch
import torch.nn.functional as F
from torch import nn


def tokens(*shape, top=512, low=0):
    return torch.randint(low, top, shape)


def transformers_models():
    import transformers as t

    causal = {"input_ids": tokens(2, 64), "labels": tokens(2, 64)}
    image = {"pixel_values": torch.randn(4, 3, 64, 64), "labels": tokens(4, top=2)}
    yield "llama", lambda: t.LlamaForCausalLM(t.LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, attention_dropout=0.1)), causal
    yield "bert", lambda: t.BertForMaskedLM(t.BertConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4)), causal
    yield "vit", lambda: t.ViTForImageClassification(t.ViTConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, image_size=64,
        patch_size=8, hidden_dropout_prob=0.1)), image
    yield "t5", lambda: t.T5ForConditionalGeneration(t.T5Config(
        vocab_size=512, d_model=128, d_ff=256, num_layers=2, num_heads=4, d_kv=32, decoder_start_token_id=0)), {
            "input_ids": tokens(2, 64), "labels": tokens(2, 32)}
    yield "mixtral", lambda: t.MixtralForCausalLM(t.MixtralConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4)), causal
    yield "mamba", lambda: t.MambaForCausalLM(t.MambaConfig(
        vocab_size=512, hidden_size=64, num_hidden_layers=2, state_size=8)), {
            "input_ids": tokens(2, 32), "labels": tokens(2, 32)}
    yield "resnet", lambda: t.ResNetForImageClassification(t.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic")), image
    yield "gpt2", lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=512, n_embd=128, n_layer=3, n_head=4)), causal
    yield "whisper", lambda: t.WhisperForConditionalGeneration(t.WhisperConfig(
        vocab_size=512, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=16, max_source_positions=50,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, dropout=0.1)), {
            "input_features": torch.randn(2, 16, 100), "labels": tokens(2, 16, low=3)}


class UNet(nn.Module):
    """Two levels, with batch norm, skip connections and a time embedding: a denoiser."""

    def __init__(self, width=16):
        super().__init__()

        def convolutions(inside, outside):
            return nn.Sequential(
                nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.SiLU(inplace=True),
                nn.Conv2d(outside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU(), nn.Dropout2d(0.1))

        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.first, self.down = convolutions(3, width), convolutions(width, 2 * width)
        self.middle = convolutions(2 * width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last, self.out = convolutions(2 * width, width), nn.Conv2d(width, 3, 1)

    def forward(self, x, time):
        a = self.first(x) + self.time(time[:, None])[:, :, None, None]
        b = self.middle(self.down(F.max_pool2d(a, 2)))
        return self.out(self.last(torch.cat([a, self.up(b)], 1)))


class Classified(nn.Module):
    """The U-Net as a segmenter."""

    def __init__(self):
        super().__init__()
        self.net = UNet()

    def forward(self, image, mask):
        return F.cross_entropy(self.net(image, image.new_zeros(len(image))), mask)


class Denoised(nn.Module):
    """One step of a diffusion model's training: noise and times are drawn inside."""

    def __init__(self):
        super().__init__()
        self.net = UNet()

    def forward(self, image):
        time = torch.rand(len(image))
        noise = torch.randn_like(image)
        level = time[:, None, None, None]
        return F.mse_loss(self.net((1 - level).sqrt() * image + level.sqrt() * noise, time), noise)


def all_models():
    yield from transformers_models()
    yield "unet", Classified, {"image": torch.randn(4, 3, 32, 32), "mask": tokens(4, 32, 32, top=3)}
    yield "diffusion", Denoised, {"image": torch.randn(4, 3, 32, 32)}


NAMES = ("llama", "bert", "vit", "t5", "mixtral", "mamba", "resnet", "gpt2", "whisper", "unet", "diffusion")


def make(name):
    """(model in training mode, batch)"""
    torch.manual_seed(0)
    for found, build, batch in all_models():
        if found == name:
            return build().train(), batch
    raise KeyError(name)
