"""Train a network on scikit-learn's digits, data-parallel over devices: "llvmpipe&swiftshader", or any rig."""

import sys
import time

import numpy as np

import vkpar

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("train_digits.py: the digits are scikit-learn's: pip install scikit-learn")

BATCH, BATCHES, STEPS = 32, 44, 800  # digits of a rank in each step, the batches that it has, steps
momentum = vkpar.elementwise("v2 = beta * v + grad; w2 = w - rate * v2")
relu_grad = vkpar.elementwise("d = grad if y > 0 else 0")


def layers(flat: vkpar.Array) -> list[vkpar.Array]:  # views: one sum, one update for all
    return [flat[:4096].reshape(64, 64), flat[4096:4160], flat[4160:4800].reshape(64, 10), flat[4800:4810]]


class Rank:
    """What one device holds: the training digits in batches, in an order of its own, and the network."""

    def __init__(self, device: vkpar.Device, rank: int) -> None:
        order = np.random.default_rng(rank).permutation(train)[: BATCHES * BATCH].reshape(BATCHES, BATCH)
        self.x, self.labels = device.array(images[order] / 16, "float32"), device.array(labels[order], "uint32")
        self.w = vkpar.random.uniform(device, 4810, -0.2, 0.2)  # the same bits on every driver
        self.grad, self.velocity = device.zeros(4810), device.zeros(4810)

    def backward(self, step: vkpar.Array) -> None:
        (w1, b1, w2, b2), (dw1, db1, dw2, db2) = layers(self.w), layers(self.grad)
        x = vkpar.take(self.x, step).reshape(BATCH, 64)
        y = vkpar.matmul(x, w1, bias=b1, activation="relu")
        logits, batch_labels = vkpar.matmul(y, w2, bias=b2), vkpar.take(self.labels, step).reshape(BATCH)
        d = vkpar.cross_entropy_grad(logits, batch_labels, 1 / (BATCH * len(ranks)))
        vkpar.matmul(y.T, d, out=dw2)
        vkpar.sum(d, 0, out=db2)
        d = relu_grad(grad=d @ w2.T, y=y)
        vkpar.matmul(x.T, d, out=dw1)
        vkpar.sum(d, 0, out=db1)


def train_step(steps: list[vkpar.Array]) -> None:
    for rank, step in zip(ranks, steps, strict=True):
        rank.backward(step)
    comm.all_reduce([rank.grad for rank in ranks])
    for rank in ranks:
        momentum(v=rank.velocity, grad=rank.grad, w=rank.w, beta=0.9, rate=0.05, out=(rank.velocity, rank.w))


def milliseconds(step, count):
    start = time.perf_counter()
    for number in range(count):
        step(number)
    comm.barrier().wait()
    return 1e3 * (time.perf_counter() - start) / count


devices = vkpar.open_devices(*sys.argv[1:2])
images, labels = load_digits(return_X_y=True)
train, held_out = np.split(np.random.default_rng(0).permutation(len(images)), [1437])
ranks = [Rank(device, number) for number, device in enumerate(devices)]
with vkpar.Communicator(devices) as comm:
    first = [device.zeros(1, "uint32") for device in devices]
    milliseconds(lambda _: train_step(first), 10)  # compiles
    eager = milliseconds(lambda _: train_step(first), 50)
    with vkpar.capture(devices, comm=comm) as graph:
        train_step(graph.param("step"))
    captured = milliseconds(lambda number: graph.launch(step=number % BATCHES), STEPS)
print(f"a step takes {eager:.2f} ms, captured {captured:.2f} ms")
w1, b1, w2, b2 = layers(ranks[0].w)
logits = vkpar.relu(devices[0].array(images[held_out] / 16, "float32") @ w1 + b1) @ w2 + b2
right = (logits.argmax(axis=1).numpy() == labels[held_out]).mean()
assert right > 0.95, f"{right:.1%} of the held-out digits"
assert all((rank.w.numpy() == ranks[0].w.numpy()).all() for rank in ranks), "replicas agree bit for bit"
print(f"OK: {right:.1%} of the held-out digits, equal weights on {' + '.join(device.name for device in devices)}")
