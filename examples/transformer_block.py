"""One transformer block, its heads and hidden units split over the devices; the same functions on NumPy check it."""

import argparse
import math
from types import SimpleNamespace

import numpy as np

import vkpar

TOKENS, WIDTH, HEADS, HIDDEN = 40, 64, 8, 256
rng = np.random.default_rng(0)
shapes = [(TOKENS, WIDTH)] + [(HEADS, WIDTH, 8)] * 3 + [(HEADS, 8, WIDTH)] + [(HIDDEN, WIDTH)] * 2
x, query, key, value, out, up, down = ((rng.standard_normal(s) / 8).astype(np.float32) for s in shapes)


def attention(ops, x, *weights):
    h = ops.layer_norm(x)
    heads = zip(*weights, strict=True)
    return sum(ops.softmax((h @ query) @ (h @ key).T * 8**-0.5) @ (h @ value) @ out for query, key, value, out in heads)


def mlp(ops, x, up, down):
    return ops.gelu(ops.layer_norm(x) @ up.T) @ down


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--devices", help="which devices, such as nvidia&amd (default: the GPUs there are)")
devices = vkpar.open_devices(parser.parse_args().devices)
xs = [device.array(x) for device in devices]
exact = moved = x.astype(np.float64)
reference = SimpleNamespace(
    layer_norm=lambda a: (a - a.mean(axis=1, keepdims=True)) / np.sqrt(a.var(axis=1, keepdims=True) + 1e-5),
    softmax=lambda a: np.exp(a) / np.exp(a).sum(axis=-1, keepdims=True),
    gelu=lambda a: a * np.vectorize(math.erfc)(-a / math.sqrt(2)) / 2,
)
with vkpar.Communicator(devices, wire="f32") as comm:
    for layer, weights in ((attention, (query, key, value, out)), (mlp, (up, down))):
        parts = zip(*(np.array_split(w, len(devices)) for w in weights), strict=True)  # of each device
        sums = [layer(vkpar, x, *map(x.device.array, part)) for x, part in zip(xs, parts, strict=True)]
        comm.all_reduce(sums)
        xs = [x + total for x, total in zip(xs, sums, strict=True)]
        exact = exact + layer(reference, exact, *weights)
        # No operation errs by more than if its operands were 2^-14 of themselves off (docs/operations.md).
        moved = moved + layer(reference, moved, *(w + w * rng.choice([-1, 1], w.shape) * 2.0**-14 for w in weights))
assert all(np.abs(x.numpy() - exact).max() < np.abs(moved - exact).max() for x in xs)
print(f"OK: {HEADS} heads on {' + '.join(device.name for device in devices)}")
