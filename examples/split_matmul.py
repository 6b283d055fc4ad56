"""A matrix product split over the rig: columns of the first factor, rows of the second, one AllReduce."""

import argparse

import numpy as np

import vkpar

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--devices", help="which devices, such as nvidia&amd (default: the GPUs there are)")
devices = vkpar.open_devices(parser.parse_args().devices)
if len(devices) == 1:
    devices = [*devices, *vkpar.open_devices(str(devices[0].info.index))]
rng = np.random.default_rng(1)
a = rng.integers(-8, 8, (16, 300)).astype(np.float32)
b = rng.integers(-8, 8, (300, 40)).astype(np.float32)

parts = np.array_split(np.arange(300), len(devices))
partial = [vkpar.matmul(d.array(a[:, part]), d.array(b[part])) for d, part in zip(devices, parts, strict=True)]
with vkpar.Communicator(devices, wire="f32") as comm:
    comm.all_reduce(partial).wait()

for array in partial:
    assert (array.numpy() == a @ b).all()
print("OK:", " + ".join(device.name for device in devices))
