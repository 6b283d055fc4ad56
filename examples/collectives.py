"""Data parallelism in four calls: broadcast weights, average gradients, gather results, move an array."""

import argparse

import numpy as np

import vkpar

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--devices", default="0*3", help="which devices, such as nvidia&amd (default: three ranks on one)")
devices = vkpar.open_devices(parser.parse_args().devices)
n = len(devices)
weights = [device.zeros(1000) for device in devices]
weights[0].write(np.linspace(-1, 1, 1000))
gradients = [device.array(np.full(1000, rank, np.float32)) for rank, device in enumerate(devices)]
losses = [device.array(np.array([0.5 * rank], np.float32)) for rank, device in enumerate(devices)]
every_loss = [device.zeros(n) for device in devices]

with vkpar.Communicator(devices) as comm:
    with comm.group():  # enqueued together
        comm.broadcast(weights, root=0)
        comm.all_reduce(gradients, op="avg")
        comm.all_gather(losses, out=every_loss)
    copied = every_loss[-1].to(devices[0])  # in program order: nothing has to be waited for

assert all(np.array_equal(array.numpy(), np.linspace(-1, 1, 1000).astype(np.float32)) for array in weights)
assert all(np.allclose(array.numpy(), (n - 1) / 2, rtol=1e-3) for array in gradients)
assert copied.tolist() == [0.5 * rank for rank in range(n)]
print(f"OK: {n} ranks on {' + '.join(device.name for device in devices)}")
