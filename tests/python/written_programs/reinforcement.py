"""Reinforcement learning: PPO with several epochs over a rollout, DQN with a replay buffer, actor and critic."""

import collections
import copy
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal

from .program import Program, gaussian_batches, program


def tower(inputs, outputs, width=64):
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs))


@program
class PPO(Program):
    """The step samples a rollout without gradients, then trains on shuffled parts of it for two epochs."""

    places = ("100%", "80%", "60%")

    def __init__(self):
        self.actor, self.critic = tower(16, 4), tower(16, 1)
        self.dynamics = torch.randn(16, 16) / 4
        self.optimizer = torch.optim.Adam([*self.actor.parameters(), *self.critic.parameters()], 3e-3, eps=1e-5)
        self.batches = gaussian_batches(4, 32, 16)

    @torch.no_grad()
    def rollout(self, state):
        buffer = []
        for _ in range(16):
            distribution = Categorical(logits=self.actor(state))
            action = distribution.sample()
            reward = torch.tanh(state[:, 0] * (action - 1.5))
            buffer.append((state, action, distribution.log_prob(action), reward, self.critic(state).squeeze(1)))
            state = torch.tanh(state @ self.dynamics) + 0.1 * torch.randn_like(state) + 0.1 * action[:, None]
        advantages, last, following = [], 0, self.critic(state).squeeze(1)
        for *_, reward, value in reversed(buffer):
            last = reward + 0.99 * following - value + 0.99 * 0.95 * last
            following = value
            advantages.insert(0, last)
        states, actions, logs, _, values = (torch.cat(part) for part in zip(*buffer))
        advantages = torch.cat(advantages)
        return states, actions, logs, advantages, advantages + values

    def loss_of(self, states, actions, logs, advantages, returns):
        distribution = Categorical(logits=self.actor(states))
        ratio = (distribution.log_prob(actions) - logs).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        value = F.mse_loss(self.critic(states).squeeze(1), returns)
        return policy + 0.5 * value - 0.01 * distribution.entropy().mean()

    def step(self, state):
        data, losses = self.rollout(state), []
        for _ in range(2):
            for part in torch.randperm(len(data[0])).split(256):
                with self.micro_batch():
                    loss = self.loss_of(*(d[part] for d in data))
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.actor.parameters(), 0.5)
                self.optimizer.step()
                losses.append(loss.detach())
        return torch.stack(losses).mean()


@program
class PPOByMinibatches(PPO):
    """The loop is outside; each minibatch is a step of the session."""

    goes_backward = False
    places = ("100%", "80%", "60%")

    def sample(self):
        return tuple(d[:256] for d in self.rollout(self.batches[0]))

    def fit_options(self):
        return {"optimizer": self.optimizer}

    def step(self, part):
        return self.loss_of(*part)

    def iteration(self, state, backward):
        data, losses = self.rollout(state), []
        for _ in range(2):
            for part in torch.randperm(len(data[0])).split(256):
                losses.append(backward(tuple(d[part] for d in data)))
                self.optimizer.step()
                self.optimizer.zero_grad()
        return torch.stack(losses).mean()


@program
class DQN(Program):
    """A deque of transitions, sampled by Python's random, epsilon-greedy by NumPy, and a target net copied now and then."""

    def __init__(self):
        self.model = tower(16, 4)
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.model.memory = collections.deque(maxlen=600)
        self.model.updates = 0
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), 1e-3)
        self.batches = gaussian_batches(6, 256, 16)
        for state in gaussian_batches(300, 16):
            self.model.memory.append((state, random.randrange(4), random.random(), state + 0.1))

    def step(self, states):
        with torch.no_grad():
            greedy = self.model(states).argmax(1)
        for i, state in enumerate(states):
            action = int(greedy[i]) if np.random.rand() > 0.3 else int(np.random.randint(4))
            self.model.memory.append((state, action, float(state[action]), states[(i + 1) % len(states)]))
        sampled = random.sample(self.model.memory, 256)
        state, action, reward, following = zip(*sampled)
        state, following = torch.stack(state), torch.stack(following)
        value = self.model(state).gather(1, torch.tensor(action)[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.target(following).gather(1, self.model(following).argmax(1, keepdim=True)).squeeze(1)
            wanted = torch.tensor(reward) + 0.99 * best
        loss = F.smooth_l1_loss(value, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.model.parameters():
            p.grad.data.clamp_(-1, 1)
        self.optimizer.step()
        self.model.updates += 1
        if self.model.updates % 3 == 0:
            self.target.load_state_dict(self.model.state_dict())
        return loss


@program
class SoftActorCritic(Program):
    """Three optimizers: two critics, an actor through the critics, a temperature; soft updates of the target."""

    places = ("100%", "80%", "60%")

    def __init__(self):
        self.actor, self.critics = tower(16, 8), nn.ModuleList(tower(20, 1) for _ in range(2))
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.temperature = torch.zeros(1, requires_grad=True)
        self.optimizers = [
            torch.optim.Adam(parameters, 1e-3)
            for parameters in (self.critics.parameters(), self.actor.parameters(), [self.temperature])
        ]
        self.batches = [(s, torch.randn(512, 4), torch.randn(512, 1), s + 0.1) for s in gaussian_batches(4, 512, 16)]

    def act(self, state):
        mean, deviation = self.actor(state).chunk(2, dim=1)
        distribution = Normal(mean, deviation.clamp(-5, 2).exp())
        before = distribution.rsample()
        action = torch.tanh(before)
        return action, (distribution.log_prob(before) - torch.log(1 - action.pow(2) + 1e-6)).sum(1, keepdim=True)

    def update(self, loss, optimizer):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def step(self, batch):
        state, action, reward, following = batch
        with torch.no_grad():
            next_action, log = self.act(following)
            values = [c(torch.cat([following, next_action], 1)) for c in self.targets]
            wanted = reward + 0.99 * (torch.min(*values) - self.temperature.exp() * log)
        with self.micro_batch():
            of_critics = sum(F.mse_loss(c(torch.cat([state, action], 1)), wanted) for c in self.critics)
        self.update(of_critics, self.optimizers[0])
        with self.micro_batch():
            chosen, log = self.act(state)
            value = torch.min(*(c(torch.cat([state, chosen], 1)) for c in self.critics))
            of_actor = (self.temperature.exp().detach() * log - value).mean()
        self.update(of_actor, self.optimizers[1])
        with self.micro_batch():
            of_temperature = -(self.temperature * (log + 4).detach()).mean()
        self.update(of_temperature, self.optimizers[2])
        with torch.no_grad():
            for t, c in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                t.lerp_(c, 0.05)
        return (of_critics + of_actor).detach()
