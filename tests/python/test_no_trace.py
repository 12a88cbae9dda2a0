"""What recording a step writes is put back, beside what test_session and test_steps see of it."""

import torch
from torch import nn

import snug


def test_recording_puts_back_what_is_replaced_unread():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64))  # F.normalize(..., out=self._u)
            self.register_buffer("last", torch.zeros(512, 64))

        def forward(self, x):
            h = self.layer(x).tanh()
            self.last.copy_(h.detach())
            return h

    model, x = Remembers(), torch.randn(512, 64)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    snug.fit(lambda b: model(b).square().mean(), x, budget="100%").close()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    model(x)
    assert not any(torch.equal(v, state[k]) for k, v in model.state_dict().items() if k.endswith(("_u", "_v", "last")))
