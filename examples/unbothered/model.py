"""A transformer of 104,478 parameters in numpy, with its gradient and its optimiser.

All that is computed is a function of its arguments: no clock, no global generator. A sequence is
computed by itself, so what is sampled does not depend on what else is sampled at that time.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from examples.unbothered.task import BEGIN, END, FIRST, LENGTH, LONGEST, WORDS

WIDTH, LAYERS, HEADS = 64, 2, 4
PLACES = LENGTH + 1 + LONGEST
ENTROPY, RATE, LARGEST = 0.05, 1e-3, 1.0

Array = np.ndarray[Any, np.dtype[np.float64]]
Weights = dict[str, Array]

# What may not be sampled: the words of prompts.
_BARRED = np.zeros(len(WORDS))
_BARRED[BEGIN:FIRST] = -1e9
_CAUSAL = np.triu(np.full((PLACES, PLACES), -1e9), 1)


def fresh(seed: int) -> Weights:
    draw = np.random.default_rng(seed)
    weights = {
        "words": draw.normal(0, 0.1, (len(WORDS), WIDTH)),
        "places": draw.normal(0, 0.1, (PLACES, WIDTH)),
        "last.g": np.ones(WIDTH),
        "last.b": np.zeros(WIDTH),
        "out": draw.normal(0, 0.02, (WIDTH, len(WORDS))),
        "out.b": np.zeros(len(WORDS)),
    }
    for n in range(LAYERS):
        for name, rows, columns in (
            ("qkv", WIDTH, 3 * WIDTH), ("mix", WIDTH, WIDTH),
            ("up", WIDTH, 4 * WIDTH), ("down", 4 * WIDTH, WIDTH),
        ):  # fmt: skip
            weights[f"{n}.{name}"] = draw.uniform(-1, 1, (rows, columns)) / np.sqrt(rows)
            weights[f"{n}.{name}.b"] = np.zeros(columns)
        for name in ("a", "m"):
            weights[f"{n}.{name}.g"] = np.ones(WIDTH)
            weights[f"{n}.{name}.b"] = np.zeros(WIDTH)
    return weights


def _normal(x: Array, gain: Array, bias: Array) -> tuple[Array, Any]:
    middle = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((middle * middle).mean(-1, keepdims=True) + 1e-5)
    unit = middle * scale
    return unit * gain + bias, (unit, scale, gain)


def _normal_back(above: Array, kept: Any) -> tuple[Array, Array, Array]:
    unit, scale, gain = kept
    inner = above * gain
    x = scale * (
        inner - inner.mean(-1, keepdims=True) - unit * (inner * unit).mean(-1, keepdims=True)
    )
    axes = tuple(range(above.ndim - 1))
    return x, (above * unit).sum(axes), above.sum(axes)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _split(x: Array) -> Array:
    batch, length, _ = x.shape
    return x.reshape(batch, length, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)


def _joined(x: Array) -> Array:
    batch, _, length, _ = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)


def forward(w: Weights, ids: Array) -> tuple[Array, list[Any]]:
    """Log-probabilities of the token behind each place, and what the gradient needs."""
    length = ids.shape[1]
    x = w["words"][ids] + w["places"][:length]
    kept: list[Any] = []
    for n in range(LAYERS):
        a, norm_a = _normal(x, w[f"{n}.a.g"], w[f"{n}.a.b"])
        q, k, v = (_split(part) for part in np.split(a @ w[f"{n}.qkv"] + w[f"{n}.qkv.b"], 3, -1))
        seen = _softmax(q @ k.transpose(0, 1, 3, 2) / 4.0 + _CAUSAL[:length, :length])
        mixed = _joined(seen @ v)
        x = x + mixed @ w[f"{n}.mix"] + w[f"{n}.mix.b"]
        m, norm_m = _normal(x, w[f"{n}.m.g"], w[f"{n}.m.b"])
        up = m @ w[f"{n}.up"] + w[f"{n}.up.b"]
        live = np.maximum(up, 0)
        x = x + live @ w[f"{n}.down"] + w[f"{n}.down.b"]
        kept.append((a, norm_a, q, k, v, seen, mixed, m, norm_m, live))
    last, norm = _normal(x, w["last.g"], w["last.b"])
    logits = last @ w["out"] + w["out.b"] + _BARRED
    high = logits.max(-1, keepdims=True)
    logits = logits - high
    kept.append((last, norm))
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True)), kept


def _backward(w: Weights, ids: Array, kept: list[Any], above: Array) -> Weights:
    """The gradient of all weights, by that of the logits."""
    found: Weights = {}

    def linear(name: str, x: Array, above: Array) -> Array:
        flat = above.reshape(-1, above.shape[-1])
        found[name] = x.reshape(-1, x.shape[-1]).T @ flat
        found[f"{name}.b"] = flat.sum(0)
        return above @ w[name].T

    def normal(name: str, above: Array, norm: Any) -> Array:
        x, found[f"{name}.g"], found[f"{name}.b"] = _normal_back(above, norm)
        return x

    last, norm = kept[-1]
    x = normal("last", linear("out", last, above), norm)
    for n in reversed(range(LAYERS)):
        a, norm_a, q, k, v, seen, mixed, m, norm_m, live = kept[n]
        x = x + normal(
            f"{n}.m", linear(f"{n}.up", m, linear(f"{n}.down", live, x) * (live > 0)), norm_m
        )
        out = _split(linear(f"{n}.mix", mixed, x))
        score = out @ v.transpose(0, 1, 3, 2)
        score = seen * (score - (score * seen).sum(-1, keepdims=True)) / 4.0
        parts = (score @ k, score.transpose(0, 1, 3, 2) @ q, seen.transpose(0, 1, 3, 2) @ out)
        qkv = np.concatenate([_joined(part) for part in parts], -1)
        x = x + normal(f"{n}.a", linear(f"{n}.qkv", a, qkv), norm_a)
    found["places"] = np.zeros_like(w["places"])
    found["places"][: ids.shape[1]] = x.sum(0)
    found["words"] = np.zeros_like(w["words"])
    np.add.at(found["words"], ids, x)  # type: ignore[arg-type]
    return found


Row = tuple[list[int], int, float]  # tokens, how many are prompt, advantage
Answer = tuple[list[int], list[float]]  # tokens, and their log-probabilities


def answers(
    w: Weights, prompts: list[list[int]], draws: list[np.random.Generator] | None
) -> list[Answer]:
    """An answer to each prompt; without generators, the likeliest tokens."""
    ids = np.array(prompts)
    lps = np.zeros((len(ids), LONGEST))
    for place in range(LONGEST):
        said = forward(w, ids)[0][:, -1]
        if draws is None:
            tokens = said.argmax(-1)
        else:
            sums = np.exp(said).cumsum(-1)
            drawn = np.array([draw.random() for draw in draws])[:, None] * sums[:, -1:]
            tokens = (sums <= drawn).sum(-1)
        lps[:, place] = said[np.arange(len(ids)), tokens]
        ids = np.concatenate([ids, tokens[:, None]], 1)
    found = []
    for row, known in zip(ids[:, len(prompts[0]) :].tolist(), lps.tolist(), strict=True):
        length = row.index(END) + 1 if END in row else LONGEST
        found.append((row[:length], known[:length]))
    return found


def drawing(seed: int, prompt: list[int]) -> np.random.Generator:
    """What chooses the tokens of one answer."""
    return np.random.default_rng([seed, *prompt])


def gradient(w: Weights, rows: list[Row]) -> Weights:
    """Of the loss over rows: the mean over sampled
    tokens of -advantage * log p - ENTROPY * entropy."""
    ids = np.zeros((len(rows), PLACES), int)
    live = np.zeros((len(rows), PLACES - 1))
    for row, (tokens, prompt, _) in enumerate(rows):
        ids[row, : len(tokens)] = tokens
        live[row, prompt - 1 : len(tokens) - 1] = 1
    advantage = np.array([row[2] for row in rows])[:, None]
    lps, kept = forward(w, ids)
    lps, target = lps[:, :-1], ids[:, 1:]
    p = np.exp(lps)
    entropy = -(p * lps).sum(-1, keepdims=True)
    hot = np.zeros_like(p)
    np.put_along_axis(hot, target[:, :, None], 1.0, 2)
    above = advantage[:, :, None] * (p - hot) + ENTROPY * p * (lps + entropy)
    above = np.concatenate([above * live[:, :, None], np.zeros_like(above[:, :1])], 1)
    return _backward(w, ids, kept, above / live.sum())


class Adam:
    """AdamW without decay, after the gradient's norm was cut."""

    def __init__(self, weights: Weights) -> None:
        self.first = {name: np.zeros_like(array) for name, array in weights.items()}
        self.second = {name: np.zeros_like(array) for name, array in weights.items()}
        self.count = 0

    def step(self, weights: Weights, found: Weights) -> None:
        norm = np.sqrt(sum(float((array * array).sum()) for array in found.values()))
        cut = min(1.0, LARGEST / (norm + 1e-6))
        self.count += 1
        for name, array in weights.items():
            g = found[name] * cut
            self.first[name] += 0.1 * (g - self.first[name])
            self.second[name] += 0.001 * (g * g - self.second[name])
            mean = self.first[name] / (1 - 0.9**self.count)
            spread = np.sqrt(self.second[name] / (1 - 0.999**self.count)) + 1e-8
            array -= RATE * mean / spread


