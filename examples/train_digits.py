"""Train a network on scikit-learn's digits, data-parallel over devices: "llvmpipe&swiftshader", or any rig.

With LP_NUM_THREADS=0 lavapipe is several times as fast: its threads hand such kernels over for longer than they run.
Over several machines: mpiexec -n 2 python examples/train_digits.py llvmpipe mpi
"""

import sys
import time
import zlib

import numpy as np

import vkpar

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("train_digits.py: the digits are scikit-learn's: pip install scikit-learn")

BATCH, BATCHES, EPOCHS, HIDDEN = 16, 88, 20, 32  # digits of a rank in each step, the steps of an epoch, epochs, width
momentum = vkpar.elementwise("v2 = beta * v + grad; w2 = w - rate * v2")
relu_grad = vkpar.elementwise("d = grad if y > 0 else 0")


def layers(flat: vkpar.Array) -> list[vkpar.Array]:  # views: one sum, one update for all
    w1, b1, w2, b2 = vkpar.split(flat, [64 * HIDDEN, 65 * HIDDEN, 75 * HIDDEN])
    return [w1.reshape(64, HIDDEN), b1, w2.reshape(HIDDEN, 10), b2]


class Rank:  # what one device holds: the training digits in batches, in an order of its own, and the network
    def __init__(self, device: vkpar.Device, rank: int) -> None:
        order = np.random.default_rng(rank).permutation(train)[: BATCHES * BATCH].reshape(BATCHES, BATCH)
        self.x, self.labels = device.array(images[order] / 16, "float32"), device.array(labels[order], "uint32")
        self.w = vkpar.random.uniform(device, 75 * HIDDEN + 10, -0.2, 0.2)  # the same bits on every driver
        self.grad, self.velocity = device.zeros(self.w.shape), device.zeros(self.w.shape)
        self.layers, self.grads = layers(self.w), layers(self.grad)

    def backward(self, number: int) -> vkpar.Array:
        (w1, b1, w2, b2), (dw1, db1, dw2, db2), x = self.layers, self.grads, self.x[number]
        y = vkpar.matmul(x, w1, bias=b1, activation="relu")
        d = vkpar.cross_entropy_grad(vkpar.matmul(y, w2, bias=b2), self.labels[number], 1 / (BATCH * comm.nranks))
        vkpar.matmul(y.T, d, out=dw2)
        vkpar.sum(d, 0, out=db2)
        d = relu_grad(grad=d @ w2.T, y=y)
        vkpar.matmul(x.T, d, out=dw1)
        vkpar.sum(d, 0, out=db1)
        return self.grad


def train_epoch() -> None:
    for number in range(BATCHES):
        comm.all_reduce([rank.backward(number) for rank in ranks])
        for rank in ranks:
            momentum(v=rank.velocity, grad=rank.grad, w=rank.w, beta=0.9, rate=0.05, out=(rank.velocity, rank.w))


def milliseconds_a_step(epoch, count):
    start = time.perf_counter()
    for _ in range(count):
        epoch()
    comm.barrier().wait()
    return 1e3 * (time.perf_counter() - start) / (count * BATCHES)


world = None
if sys.argv[2:] == ["mpi"]:
    from mpi4py.MPI import COMM_WORLD as world  # the ranks of all processes train one network
devices = vkpar.open_devices(*sys.argv[1:2])
images, labels = load_digits(return_X_y=True)
train, held_out = np.split(np.random.default_rng(0).permutation(len(images)), [1437])
with vkpar.Communicator(devices, wire="f32", mpi=world) as comm:  # so few numbers travel as they are
    ranks = [Rank(device, rank) for rank, device in zip(comm.local_ranks, devices, strict=True)]
    milliseconds_a_step(train_epoch, 1)  # compiles
    eager = milliseconds_a_step(train_epoch, 1)
    with vkpar.capture(devices, comm=comm) as graph:
        train_epoch()
    captured = milliseconds_a_step(graph.launch, EPOCHS)
print(f"a step takes {eager:.3f} ms, captured {captured:.3f} ms")
w1, b1, w2, b2 = layers(ranks[0].w)
logits = vkpar.relu(devices[0].array(images[held_out] / 16, "float32") @ w1 + b1) @ w2 + b2
right = (logits.argmax(axis=1).numpy() == labels[held_out]).mean()
assert right > 0.95, f"{right:.1%} of the held-out digits"
assert all((rank.w.numpy() == ranks[0].w.numpy()).all() for rank in ranks), "replicas agree bit for bit"
print(f"OK: {right:.1%} of the held-out digits, equal weights ({zlib.crc32(ranks[0].w.numpy()):08x}) on {devices}")
