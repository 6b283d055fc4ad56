"""Train a network on scikit-learn's digits, data-parallel over devices; an epoch is one graph."""

import argparse

import numpy as np
from sklearn.datasets import load_digits  # pip install scikit-learn

import vkpar

BATCH, BATCHES, EPOCHS, HIDDEN = 16, 88, 20, 32  # digits of a rank in each step, the steps of an epoch, epochs, width
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--devices", help="which devices, such as nvidia&amd (default: the GPUs there are)")
parser.add_argument("--mpi", action="store_true", help="the ranks of all processes train one network")
options, world = parser.parse_args(), None
devices = vkpar.open_devices(options.devices)
if options.mpi:
    from mpi4py.MPI import COMM_WORLD as world
(images, labels), order = load_digits(return_X_y=True), np.random.default_rng(0).permutation(1797)
momentum = vkpar.elementwise("v2 = beta * v + grad; w2 = w - rate * v2")


class Rank:  # what one device holds: the training digits in batches, in an order of its own, and the network
    def __init__(self, device, number):
        own = np.random.default_rng(number).permutation(order[:1437])[: BATCHES * BATCH].reshape(BATCHES, BATCH)
        self.x, self.labels = device.array(images[own] / 16, "float32"), device.array(labels[own], "uint32")
        self.w = vkpar.random.uniform(device, 75 * HIDDEN + 10, -0.2, 0.2)  # the same bits on every driver
        self.grad, self.velocity = device.zeros(self.w.shape), device.zeros(self.w.shape)

    def layers(self, flat):  # views: one sum, one update for all
        w1, b1, w2, b2 = vkpar.split(flat, [64 * HIDDEN, 65 * HIDDEN, 75 * HIDDEN])
        return [w1.reshape(64, HIDDEN), b1, w2.reshape(HIDDEN, 10), b2]

    def backward(self, number):
        (w1, b1, w2, b2), (dw1, db1, dw2, db2), x = self.layers(self.w), self.layers(self.grad), self.x[number]
        y = vkpar.matmul(x, w1, bias=b1, activation="relu")
        d = vkpar.cross_entropy_grad(vkpar.matmul(y, w2, bias=b2), self.labels[number], 1 / (BATCH * comm.nranks))
        vkpar.matmul(y.T, d, out=dw2)
        vkpar.sum(d, 0, out=db2)
        d = (d @ w2.T) * (y > 0)
        vkpar.matmul(x.T, d, out=dw1)
        vkpar.sum(d, 0, out=db1)
        return self.grad


with vkpar.Communicator(devices, wire="f32", mpi=world) as comm:  # so few numbers travel as they are
    ranks = [Rank(device, number) for number, device in zip(comm.local_ranks, devices, strict=True)]
    with vkpar.capture(devices, comm=comm) as epoch:
        for number in range(BATCHES):
            comm.all_reduce([rank.backward(number) for rank in ranks])
            for r in ranks:
                momentum(v=r.velocity, grad=r.grad, w=r.w, beta=0.9, rate=0.05, out=(r.velocity, r.w))
    launches = [epoch.launch() for _ in range(EPOCHS)]  # queued: the devices go on without the host
w1, b1, w2, b2 = ranks[0].layers(ranks[0].w)
logits = vkpar.relu(devices[0].array(images[order[1437:]] / 16, "float32") @ w1 + b1) @ w2 + b2
right = (logits.argmax(axis=1).numpy() == labels[order[1437:]]).mean()
assert right > 0.95, f"{right:.1%} of the held-out digits"
bits = ranks[0].w.numpy().view("uint32")
assert all((rank.w.numpy().view("uint32") == bits).all() for rank in ranks), "replicas agree bit for bit"
print(f"OK: {right:.1%} of the held-out digits, weights {np.bitwise_xor.reduce(bits):08x} on all {comm.nranks} ranks")
