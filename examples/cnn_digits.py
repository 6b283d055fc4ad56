"""Train a small convolutional network on scikit-learn's digits, data-parallel over devices; an epoch is one graph."""

import argparse

import numpy as np

import vkpar

try:
    from sklearn.datasets import load_digits
except ImportError:
    raise SystemExit("cnn_digits.py: the digits are scikit-learn's: pip install scikit-learn") from None

BATCH, BATCHES, EPOCHS, CHANNELS = 32, 22, 2, 4  # digits of a rank in each step, steps of an epoch, epochs, filters
ENDS = np.cumsum([CHANNELS * 9, CHANNELS, CHANNELS * 160, 10]).tolist()  # of filters and shifts, of the last layer
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--devices", help="which devices, such as nvidia&amd (default: the GPUs there are)")
devices, (images, labels) = vkpar.open_devices(parser.parse_args().devices), load_digits(return_X_y=True)
train, held_out = np.split(np.random.default_rng(0).permutation(len(images)), [1437])
momentum = vkpar.elementwise("v2 = beta * v + grad; w2 = w - rate * v2")
routed = vkpar.elementwise("o = where(y == most, where(y > 0, d, 0), 0)")  # back through max_pool2d and relu


def forward(flat: vkpar.Array, x: vkpar.Array) -> tuple[vkpar.Array, ...]:
    filters, shifts, dense, bias = vkpar.split(flat, ENDS[:3])  # views: one sum, one update for all
    y = vkpar.relu(vkpar.conv2d(x, filters.reshape(CHANNELS, 1, 3, 3), shifts, padding=1))
    most, dense = vkpar.max_pool2d(y, 2), dense.reshape(-1, 10)
    return y, most, dense, vkpar.matmul(most.reshape(len(x), -1), dense, bias=bias)


def backward(flat: vkpar.Array, x: vkpar.Array, wanted: vkpar.Array) -> vkpar.Array:
    y, most, dense, logits = forward(flat, x)
    d_logits = vkpar.cross_entropy_grad(logits, wanted, 1 / (BATCH * len(devices)))
    spread = (vkpar.repeat(vkpar.repeat(a, 2, 2), 2, 3) for a in (most, (d_logits @ dense.T).reshape(most.shape)))
    d = routed(y, *spread)
    d_filters = vkpar.conv2d(x.transpose((1, 0, 2, 3)), d.transpose((1, 0, 2, 3)), padding=1)  # digits are channels
    parts = d_filters, d.sum((0, 2, 3)), most.reshape(len(x), -1).T @ d_logits, d_logits.sum(0)
    return vkpar.concatenate([a.reshape(-1) for a in parts])


with vkpar.Communicator(devices, wire="f32") as comm:
    ranks = []
    for n, device in enumerate(devices):  # the same network, on digits in an order of the rank's own
        part = np.random.default_rng(n).permutation(train)[: BATCHES * BATCH].reshape(BATCHES, BATCH)
        x = device.array(images[part].reshape(BATCHES, BATCH, 1, 8, 8) / 16, "float32")
        w, wanted = vkpar.random.uniform(device, ENDS[3], -0.2, 0.2), device.array(labels[part], "uint32")
        ranks.append((w, vkpar.zeros_like(w), x, wanted))
    with vkpar.capture(devices, comm=comm) as epoch:
        for n in range(BATCHES):
            grads = [backward(w, x[n], wanted[n]) for w, _, x, wanted in ranks]
            comm.all_reduce(grads)
            for (w, v, _, _), grad in zip(ranks, grads, strict=True):
                momentum(v=v, grad=grad, w=w, beta=0.9, rate=0.2, out=(v, w))
    launches = [epoch.launch() for _ in range(EPOCHS)]
logits = forward(ranks[0][0], devices[0].array(images[held_out].reshape(-1, 1, 8, 8) / 16, "float32"))[3]
right = (logits.argmax(axis=1).numpy() == labels[held_out]).mean()
assert right > 0.9, f"{right:.1%} of the held-out digits"
assert all((w.numpy() == ranks[0][0].numpy()).all() for w, *_ in ranks), "replicas agree bit for bit"
print(f"OK: {right:.1%} of the held-out digits on {' + '.join(device.name for device in devices)}")
