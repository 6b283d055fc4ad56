"""Data parallelism in four calls: broadcast weights, average gradients, gather results, move an array."""

import numpy as np

import vkpar

info = vkpar.enumerate_devices()[0]
devices = vkpar.open_devices(f"{info.index}*3")
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
    copied = every_loss[2].to(devices[0])  # in program order: nothing has to be waited for

assert all(np.array_equal(array.numpy(), np.linspace(-1, 1, 1000).astype(np.float32)) for array in weights)
assert all(np.allclose(array.numpy(), 1.0) for array in gradients)
assert copied.numpy().tolist() == [0.0, 0.5, 1.0]
print(f"OK: {n} ranks on {info.name}")