def advantages(rewards: list[float | None]) -> list[float]:
    """Of a group, by GRPO. What is masked is in neither mean nor spread, and has none."""
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return [0.0] * len(rewards)
    mean, spread = float(np.mean(known)), float(np.std(known))
    return [0.0 if reward is None else (reward - mean) / (spread + 1e-4) for reward in rewards]


def saved(file: Path, weights: Weights, adam: Adam, said: dict[str, Any]) -> None:
    """Whole, or not at all."""
    arrays = {f"w.{name}": array for name, array in weights.items()}
    arrays |= {f"1.{name}": array for name, array in adam.first.items()}
    arrays |= {f"2.{name}": array for name, array in adam.second.items()}
    with open(half := file.with_suffix(".half"), "wb") as out:
        np.savez(out, said=json.dumps(said | {"adam": adam.count}), **arrays)  # type: ignore[arg-type]
    half.replace(file)


def loaded(file: Path) -> tuple[Weights, Adam, dict[str, Any]]:
    with np.load(file) as kept:
        said = json.loads(str(kept["said"]))
        weights = {name[2:]: kept[name] for name in kept.files if name.startswith("w.")}
        adam = Adam(weights)
        adam.count = said.pop("adam")
        for name in weights:
            adam.first[name], adam.second[name] = kept[f"1.{name}"], kept[f"2.{name}"]
    return weights, adam, said
